"""The command inspect_gradients.py, from its flags to tables, files and figures."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from configs.flags import load_config
from lab.core import registry
from lab.core.names import name_from_changes
from lab.figures import figure_style
from lab.figures.training_figures import over_training
from lab.inspect import gradient_figures, gradient_files, gradient_table
from lab.inspect.gradients import GradientSamples, InspectedModel, as_dataframe, as_json, measure_with_retries
from lab.inspect.run_steps import select_steps
from model.part_checks import check_parts
from training import ideas
from training.code_version import PROJECT
from training.config import ConfigError
from training.files import write_atomically, write_json
from training.paths import check_output, parse_path
from training.provenance import provenance
from training.run_files.environment import provenance_changes
from training.run_files.trained_run import open_run


@dataclasses.dataclass(frozen=True)
class InspectOptions:
  """The flags of inspect_gradients.py; its --help describes each.

  Attributes:
    config_file: the scale file of --config, or None.
    changes: the config fields set on the command line, by path.
    experiments: the values of --experiment.
    command: the shell command that repeats the measurement.
  """

  run: str | None
  compare: tuple[str, ...]
  step: str | None
  depths: tuple[str, ...]
  batches: int
  out: str | None
  config_file: str | None
  changes: Mapping[str, Any]
  command: str
  experiments: tuple[str, ...] = ()


def inspect(options: InspectOptions, console: Console) -> int:
  """Measures, prints, writes and draws the gradients that the flags specify, and returns the exit code.

  Raises:
    ConfigError: if the flags contradict each other, or a run or a step does not exist; before anything is computed.
  """
  flag, paths = ('--run', [options.run]) if options.run else ('--compare', options.compare)
  directories = [parse_path(path, flag) for path in paths]
  models = _models(options, directories)
  out = parse_path(options.out, '--out') if options.out else _default_directory(options, models, directories)
  check_output(out, '--out')
  notes = [line for directory in directories for line in provenance_changes(directory)]
  for line in notes:
    console.print(f'note: {line}', soft_wrap=True)
  measured = []
  with console.status('') as status:
    for number, model in enumerate(models, 1):
      status.update(Text(f'{model.name}, step {model.step} ({number} of {len(models)})'))
      samples, skipped = measure_with_retries(model, options.step or 'latest', options.batches)
      measured += samples
      if skipped:
        console.print(f'skipped: {skipped}', soft_wrap=True)
  for table in _tables(options, measured, console.width):
    console.print(table)
  figures = gradient_figures.draw_all(measured)
  for directory in directories:
    figures += over_training(directory, _run_name(directory, directories))
  for path in gradient_files.replace_files(
    out, functools.partial(_write, options=options, measured=measured, figures=figures, notes=notes)
  ):
    console.print(str(path), soft_wrap=True)
  for figure in figures:
    if figure.figure is None:
      console.print(f'{figure.name}: {figure.caption}', soft_wrap=True)
  return 0


def _default_directory(options: InspectOptions, models: Sequence[InspectedModel], directories: Sequence[Path]) -> Path:
  """The output directory if --out does not name one."""
  step = options.step or 'latest'
  if options.run:
    return directories[0] / 'gradients' / (f'step_{step}' if step.isdecimal() else step)
  if options.compare:
    names = [_run_name(directory, directories) for directory in directories]
    return Path('runs/gradients') / gradient_files.directory_name_for_runs(names, directories, step)
  scale, changes = (
    Path(next(iter(options.experiments), options.config_file or 'tiny')).stem,
    name_from_changes(options.changes, default=''),
  )
  configs = [model.config for model in models]
  return Path('runs/gradients') / gradient_files.directory_name_for_config(scale, changes, configs)


def _models(options: InspectOptions, directories: Sequence[Path]) -> list[InspectedModel]:
  """The models to measure. All flags are checked here, before anything is computed."""
  changes, config = options.changes, options.config_file
  declared = config or changes or options.depths or (options.experiments and not directories)
  if sum(map(bool, (options.run, options.compare, declared))) != 1:
    raise ConfigError(
      'pass one of --run=DIR, --compare=DIR,DIR and --config=FILE (or config fields, or --depths, or --experiment)'
    )
  if directories:
    if len(set(directories)) < len(directories):
      raise ConfigError('--compare names a run twice')
    for file in options.experiments:
      ideas.load(registry.find_file(file))
    runs = {directory: open_run(directory) for directory in directories}
    return [
      InspectedModel(_run_name(directory, directories), config, step, directory)
      for directory, (config, checkpoints) in runs.items()
      for step in select_steps(directory, checkpoints, options.step or 'latest')
    ]
  if len(options.experiments) > 1:
    raise ConfigError('--experiment is given twice: pass one, except with --run or --compare')
  if options.step not in (None, 'init', '0'):
    raise ConfigError(f'--step={options.step} needs --run or --compare: a config only has initial parameters')
  if changes.get('run.init_from'):
    raise ConfigError('run.init_from does not change the initial parameters of a config: inspect that run with --run')
  models = _declared_models(options)
  for model in models:
    check_parts(model.config.model)
  if not options.depths:
    return models
  return [
    dataclasses.replace(model, config=model.config.replace({'model.num_layers': depth}))
    for model in models
    for depth in _depths(options)
  ]


def _declared_models(options: InspectOptions) -> list[InspectedModel]:
  """The model of a config at its initial parameters or, with --experiment, those of its variants.

  With --depths, the model of an experiment is that of its base, with the changes on the command line.
  """
  changes, config = options.changes, options.config_file
  named = next(iter(options.experiments), None)
  experiment = registry.find(named) if named else None
  scale = load_config(config or str(PROJECT / (experiment.config if experiment else 'configs/tiny.py')))
  if experiment is None or options.depths:
    name = ', '.join(str(value) for value in changes.values()) or Path(named or config or 'tiny').stem
    return [InspectedModel(name, scale.replace({**(experiment.base if experiment else {}), **changes}))]
  return [
    InspectedModel(name, scale.replace({**experiment.base, **changes, **own}))
    for name, own in experiment.variants.items()
  ]


def _run_name(directory: Path, others: Sequence[Path]) -> str:
  """The shortest suffix of a run's path that distinguishes it from the others: its variant, if possible."""
  variants = [path.absolute().parent.name for path in others]
  if len(set(variants)) == len(variants):
    return directory.absolute().parent.name
  return '/'.join(directory.absolute().parts[-3:])


