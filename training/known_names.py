"""Errors for unknown names, with the nearest known name."""

import difflib
from collections.abc import Iterable

from model.field_checks import ConfigError

RENAMED = {'model.norm_placement': 'model.connection'}  # the former path of a config field -> the present one


def check_names(names: Iterable[str], known: Iterable[str], kind: str) -> None:
  """Raises ConfigError for the first name that is not known, with the nearest known one."""
  known = list(known)
  for name in names:
    if RENAMED.get(name) in known:
      raise ConfigError(f'{kind} {name} is now {RENAMED[name]}')
    if name not in known:
      raise ConfigError(f'unknown {kind} {name!r}{nearest_name(name, known)}')


def nearest_name(name: str, known: Iterable[str]) -> str:
  """A hint to append to an error message: `: did you mean 'connection'?`, or a list of the known names."""
  known = sorted(known)
  near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
  if not near:  # the last part may match without its section: num_layers for model.num_layers
    near = [path for path in known if path.rpartition('.')[2] == name.rpartition('.')[2]][:1]
  if near:
    return f': did you mean {near[0]!r}?'
  return f': there are {", ".join(known)}' if 0 < len(known) < 30 else ''
