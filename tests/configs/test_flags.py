import re
import textwrap
import typing

import jax
import pytest
from absl import flags

from configs import small, tiny
from configs.flags import PARTS, config_changes, define_config_flags, load_config
from model.transformer import param_shapes
from training.config import Config, ConfigError, known_paths, sections


def parse(*arguments: str) -> flags.FlagValues:
  """Parses a command line with fresh flags."""
  values = flags.FlagValues()
  define_config_flags(values)
  values(['train.py', *arguments])
  return values


def example(path: str) -> tuple[str, object]:
  """A value of a field as text on the command line, and as the expected Python value."""
  section, name = path.split('.')
  kind = sections()[section].__dataclass_fields__[name].type
  if typing.get_origin(kind):
    return (typing.get_args(kind)[-1],) * 2
  return {int: ('7', 7), float: ('2.5e-1', 0.25), str: ('text', 'text'), bool: ('true', True)}[kind]


@pytest.mark.parametrize('path', known_paths())
def test_every_field_is_a_typed_flag(path):
  text, value = example(path)
  changes = config_changes(parse(f'--config.{path}={text}'))
  assert changes == {path: value}
  assert type(changes[path]) is type(value)


@pytest.mark.parametrize('path', PARTS)
def test_the_help_of_a_part_describes_each_name(path):
  lines = parse()[f'config.{path}'].help.splitlines()
  for line, name in zip(lines[1:], PARTS[path], strict=True):
    assert re.fullmatch(rf'{name}: \S.{{3,}}', line), line


@pytest.mark.parametrize('path', PARTS)
def test_an_unknown_name_of_a_part_is_refused_with_the_known_names(path):
  with pytest.raises(ConfigError) as error:
    Config().replace(config_changes(parse(f'--config.{path}=unheard_of')))
  assert str(error.value) == f"{path}='unheard_of': must be one of {', '.join(PARTS[path])}"


def test_flags_that_are_not_passed_change_nothing():
  assert config_changes(parse()) == {}
  assert config_changes(parse('--config=configs/tiny.py')) == {}
  assert parse()['config'].value is None
  assert parse('--config=configs/tiny.py')['config'].value == 'configs/tiny.py'


def test_several_flags_combine_into_one_config():
  values = parse('--config.run.steps=50', '--config.optimizer.clip=0', '--config.model.connection=post')
  config = Config().replace(config_changes(values))
  assert (config.run.steps, config.optimizer.clip, config.model.connection) == (50, 0.0, 'post')


@pytest.mark.parametrize(
  ('argument', 'changes'),
  [
    ('--config.model.rezero', {'model.rezero': True}),
    ('--noconfig.model.rezero', {'model.rezero': False}),  # given, though it is the default
    ('--noconfig.model.causal', {'model.causal': False}),
    ('--config.run.log_every=0', {'run.log_every': 0}),
    ('--config.data.paths=', {'data.paths': ''}),
    ('--config.optimizer.weight_decay=0', {'optimizer.weight_decay': 0.0}),
  ],
)
def test_falsy_values_are_changes(argument, changes):
  assert config_changes(parse(argument)) == changes


@pytest.mark.parametrize(
  ('argument', 'message'),
  [
    ('--config.model.num_layer=3', r"'config\.model\.num_layer'.*config\.model\.num_layers"),
    ('--config.optimiser.clip=3', r"'config\.optimiser\.clip'.*config\.optimizer\.clip"),
    ('--config.run.steps=1.5', r'--config\.run\.steps=1\.5'),
    ('--config.run.steps=many', r'--config\.run\.steps=many'),
    ('--config.optimizer.learning_rate=fast', r'--config\.optimizer\.learning_rate=fast'),
    ('--config.model.rezero=maybe', r'--config\.model\.rezero=maybe'),
    ('--config.model.init=xaver', r'--config\.model\.init=xaver.*fan_in\|xavier'),
  ],
)
def test_an_invalid_flag_is_an_error_of_one_line(argument, message):
  with pytest.raises(flags.Error) as error:
    parse(argument)
  assert re.search(message, str(error.value))
  assert '\n' not in str(error.value)


def test_the_help_of_a_flag_has_its_default():
  values = parse()
  assert 'Default: 12.' in values['config.model.num_layers'].help
  assert values['config.model.num_layers'].default is None


