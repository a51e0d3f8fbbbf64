"""The files that answer one question to the inspector: a folder for each question, all of its files replaced as one."""

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.core.names import checksum
from training.config import Config
from training.files import UNFINISHED, Damaged, read_json

INDEX = 'gradients.json'  # written last; under `files` it names all that were written with it
OURS = ('.csv', '.json', '.png', '.pdf', '.svg')


def question_of_runs(names: Sequence[str], directories: Sequence[Path], step: str) -> str:
  """A folder's name for a comparison of runs: 'baseline+post_norm_step_latest-1f0c9a3e'.

  Args:
    names: of the runs, as they are shown.
    directories: of the runs; a checksum tells runs of equal names apart.
    step: as asked for.
  """
  which = '+'.join(name.replace('/', '.') for name in names)
  return f'{which[:80]}_step_{step}-{checksum(repr([os.path.realpath(path) for path in directories]))}'


def question_of_config(scale: str, changed: str, configs: Sequence[Config]) -> str:
  """A folder's name for initial values: 'tiny+norm_placement=post_layers_4_8-03ab91cd'.

  Args:
    scale: the name of the config file.
    changed: a name for what was changed; may be empty.
    configs: one for each depth.
  """
  depths = '_'.join(str(config.model.num_layers) for config in configs)
  which = '+'.join(filter(None, (scale, changed)))
  return f'{which[:80]}_layers_{depths[:40]}-{checksum(repr([config.to_flat() for config in configs]))}'


def replace_files(folder: Path, write: Callable[[Path], Sequence[Path]]) -> list[Path]:
  """Has files written to a folder of their own, then moves them to where they belong; older ones of ours go.

  Args:
    folder: where they belong; made if it is not there. What the inspector did not write stays.
    write: writes the files to the folder it is given, the index last, and returns their paths.

  Returns:
    Their paths.

  Raises:
    OSError: if something cannot be written; the older files are then as they were.
  """
  folder.mkdir(parents=True, exist_ok=True)
  temporary = Path(tempfile.mkdtemp(dir=folder, prefix='.', suffix=UNFINISHED))
  try:
    names = [path.name for path in write(temporary)]
    older = _written_before(folder)
    for name in names:
      os.replace(temporary / name, folder / name)
  finally:
    shutil.rmtree(temporary)
  for name in older - set(names):
    (folder / name).unlink(missing_ok=True)
  return [folder / name for name in names]


def _written_before(folder: Path) -> set[str]:
  """The files that the index there names; only names of this very folder, whatever it says."""
  try:
    named = (read_json(folder / INDEX) or {}).get('files')
  except Damaged:  # it is about to be written anew
    named = None
  names = [name for name in named if isinstance(name, str)] if isinstance(named, list) else []
  return {name for name in names if Path(name).name == name and Path(name).suffix in OURS}
