"""From the flags of inspect_gradients.py to its table, its files and its figures."""

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from configs.flags import load_config
from lab.core.names import name_from_changes
from lab.figures import figure_style
from lab.figures.training_figures import over_training
from lab.inspect import gradient_figures, gradient_files, gradient_table
from lab.inspect.gradients import Measured, Subject, as_json, as_table, measure_in_time
from lab.inspect.run_steps import steps_asked_for
from training.code_version import PROJECT
from training.config import ConfigError
from training.files import write_atomically, write_json
from training.paths import check_output, parse_path
from training.provenance import provenance
from training.run_files.environment import provenance_changes
from training.run_files.trained_run import open_run


@dataclasses.dataclass(frozen=True)
class Question:
  """The flags of inspect_gradients.py; see its --help for what each means.

  Attributes:
    config_file: the scale file of --config, or None.
    changes: of config fields, by path, as given on the command line.
    command: asks the same again, as typed in a shell.
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


def inspect(question: Question, console: Console) -> int:
  """Measures, prints, writes and draws the gradients that are asked for, and returns the exit code.

  Raises:
    ConfigError: if the flags contradict one another, or a run or a step is not there; before anything is computed.
  """
  flag, given = ('--run', [question.run]) if question.run else ('--compare', question.compare)
  directories = [parse_path(text, flag) for text in given]
  subjects = _subjects(question, directories)
  out = parse_path(question.out, '--out') if question.out else _default_folder(question, subjects, directories)
  check_output(out, '--out')
  notes = [line for directory in directories for line in provenance_changes(directory)]
  for line in notes:
    console.print(f'note: {line}', soft_wrap=True)
  measured = []
  with console.status('') as status:
    for number, subject in enumerate(subjects, 1):
      status.update(Text(f'{subject.name}, step {subject.step} ({number} of {len(subjects)})'))
      found, left_out = measure_in_time(subject, question.step or 'latest', question.batches)
      measured += found
      if left_out:
        console.print(f'left out: {left_out}', soft_wrap=True)
  for table in _tables(question, measured, console.width):
    console.print(table)
  pictures = gradient_figures.draw_all(measured)
  for directory in directories:
    pictures += over_training(directory, _name(directory, directories))
  for path in gradient_files.replace_files(
    out, functools.partial(_write, question=question, measured=measured, pictures=pictures, notes=notes)
  ):
    console.print(str(path), soft_wrap=True)
  for picture in pictures:
    if picture.figure is None:
      console.print(f'{picture.name}: {picture.caption}', soft_wrap=True)
  return 0


def _default_folder(question: Question, subjects: Sequence[Subject], directories: Sequence[Path]) -> Path:
  """The folder of a question."""
  step = question.step or 'latest'
  if question.run:
    return directories[0] / 'gradients' / (f'step_{step}' if step.isdecimal() else step)
  if question.compare:
    names = [_name(directory, directories) for directory in directories]
    return Path('runs/gradients') / gradient_files.question_of_runs(names, directories, step)
  scale, changed = Path(question.config_file or 'tiny').stem, name_from_changes(question.changes, default='')
  configs = [subject.config for subject in subjects]
  return Path('runs/gradients') / gradient_files.question_of_config(scale, changed, configs)


def _subjects(question: Question, directories: Sequence[Path]) -> list[Subject]:
  """What to measure; every mistake in the flags is found here, before anything is computed."""
  changes, config = question.changes, question.config_file
  if sum(map(bool, (question.run, question.compare, config or changes or question.depths))) != 1:
    raise ConfigError('give one of --run=DIR, --compare=DIR,DIR and --config=FILE (or its fields, or --depths)')
  if directories:
    if len(set(directories)) < len(directories):
      raise ConfigError('--compare names a run twice')
    runs = {directory: open_run(directory) for directory in directories}
    return [
      Subject(_name(directory, directories), config, step, directory)
      for directory, (config, there) in runs.items()
      for step in steps_asked_for(directory, there, question.step or 'latest')
    ]
  if question.step not in (None, 'init', '0'):
    raise ConfigError(f'--step={question.step} goes with --run or --compare: a config has its initial values alone')
  if changes.get('run.init_from'):
    raise ConfigError('run.init_from has no part in initial values: look at that run, with --run')
  scale = load_config(config or str(PROJECT / 'configs/tiny.py')).replace(changes)
  name = ', '.join(str(value) for value in changes.values()) or Path(config or 'tiny').stem
  if not question.depths:
    return [Subject(name, scale)]
  return [Subject(name, scale.replace({'model.num_layers': depth})) for depth in _depths(question)]


def _name(directory: Path, others: Sequence[Path]) -> str:
  """The shortest end of a run's path that tells it from the others: its variant, if that will do."""
  variants = [path.absolute().parent.name for path in others]
  if len(set(variants)) == len(variants):
    return directory.absolute().parent.name
  return '/'.join(directory.absolute().parts[-3:])


def _depths(question: Question) -> list[int]:
  if not all(text.strip().isdecimal() and int(text) for text in question.depths):
    raise ConfigError(f'--depths={",".join(question.depths)}: write numbers of layers, as in --depths=4,8,16')
  depths = sorted({int(text) for text in question.depths})
  if len(depths) < len(question.depths):
    raise ConfigError(f'--depths={",".join(question.depths)} names a depth twice')
  return depths


def _tables(question: Question, measured: Sequence[Measured], width: int):
  if question.depths:
    return [gradient_table.by_depth(measured, width)]
  latest = list({one.subject.name: one for one in measured}.values())  # the last step of each
  if question.compare:
    return [gradient_table.by_sublayer(latest[k : k + 2], width) for k in range(0, len(latest), 2)]
  return [gradient_table.by_sublayer([one], width) for one in (measured if question.step == 'all' else latest)]


def _write(
  out: Path,
  question: Question,
  measured: Sequence[Measured],
  pictures: Sequence[figure_style.CaptionedFigure],
  notes: Sequence[str],
) -> list[Path]:
  """Writes all files to a folder, the index of them last."""
  table = as_table(measured)
  paths = [write_atomically(out / 'gradients.csv', table.to_csv(index=False, lineterminator='\n'))]
  for picture in pictures:
    paths += figure_style.save(picture.figure, out, picture.name) if picture.figure else []
  summary: dict[str, Any] = {
    'command': question.command,
    'batches': question.batches,
    'units': gradient_figures.UNITS,
    'made_with': provenance(),
    'notes': list(notes),
    'models': [
      {
        'model': one.subject.name,
        'step': one.subject.step,
        'config': one.subject.config.to_flat(),
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
