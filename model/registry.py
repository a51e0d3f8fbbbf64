"""Named parts of the model: built in, or registered by an experiment file; and the options in their settings."""

import dataclasses
import difflib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from model.field_checks import ConfigError, check_types

T = TypeVar('T')
BUILT_IN = Path(__file__).parent
NAME = re.compile('[a-z][a-z0-9_]*')


class Registry(Mapping[str, T]):
  """The implementations of one kind of part, by name, in the order in which they were registered."""

  def __init__(self, kind: str):
    """Makes an empty registry.

    Args:
      kind: what it holds, for messages, such as `connection`.
    """
    self.kind = kind
    self._parts: dict[str, T] = {}
    self._files: dict[str, Path] = {}
    self._descriptions: dict[str, str] = {}

  def __getitem__(self, name: str) -> T:
    return self._parts[name]

  def __iter__(self) -> Iterator[str]:
    return iter(self._parts)

  def __len__(self) -> int:
    return len(self._parts)

  def add(self, name: str, part: T, defined: Callable[..., Any]) -> None:
    """Registers a part.

    Args:
      name: lower-case letters, digits and underscores. The file that registered a name may register it again, as when
        it is loaded twice.
      part: the implementation.
      defined: the class or function that implements it; its file is the part's origin.

    Raises:
      ConfigError: if the name is malformed, or taken by another file.
    """
    file = Path(inspect.getfile(defined)).resolve()
    if not NAME.fullmatch(name):
      raise ConfigError(
        f'{file}: {self.kind} {name!r}: a name has lower-case letters, digits and underscores, and begins with a letter'
      )
    if self._files.get(name, file) != file:
      taken = 'built in' if self.origin(name) is None else f'registered by {self._files[name]}'
      raise ConfigError(f'{file}: {self.kind} {name!r} is already {taken}: choose another name')
    self._parts[name], self._files[name] = part, file
    self._descriptions[name] = (defined.__doc__ or '').strip().partition('\n')[0]

  def description(self, name: str) -> str:
    """The first line of the docstring of a part, for --helpfull; empty if it has none."""
    return self._descriptions[name]

  def origin(self, name: str) -> Path | None:
    """The file outside of the model's own that registered the name; None for a built-in part."""
    file = self._files[name]
    return None if file.is_relative_to(BUILT_IN) else file

  def find(self, name: str, field: str) -> T:
    """The part with this name.

    Raises:
      ConfigError: if there is none, naming the config field and the known names.
    """
    if name not in self._parts:
      raise ConfigError(f'{field}={name!r}: must be one of {", ".join(self._parts)}')
    return self._parts[name]


def parse_setting(setting: str, field: str) -> tuple[str, dict[str, str]]:
  """Splits `name:option=value:option=value` into the name and the options, still as text.

  Raises:
    ConfigError: for an option without a value, or one that is given twice.
  """
  name, *given = setting.split(':')
  options: dict[str, str] = {}
  for part in given:
    key, equals, value = part.partition('=')
    if not equals or not key or key in options:
      raise ConfigError(f'{field}={setting!r}: each option is written once, as in {name}:option=value')
    options[key] = value
  return name, options


def make_options(kind: Any, given: Mapping[str, str], field: str) -> Any:
  """The options of a part from their texts.

  Args:
    kind: a frozen dataclass with fields of the types int, float, bool and str, and a default for each.
    given: the texts by name.
    field: the config field and the name of the part, for messages.

  Raises:
    ConfigError: for an unknown option, or a text that is not of its type; also what the dataclass itself raises.
  """
  types = {
    f.name: f.type if isinstance(f.type, type) else {'int': int, 'float': float, 'bool': bool}.get(f.type, str)
    for f in dataclasses.fields(kind)
  }
  values = {}
  for name, text in given.items():
    if name not in types:
      near = difflib.get_close_matches(name, types, n=1)
      hint = f': did you mean {near[0]!r}?' if near else f': there are {", ".join(types)}' if types else ': it has none'
      raise ConfigError(f'{field}: unknown option {name!r}{hint}')
    values[name] = _parse(text, types[name], f'{field}:{name}')
  options = kind(**values)
  check_types(options, field)
  return options


def _parse(text: str, kind: type, where: str) -> Any:
  if kind is bool:
    if text.lower() not in ('true', 'false'):
      raise ConfigError(f'{where}={text!r}: must be true or false')
    return text.lower() == 'true'
  try:
    return kind(text)
  except ValueError:
    raise ConfigError(f'{where}={text!r}: must be {kind.__name__}') from None


def format_setting(name: str, options: Any) -> str:
  """The shortest setting of a part: options that have their default are left out, so that equal settings are equal."""
  changed = {f.name: getattr(options, f.name) for f in dataclasses.fields(options)}
  parts = [f'{key}={_format(changed[key])}' for f in dataclasses.fields(options) if changed[key := f.name] != f.default]
  return ':'.join([name, *parts])


def _format(value: Any) -> str:
  return str(value).lower() if isinstance(value, bool) else str(value)