def _depths(options: InspectOptions) -> list[int]:
  if not all(text.strip().isdecimal() and int(text) for text in options.depths):
    raise ConfigError(f'--depths={",".join(options.depths)}: must be numbers of layers, as in --depths=4,8,16')
  depths = sorted({int(text) for text in options.depths})
  if len(depths) < len(options.depths):
    raise ConfigError(f'--depths={",".join(options.depths)} names a depth twice')
  return depths


def _tables(options: InspectOptions, measured: Sequence[GradientSamples], width: int):
  if options.depths:
    return [gradient_table.by_depth(measured, width)]
  latest = list({one.model.name: one for one in measured}.values())  # the last step of each model
  if options.compare:
    return [gradient_table.by_sublayer(latest[k : k + 2], width) for k in range(0, len(latest), 2)]
  return [gradient_table.by_sublayer([one], width) for one in (measured if options.step == 'all' else latest)]


def _write(
  out: Path,
  options: InspectOptions,
  measured: Sequence[GradientSamples],
  figures: Sequence[figure_style.CaptionedFigure],
  notes: Sequence[str],
) -> list[Path]:
  """Writes all files to a directory, with the index last."""
  table = as_dataframe(measured)
  paths = [write_atomically(out / 'gradients.csv', table.to_csv(index=False, lineterminator='\n'))]
  for figure in figures:
    paths += figure_style.save(figure.figure, out, figure.name) if figure.figure else []
  summary: dict[str, Any] = {
    'command': options.command,
    'batches': options.batches,
    'units': gradient_figures.UNITS,
    'made_with': provenance(),
    'notes': list(notes),
    'models': [
      {
        'model': one.model.name,
        'step': one.model.step,
        'config': one.model.config.to_flat(),
        'measures': {
          name: {'mean': as_json(one.mean(name)), 'half_width': as_json(one.half_width(name))} for name in one.samples
        },
      }
      for one in measured
    ],
  }
  paths.append(out / gradient_files.INDEX)
  write_json(paths[-1], {**summary, 'files': [path.name for path in paths]})
  return paths
