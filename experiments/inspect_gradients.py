"""Shows where the gradient goes, layer by layer and path by path, of a run or of a config.

  python -m experiments.inspect_gradients --run=runs/block/post_norm/seed_0            the newest checkpoint
  python -m experiments.inspect_gradients --run=runs/block/post_norm/seed_0 --step=all
  python -m experiments.inspect_gradients --compare=runs/block/baseline/seed_0,runs/block/post_norm/seed_0
  python -m experiments.inspect_gradients --config=configs/tiny.py --norm_placement=post --depths=4,8,16,32,64

Prints a table, and writes gradients.csv, gradients.json and figures; each question has a folder of its own. Gradients
are measured on the batches that the next training steps would take; attention weights by definition, beside the kernel
in use.
"""

import functools
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments import start_up

if __name__ == '__main__':
  start_up.prepare('experiments.inspect_gradients')  # before the imports below
  start_up.check_jax('experiments.inspect_gradients')

from absl import flags
from rich.console import Console
from rich.text import Text

from configs.flags import config_changes, define_config_flags, load_config
from experiments import command_line, figure_style, gradient_figures, gradient_files, gradient_table
from experiments.gradients import Measured, Subject, as_json, as_table, measure_in_time
from experiments.inspected_run import steps_asked_for
from experiments.names import name_of
from experiments.training_figures import over_training
from training.code_version import code
from training.config import ConfigError
from training.files import write_atomically, write_json
from training.paths import check_output, given_path
from training.provenance import environment, notes_on_run
from training.trained_run import open_run

PROJECT = Path(__file__).parent.parent

RUN = flags.DEFINE_string('run', None, 'The directory of a run, as runs/block/baseline/seed_0.')
COMPARE = flags.DEFINE_list('compare', [], 'Directories of runs, to be shown side by side.')
STEP = flags.DEFINE_string(
  'step',
  None,
  'Which of the run: latest (the default; its initial values go into the files too), init, all, or a step.',
)
DEPTHS = flags.DEFINE_list('depths', [], 'Numbers of layers: the config at its initial values, once for each.')
BATCHES = flags.DEFINE_integer('batches', 8, 'How many batches the intervals are over.', lower_bound=2)
OUT = flags.DEFINE_string(
  'out', None, 'Where the files go. Default: RUN/gradients/<step>, else runs/gradients/<what was asked>.'
)
define_config_flags()


def main(console: Console) -> int:
  """Measures, prints, writes and draws what the flags ask for."""
  flag, given = ('--run', [RUN.value]) if RUN.value else ('--compare', COMPARE.value)
  directories = [given_path(text, flag) for text in given]
  subjects = _subjects(directories)
  out = given_path(OUT.value, '--out') if OUT.value else _default_folder(subjects, directories)
  check_output(out, '--out')
  notes = [line for directory in directories for line in notes_on_run(directory)]
  for line in notes:
    console.print(f'note: {line}', soft_wrap=True)
  measured = []
  with console.status('') as status:
    for number, subject in enumerate(subjects, 1):
      status.update(Text(f'{subject.name}, step {subject.step} ({number} of {len(subjects)})'))
      found, left_out = measure_in_time(subject, STEP.value or 'latest', BATCHES.value)
      measured += found
      if left_out:
        console.print(f'left out: {left_out}', soft_wrap=True)
  for table in _tables(measured, console.width):
    console.print(table)
  pictures = gradient_figures.draw_all(measured)
  for directory in directories:
    pictures += over_training(directory, _name(directory, directories))
  for path in gradient_files.replace_files(
    out, functools.partial(_write, measured=measured, pictures=pictures, notes=notes)
  ):
    console.print(str(path), soft_wrap=True)
  for picture in pictures:
    if picture.figure is None:
      console.print(f'{picture.name}: {picture.caption}', soft_wrap=True)
  return 0