@pytest.mark.parametrize('module', [tiny, small])
def test_the_docstring_of_a_scale_is_true(module):
  config = load_config(module.__file__)
  assert config == module.get_config()
  text = module.get_config.__doc__

  def number(pattern: str) -> float:
    return float(re.search(pattern, text).group(1).replace(',', ''))

  parameters = sum(leaf.size for leaf in jax.tree.leaves(param_shapes(config.model)))
  assert number(r'([\d.]+)M parameters') == pytest.approx(parameters / 1e6, abs=0.05)
  assert number(r'([\d,]+) steps') == config.run.steps
  assert number(r'steps of (\d+) sequences') == config.run.batch_size
  tokens = config.run.steps * config.run.batch_size * config.data.sequence_length
  assert number(r'([\d.]+)M bytes') == pytest.approx(tokens / 1e6, abs=0.5 if tokens > 1e6 else 0.05)
  assert f'--config=configs/{module.__name__.split(".")[1]}.py' in module.__doc__
  assert f'{config.model.num_layers} layers' in module.__doc__


VALID = """
from training.config import Config

def get_config():
  return Config().replace({'run.steps': 77})
"""


def test_a_users_config_file_is_loaded(tmp_path):
  (tmp_path / 'mine.py').write_text(VALID)
  assert load_config(str(tmp_path / 'mine.py')).run.steps == 77


@pytest.mark.parametrize(
  ('name', 'content', 'message'),
  [
    ('bad.py', 'def get_config(:\n', r'bad\.py: not valid Python: .*line 1'),
    ('bad.py', 'x = 3\n', r'bad\.py: needs a function get_config\(\) that returns a Config'),
    ('bad.py', 'def get_config():\n  return {}\n', r'bad\.py: needs a function get_config\(\) that returns a Config'),
    ('bad.py', 'def get_config():\n  pass\n', r'bad\.py: needs a function get_config\(\) that returns a Config'),
    ('bad.py', 'get_config = 3\n', r"bad\.py: TypeError: 'int' object is not callable"),
    ('bad.py', '\nimport nowhere_to_be_found\n', r"bad\.py, line 2: .*No module named 'nowhere_to_be_found'"),
    (
      'bad.py',
      'from model import ModelConfig\n\ndef get_config():\n  return ModelConfig(num_layer=3)\n',
      r"bad\.py, line 4: TypeError: .*'num_layer'",
    ),
    (
      'bad.py',
      'from model import ModelConfig\nModelConfig(num_layers=0)\n',
      r'model\.num_layers=0: must be at least 1',
    ),
    ('bad.yaml', 'num_layers: 3\n', r'bad\.yaml: a scale is a Python file with a function get_config\(\)'),
    ('bad', '', r'bad: a scale is a Python file with a function get_config\(\)'),
  ],
)
def test_an_invalid_config_file_is_an_error_of_one_line(tmp_path, name, content, message):
  (tmp_path / name).write_text(textwrap.dedent(content))
  with pytest.raises(ConfigError) as error:
    load_config(str(tmp_path / name))
  assert re.search(message, str(error.value))
  assert '\n' not in str(error.value)


def test_a_missing_config_file_gets_the_nearest_name(tmp_path):
  for name in ('tiny.py', 'large.py', '__init__.py'):
    (tmp_path / name).write_text(VALID)
  with pytest.raises(ConfigError) as error:
    load_config(f'{tmp_path}/tinny.py')
  assert str(error.value) == (f"--config={tmp_path}/tinny.py: no such file: did you mean '{tmp_path}/tiny.py'?")
  for path in (f'{tmp_path}/nowhere/tiny.py', str(tmp_path / 'empty')):
    with pytest.raises(ConfigError, match=rf'^--config={path}: no such file'):
      load_config(path)
  (tmp_path / 'empty').mkdir()
  with pytest.raises(ConfigError, match=r'no such file$'):
    load_config(str(tmp_path / 'empty' / 'tiny.toml'))


@pytest.mark.parametrize('path', known_paths())
def test_the_help_of_a_field_is_its_documentation(path):
  section, name = path.split('.')
  field = sections()[section].__dataclass_fields__[name]
  text = parse()[f'config.{path}'].help
  assert len(text) > len(f'Default: {field.default!r}.') + 5
  assert text.splitlines()[0].endswith(f' Default: {field.default!r}.')
  if path == 'optimizer.beta2':  # documented together with others
    assert text.startswith('parameters of AdamW; Lion uses beta1 and beta2, Muon beta1,')
  if path == 'data.tokenizer':
    assert text == "path of a tokenizer.json; empty: each byte is a token. Default: ''."
