"""Named parts of the model: built in, or registered by an experiment file; and the options in their settings."""

import contextlib
import contextvars
import dataclasses
import difflib
import hashlib
import inspect
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

from model.field_checks import ConfigError, check_types

T = TypeVar('T')
BUILT_IN = Path(__file__).parent
NAME = re.compile('[a-z][a-z0-9_]*')
OPTION_TYPES = {'int': int, 'float': float, 'bool': bool, 'str': str}
_loaded_file: contextvars.ContextVar[Path | None] = contextvars.ContextVar('loaded_file', default=None)


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
    self._checksums: dict[str, str] = {}
    REGISTRIES.append(self)

  def __getitem__(self, name: str) -> T:
    return self._parts[name]

  def __iter__(self) -> Iterator[str]:
    return iter(self._parts)

  def __len__(self) -> int:
    return len(self._parts)

  def add(self, name: str, part: T, defined: Callable[..., Any]) -> None:
    """Registers a part.

    Args:
      name: lower-case letters, digits and underscores. A module that registered a name may register it again, as when
        it is reloaded.
      part: the implementation.
      defined: the class or function that implements it; its file is the part's origin.

    Raises:
      ConfigError: if the name is malformed or taken, or the part is not defined in a file.
    """
    loaded = _loaded_file.get()
    try:
      file = loaded or Path(inspect.getfile(defined)).resolve()
      text = b'' if file.is_relative_to(BUILT_IN) else file.read_bytes()
    except (TypeError, OSError):
      raise ConfigError(f'{self.kind} {name!r}: must be defined in a file, whose text identifies its runs') from None
    if not NAME.fullmatch(name):
      raise ConfigError(
        f'{file}: {self.kind} {name!r}: a name has lower-case letters, digits and underscores, and begins with a letter'
      )
    if self._files.get(name, file) != file or (loaded and name in self._parts):
      origin = self.origin(name)
      taken = (
        'built in' if origin is None else 'registered by this file' if origin == file else f'registered by {origin}'
      )
      raise ConfigError(f'{file}: {self.kind} {name!r} is already {taken}: choose another name')
    self._parts[name], self._files[name] = part, file
    self._checksums[name] = hashlib.sha256(text).hexdigest()
    self._descriptions[name] = (defined.__doc__ or '').strip().partition('\n')[0]

  def description(self, name: str) -> str:
    """The first line of the docstring of a part, for --helpfull; empty if it has none."""
    return self._descriptions[name]

  def remove(self, file: Path) -> None:
    """Removes the parts that a file has registered."""
    for name in [name for name, origin in self._files.items() if origin == file]:
      del self._parts[name], self._files[name], self._checksums[name], self._descriptions[name]

  def checksum(self, name: str) -> str:
    """The sha256 of the text of the file that registered the name, which is not a built-in part."""
    return self._checksums[name]

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


REGISTRIES: list[Registry[Any]] = []


@contextlib.contextmanager
def loading(file: Path) -> Iterator[None]:
  """While the context is open, all new parts belong to this file; those that it registered before are removed."""
  for registry in REGISTRIES:
    registry.remove(file)
  token = _loaded_file.set(file)
  try:
    yield
  except BaseException:
    for registry in REGISTRIES:
      registry.remove(file)
    raise
  finally:
    _loaded_file.reset(token)


def registered_names(file: Path) -> list[str]:
  """The parts that a file has registered: ['connection my_gate', ...]."""
  return [f'{registry.kind} {name}' for registry in REGISTRIES for name in registry if registry.origin(name) == file]


def check_options_class(kind: Any, where: str) -> None:
  """Raises ConfigError if a class of options is not a frozen dataclass of fields with a known type and a default."""
  if not (
    isinstance(kind, type) and '__dataclass_fields__' in vars(kind) and vars(kind)['__dataclass_params__'].frozen
  ):
    raise ConfigError(f'{where}: Options must be a class with the decorator @dataclasses.dataclass(frozen=True)')
  for field in dataclasses.fields(kind):
    if field.type not in (*OPTION_TYPES, *OPTION_TYPES.values()):
      raise ConfigError(f'{where}: the option {field.name} must be of type int, float, bool or str')
    if field.default is dataclasses.MISSING:
      raise ConfigError(f'{where}: the option {field.name} must have a default')


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
