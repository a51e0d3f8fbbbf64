"""Output directories of the inspector: one for each set of models. The files of a directory are replaced together."""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.core.names import checksum
from training.config import Config
from training.files import UNFINISHED, Damaged, read_json

INDEX = 'gradients.json'  # written last; its `files` lists all files written with it
SUFFIXES = ('.csv', '.json', '.png', '.pdf', '.svg')


def directory_name_for_runs(names: Sequence[str], directories: Sequence[Path], step: str) -> str:
  """The name of the directory for a comparison of runs: 'baseline+post_norm_step_latest-1f0c9a3e'.

  Args:
    names: the displayed names of the runs.
    directories: the directories of the runs; their checksum distinguishes runs with equal names.
    step: the value of --step.
  """
  models = '+'.join(name.replace('/', '.') for name in names)
  return f'{models[:80]}_step_{step}-{checksum(repr([os.path.realpath(path) for path in directories]))}'


def directory_name_for_config(scale: str, changes: str, configs: Sequence[Config]) -> str:
  """The name of the directory for a config at initialisation: 'tiny+connection=post_layers_4_8-03ab91cd'.

  Args:
    scale: the name of the config file.
    changes: a name for the changed fields; may be empty.
    configs: the config at each depth.
  """
  depths = '_'.join(str(config.model.num_layers) for config in configs)
  model = '+'.join(filter(None, (scale, changes)))
  return f'{model[:80]}_layers_{depths[:40]}-{checksum(repr([config.to_flat() for config in configs]))}'


def replace_files(directory: Path, write: Callable[[Path], Sequence[Path]]) -> list[Path]:
  """Writes files to a temporary directory, moves them to the output directory, and deletes those of the last index.

  Args:
    directory: the output directory; created if it does not exist. Files that the inspector did not write are kept.
    write: a function that writes the files to a directory, the index last, and returns their paths.

  Returns:
    The paths of the files in the output directory.

  Raises:
    OSError: if a file cannot be written; the previous files are then unchanged.
  """
  directory.mkdir(parents=True, exist_ok=True)
  temporary = Path(tempfile.mkdtemp(dir=directory, prefix='.', suffix=UNFINISHED))
  try:
    names = [path.name for path in write(temporary)]
    previous = _previous_files(directory)
    for name in names:
      os.replace(temporary / name, directory / name)
  finally:
    shutil.rmtree(temporary)
  for name in previous - set(names):
    (directory / name).unlink(missing_ok=True)
  return [directory / name for name in names]


def _previous_files(directory: Path) -> set[str]:
  """The files that the index in the directory lists. Paths to other directories are ignored."""
  try:
    listed = (read_json(directory / INDEX) or {}).get('files')
  except Damaged:  # about to be replaced
    listed = None
  names = [name for name in listed if isinstance(name, str)] if isinstance(listed, list) else []
  return {name for name in names if Path(name).name == name and Path(name).suffix in SUFFIXES}