def _default_folder(subjects: Sequence[Subject], directories: Sequence[Path]) -> Path:
  """The folder of a question."""
  step = STEP.value or 'latest'
  if RUN.value:
    return directories[0] / 'gradients' / (f'step_{step}' if step.isdecimal() else step)
  if COMPARE.value:
    names = [_name(directory, directories) for directory in directories]
    return Path('runs/gradients') / gradient_files.question_of_runs(names, directories, step)
  scale, changed = Path(flags.FLAGS.config or 'tiny').stem, name_of(config_changes(), otherwise='')
  configs = [subject.config for subject in subjects]
  return Path('runs/gradients') / gradient_files.question_of_config(scale, changed, configs)


def _subjects(directories: Sequence[Path]) -> list[Subject]:
  """What to measure; every mistake in the flags is found here, before anything is computed."""
  changes, config = config_changes(), flags.FLAGS.config
  if sum(map(bool, (RUN.value, COMPARE.value, config or changes or DEPTHS.value))) != 1:
    raise ConfigError('give one of --run=DIR, --compare=DIR,DIR and --config=FILE (or its fields, or --depths)')
  if directories:
    if len(set(directories)) < len(directories):
      raise ConfigError('--compare names a run twice')
    runs = {directory: open_run(directory) for directory in directories}
    return [
      Subject(_name(directory, directories), config, step, directory)
      for directory, (config, there) in runs.items()
      for step in steps_asked_for(directory, there, STEP.value or 'latest')
    ]
  if STEP.value not in (None, 'init', '0'):
    raise ConfigError(f'--step={STEP.value} goes with --run or --compare: a config has its initial values alone')
  if changes.get('run.init_from'):
    raise ConfigError('run.init_from has no part in initial values: look at that run, with --run')
  scale = load_config(config or str(PROJECT / 'configs/tiny.py')).replace(changes)
  name = ', '.join(str(value) for value in changes.values()) or Path(config or 'tiny').stem
  if not DEPTHS.value:
    return [Subject(name, scale)]
  return [Subject(name, scale.replace({'model.num_layers': depth})) for depth in _depths()]


def _name(directory: Path, others: Sequence[Path]) -> str:
  """The shortest end of a run's path that tells it from the others: its variant, if that will do."""
  variants = [path.absolute().parent.name for path in others]
  if len(set(variants)) == len(variants):
    return directory.absolute().parent.name
  return '/'.join(directory.absolute().parts[-3:])


def _depths() -> list[int]:
  if not all(text.strip().isdecimal() and int(text) for text in DEPTHS.value):
    raise ConfigError(f'--depths={",".join(DEPTHS.value)}: write numbers of layers, as in --depths=4,8,16')
  depths = sorted({int(text) for text in DEPTHS.value})
  if len(depths) < len(DEPTHS.value):
    raise ConfigError(f'--depths={",".join(DEPTHS.value)} names a depth twice')
  return depths


def _tables(measured: Sequence[Measured], width: int):
  if DEPTHS.value:
    return [gradient_table.by_depth(measured, width)]
  latest = list({one.subject.name: one for one in measured}.values())  # the last step of each
  if COMPARE.value:
    return [gradient_table.by_sublayer(latest[k : k + 2], width) for k in range(0, len(latest), 2)]
  return [gradient_table.by_sublayer([one], width) for one in (measured if STEP.value == 'all' else latest)]


def _write(
  out: Path, measured: Sequence[Measured], pictures: Sequence[figure_style.Picture], notes: Sequence[str]
) -> list[Path]:
  """Writes all files to a folder, the index of them last."""
  table = as_table(measured)
  paths = [write_atomically(out / 'gradients.csv', table.to_csv(index=False, lineterminator='\n'))]
  for picture in pictures:
    paths += figure_style.save(picture.figure, out, picture.name) if picture.figure else []
  summary: dict[str, Any] = {
    'command': shlex.join(['python', '-m', 'experiments.inspect_gradients', *sys.argv[1:]]),
    'batches': BATCHES.value,
    'units': gradient_figures.UNITS,
    'made_with': {**environment(), 'code': code()},
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


if __name__ == '__main__':
  command_line.run('inspect_gradients', main)
