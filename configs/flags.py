"""The fields of Config as absl flags: `--config.model.num_layers=24`, short flags, and `--config=FILE`."""

import dataclasses
import importlib.util
import inspect
import re
import traceback
import typing
from typing import Any, Literal

from absl import flags

from model.activations import ACTIVATIONS
from model.connections import CONNECTIONS
from model.norm import NORMS
from model.registry import Registry
from training.config import Config, ConfigError, sections
from training.known_names import nearest_name
from training.paths import parse_path

PREFIX = 'config.'
PATH_FIELDS = ('data.tokenizer', 'run.init_from')  # the path of one file or folder
SHORT = ('connection', 'feed_forward')  # the most used fields of the model
PARTS: dict[str, Registry[Any]] = {
  'model.connection': CONNECTIONS,
  'model.norm': NORMS,
  'model.feed_forward': ACTIVATIONS,
}
DEFINE: dict[Any, Any] = {
  int: flags.DEFINE_integer,
  float: flags.DEFINE_float,
  bool: flags.DEFINE_bool,
  str: flags.DEFINE_string,
}


def define_config_flags(flag_values: flags.FlagValues = flags.FLAGS) -> None:
  """Defines `--config`, one typed flag per field of Config, and short flags; the value None means "not passed"."""
  flags.DEFINE_string(
    'config', None, 'A Python file whose get_config() returns a Config. Default: the scale file of the experiment.',
    flag_values=flag_values,
  )  # fmt: skip
  for name, section in sections().items():
    descriptions = field_descriptions(section)
    for field in dataclasses.fields(section):
      if field.init:
        _define(f'{PREFIX}{name}.{field.name}', field, descriptions.get(field.name, ''), flag_values)
  for name in SHORT:
    flags.DEFINE_string(name, None, f'Short form of --config.model.{name}.', flag_values=flag_values)
  flags.DEFINE_bool(
    'residual', None, '--noresidual sets the residual scale of both sublayers to 0.', flag_values=flag_values
  )


def field_descriptions(section: type) -> dict[str, str]:
  """The description of each field of a section of Config, from the attributes in its docstring."""
  attributes = (inspect.getdoc(section) or '').partition('Attributes:\n')[2]
  entries = re.findall(r'^  (\w[\w, ]*): (.*(?:\n    .*)*)', attributes, re.MULTILINE)
  return {name: ' '.join(text.split()) for names, text in entries for name in names.split(', ')}


def _define(name: str, field: Any, description: str, flag_values: flags.FlagValues) -> None:
  text = f'{description} Default: {field.default!r}.'.lstrip()
  if registry := PARTS.get(name.removeprefix(PREFIX)):
    text = '\n'.join([text, *(f'{part}: {registry.description(part)}' for part in registry)])
  if typing.get_origin(field.type) is Literal:
    flags.DEFINE_enum(name, None, list(typing.get_args(field.type)), text, flag_values=flag_values)
    return
  DEFINE[field.type](name, None, text, flag_values=flag_values)


def config_changes(flag_values: flags.FlagValues = flags.FLAGS) -> dict[str, Any]:
  """The fields passed on the command line, including short flags, by path: {'model.num_layers': 24}.

  Raises:
    ConfigError: if a field and its short flag have different values, or a path is invalid.
  """
  given = {name.removeprefix(PREFIX): flag_values[name].value for name in flag_values if name.startswith(PREFIX)}
  short = {f'model.{name}': flag_values[name].value for name in SHORT}
  if flag_values['residual'].value is not None:
    scale = float(flag_values['residual'].value)
    short |= {'model.attention_residual': scale, 'model.feed_forward_residual': scale}
  for path, value in short.items():
    if value is not None and given[path] not in (None, value):
      raise ConfigError(f'--config.{path}={given[path]} and its short flag have different values: omit one of them')
  for path in PATH_FIELDS:
    if value := given[path]:
      parse_path(value, f'--{PREFIX}{path}')
  return _passed(given) | _passed(short)


def _passed(changes: dict[str, Any]) -> dict[str, Any]:
  return {path: value for path, value in changes.items() if value is not None}


def load_config(path: str) -> Config:
  """The Config that the get_config() of a scale file returns.

  Raises:
    ConfigError: if there is no such file, it raises an error, or it does not return a Config.
  """
  file = parse_path(path, '--config').absolute()
  if not file.is_file():
    existing = sorted(str(p) for p in file.parent.glob('*.py') if p.name not in ('__init__.py', 'flags.py'))
    raise ConfigError(f'--config={path}: no such file{nearest_name(path, existing)}')
  spec = importlib.util.spec_from_file_location('config_file', file)
  if spec is None or spec.loader is None:
    raise ConfigError(f'--config={path}: a scale is a Python file with a function get_config() that returns a Config')
  module = importlib.util.module_from_spec(spec)
  try:
    spec.loader.exec_module(module)
    config = module.get_config() if hasattr(module, 'get_config') else None
  except ConfigError:
    raise
  except SyntaxError as error:
    raise ConfigError(f'--config={path}: not valid Python: {error}') from None
  except Exception as error:  # the user's code may raise anything
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(file)]
    line = f', line {lines[-1]}' if lines else ''
    raise ConfigError(f'--config={path}{line}: {type(error).__name__}: {error}') from error
  if not isinstance(config, Config):
    raise ConfigError(f'--config={path}: needs a function get_config() that returns a Config; see configs/tiny.py')
  return config
