"""Files that register parts of the model: what is refused, and how their texts are told apart."""

import dataclasses
import functools
import hashlib
import pickle
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from lab.analysis import tuned_learning_rates
from lab.analysis.tuning_results import Tuning
from lab.core.experiment import Experiment
from model import ConfigError, ModelConfig, apply, init
from model.connections import CONNECTIONS
from model.part_checks import check_parts
from model.transformer import param_shapes
from training import ideas
from training.config import Config
from training.identity import differences, identity, identity_of

pytestmark = pytest.mark.usefixtures('own_parts')

TINY = {'num_layers': 2, 'd_model': 8, 'num_heads': 2, 'vocab_size': 11}
HEAD = 'import jax\nimport jax.numpy as jnp\nfrom flax import nnx\nfrom model import Connection, Ends, connection\n'
SCALED = """
@connection('scaled')
class Scaled(Connection):
  def read(self, state, site):
    return state

  def write(self, state, y_BTD, site):
    return state + FACTOR * y_BTD
"""


def write(path, text=SCALED, factor=2):
  path.write_text(HEAD + text.replace('FACTOR', str(factor)))
  return path


def scaled_config() -> Config:
  return Config(model=ModelConfig(connection='scaled', **TINY))


def test_a_config_records_the_file_only_if_it_uses_a_part_of_it(tmp_path):
  path = write(tmp_path / 'my scale.py')
  ideas.load(path)
  flat = scaled_config().to_flat()
  assert flat['model.idea_file'] == str(path)
  assert flat['model.idea'].startswith('my scale.py sha256 ')
  assert 'model.idea' in identity_of(flat)
  assert 'model.idea_file' not in identity_of(flat)
  assert not [name for name in Config().to_flat() if 'idea' in name]


def test_a_recorded_config_is_read_without_its_file(tmp_path):
  path = write(tmp_path / 'scale.py', SCALED + f"open('{tmp_path}/executed', 'w').close()\n")
  ideas.load(path)
  config = scaled_config()
  flat, pickled = config.to_flat(), pickle.dumps(config)
  forget(path)
  (tmp_path / 'executed').unlink()
  assert pickle.loads(pickled).to_flat() == flat  # as in a Slurm task, which passes it to a worker
  unloaded = Config.from_flat(flat)
  assert (unloaded.to_flat(), identity(unloaded)) == (flat, identity(config))
  with pytest.raises(ConfigError, match='is not loaded with the text'):
    init(unloaded.model, jax.random.key(0))
  with pytest.raises(ConfigError) as refused:
    ideas.check_loaded(unloaded.model, Path('runs/x'))
  checksum = hashlib.sha256(path.read_bytes()).hexdigest()[:8]
  assert str(refused.value) == (
    f'runs/x uses the connection scaled that scale.py (sha256 {checksum}) registers: '
    f'add --experiment={path} to execute that file'
  )
  assert not (tmp_path / 'executed').exists()
  assert 'scaled' not in CONNECTIONS
  ideas.load_named(unloaded.model)
  assert (tmp_path / 'executed').exists()
  assert Config.from_flat(flat) == config
  ideas.check_loaded(Config.from_flat(flat).model, Path('runs/x'))


def test_a_file_that_has_changed_or_is_gone_is_named(tmp_path):
  path = write(tmp_path / 'scale.py')
  ideas.load(path)
  config, flat = scaled_config(), scaled_config().to_flat()
  forget(path)
  write(path, factor=3)
  unloaded = Config.from_flat(flat)
  changed = r'scale\.py has changed: {} uses the connection scaled that scale\.py \(sha256 .* restore'
  with pytest.raises(ConfigError, match=changed.format('this run')):
    ideas.load_named(unloaded.model)
  assert 'scaled' not in CONNECTIONS
  ideas.load(path)
  with pytest.raises(ConfigError, match=changed.format('runs/x')):
    ideas.check_loaded(unloaded.model, Path('runs/x'))
  changed = differences(flat, identity(scaled_config()))
  assert list(changed) == ['model.idea']
  assert 'the file scale.py ' in changed['model.idea']
  for stale in (config, unloaded):
    with pytest.raises(ConfigError, match='is not loaded with the text'):
      init(stale.model, jax.random.key(0))
  forget(path)
  path.unlink()
  with pytest.raises(ConfigError, match=r'scale\.py does not exist: this run uses .* restore the file'):
    ideas.load_named(unloaded.model)
  with pytest.raises(ConfigError, match=r'scale\.py does not exist: runs/x uses .* restore it, or add --experiment'):
    ideas.check_loaded(unloaded.model, Path('runs/x'))


@pytest.mark.parametrize(
  ('path', 'value', 'message'),
  [
    ('model.idea', 'scale.py', "model.idea='scale.py': must be the name of a file and its sha256"),
    ('model.idea', ['scale.py'], 'must be the name of a file and its sha256'),
    ('model.idea', f'a\nb.py sha256 {"0" * 64}', 'model.idea'),
    ('model.idea_file', 5, 'model.idea_file=5: must be str, not int'),
    ('model.idea_file', '/a\x1b[2J.py', 'contains the control character'),
    ('model.connection', ['scaled'], "model.connection=['scaled']: must be str, not list"),
    ('model.norm', {'a': 1}, 'must be str, not dict'),
  ],
)
def test_a_damaged_record_is_refused(path, value, message):
  flat = Config().to_flat() | {'model.idea': f'scale.py sha256 {"0" * 64}', 'model.idea_file': '/scale.py'}
  with pytest.raises(ConfigError) as refused:
    Config.from_flat(flat | {path: value})
  assert message in str(refused.value)
  assert '\n' not in str(refused.value)


def test_a_path_that_cannot_exist_is_named(tmp_path):
  flat = Config().to_flat() | {'model.idea': f'scale.py sha256 {"0" * 64}', 'model.norm': 'mine'}
  unloaded = Config.from_flat(flat | {'model.idea_file': f'/{"x" * 5000}.py'})
  with pytest.raises(
    ConfigError, match=r'does not exist: runs/x uses the norm mine that scale\.py \(sha256 0{8}\) regist'
  ):
    ideas.check_loaded(unloaded.model, Path('runs/x'))


def test_a_moved_file_with_the_same_text_is_the_same_idea(tmp_path):
  path = write(tmp_path / 'scale.py')
  ideas.load(path)
  flat = scaled_config().to_flat()
  forget(path)
  (tmp_path / 'other').mkdir()
  ideas.load(path.rename(tmp_path / 'other' / 'scale.py'))
  assert not differences(flat, identity(Config.from_flat(flat)))


def test_an_edited_file_is_a_new_model_in_the_same_process(tmp_path):
  path, tokens = tmp_path / 'scale.py', jax.ShapeDtypeStruct((1, 6), jnp.int32)
  found = []
  for factor in (3, 5, 3):
    ideas.load(write(path, factor=factor))
    config = scaled_config().model
    found.append(str(jax.make_jaxpr(functools.partial(apply, config))(param_shapes(config), tokens)))
  assert found[0] != found[1]
  assert found[0] == found[2]


def test_parts_of_the_former_text_are_removed(tmp_path):
  path = write(tmp_path / 'scale.py')
  ideas.load(path)
  ideas.load(write(path, SCALED.replace("'scaled'", "'renamed'")))
  assert 'scaled' not in CONNECTIONS
  assert 'renamed' in CONNECTIONS
  path.write_text('1 / 0')
  with pytest.raises(ConfigError, match='line 1: ZeroDivisionError'):
    ideas.load(path)
  assert 'renamed' not in CONNECTIONS


@pytest.mark.parametrize(
  ('text', 'message'),
  [
    (SCALED.replace("'scaled'", "'pre'"), "scale.py, line 6: connection 'pre' is already built in"),
    (SCALED.replace("'scaled'", "'A b'"), "scale.py, line 6: connection 'A b': a name has lower-case letters"),
    (SCALED + SCALED, "line 14: connection 'scaled' is already registered by this file"),
    (SCALED.replace('def write', 'def wrote'), "line 6: connection 'scaled': the class Scaled must define write"),
    (SCALED.replace('(Connection)', ''), 'must be a subclass of model.Connection'),
    (
      SCALED.replace('  def read', '  class Options:\n    x: int = 1\n\n  def read'),
      'Options must be a class with the dec',
    ),
    ('\nimport nowhere_to_be_found', 'scale.py, line 6: ModuleNotFoundError: No module'),
    ('\nimport beside', 'scale.py, line 6: imports beside from its own folder'),
    ('\nfrom . import beside', 'scale.py, line 6: imports a relative module from its own folder'),
    ('\nraise ValueError("two\\nlines")', 'scale.py, line 6: ValueError: two lines'),
    ('\nX = jnp.ones(3)', 'scale.py: X is an array on a device'),
    ('\nimport sys; sys.exit(3)', 'scale.py, line 6: SystemExit: 3'),
    ('\nx = (', 'scale.py, line 6: not valid Python'),
    ('\0', 'scale.py: not valid Python'),
  ],
)
def test_an_invalid_file_is_refused_in_one_line(tmp_path, text, message):
  (tmp_path / 'beside.py').write_text('')
  with pytest.raises(ConfigError) as refused:
    ideas.load(write(tmp_path / 'scale.py', text))
  assert message in str(refused.value)
  assert str(refused.value).count(str(tmp_path)) == 1
  assert '\n' not in str(refused.value)
  assert 'scaled' not in CONNECTIONS


@pytest.mark.parametrize(
  ('old', 'new', 'message'),
  [
    ('    return state\n', '    return state[..., :4]\n', 'class Scaled: read must return float32[2, 3, 8], as (batch'),
    ('    return state\n', '    return jnp.bfloat16(state)\n', 'not bfloat16[2, 3, 8]'),
    (
      '    return state\n',
      '    return None\n',
      'read must return float32[2, 3, 8], as (batch, positions, width), not None',
    ),
    ('    return state\n', '    return state @ jnp.ones((3, 3))\n', 'line 9: class Scaled: TypeError: dot_general'),
    ('    return state\n', '    return state if state.sum() > 0 else -state\n', 'line 9: class Scaled: TracerBoolConv'),
    ('read(self, state, site)', 'read(self, state)', 'takes 2 positional arguments but 3 were given'),
    (
      'state + FACTOR * y_BTD',
      'state, y_BTD',
      'write must return a state like the one it is given, float32[2, 3, 8], not (',
    ),
    (
      'state + FACTOR * y_BTD',
      'y_BTD[0]',
      'write must return a state like the one it is given: float32[2, 3, 8], not float32[3',
    ),
    ('state + FACTOR * y_BTD', 'jnp.float16(state)', 'not float16[2, 3, 8]'),
    ('  def read', '  def term(self, y_BTD, site):\n    return 1.0\n\n  def read', 'term must return float32[2, 3, 8]'),
    (
      '  def read',
      '  def run(self, skip, branch, F, site):\n    return skip, F(branch, values=lambda v: v[..., :1])\n\n  def read',
      'the function on the values must return float32[2, 3, 2, 4], as (batch, positions, heads, width), not float32[2',
    ),
    (
      '  def read',
      '  def run(self, skip, branch, F, site):\n    return F(branch, mix=lambda out, v: out), skip\n\n  def read',
      'the argument mix of a branch must be a jax.tree_util.Partial',
    ),
    (
      '  def read',
      '  def run(self, skip, branch, F, site):\n'
      '    return F(branch, mix=jax.tree_util.Partial(lambda out, v: v[0])), skip\n\n  def read',
      'the function mix must return float32[2, 3, 2, 4], as (batch, positions, heads, width), not float32[3',
    ),
    (
      '  def read',
      '  def run(self, skip, branch, F, site):\n'
      '    return F(branch, mix=jax.tree_util.Partial(lambda h, up: up if h.ndim == 4 else h[0])), skip\n\n  def read',
      'the function mix must return float32[2, 3, 21], as (batch, positions, width), not float32[3, 21]',
    ),
    (
      '  def read',
      '  def run(self, skip, branch, F, site):\n    return skip[0], F(branch)\n\n  def read',
      'run must return float32[2, 3, 8]',
    ),
    (
      '  def read',
      '  def run(self, skip, branch, F, site):\n    return F(branch), (skip, skip)\n\n  def read',
      'run must return a state like the one it is given',
    ),
    (
      '  def read',
      '  class ends(Ends):\n    def close(self, state):\n      return state[0]\n\n  def read',
      'ends.close must',
    ),
    (
      '  def read',
      '  class ends(Ends):\n    def open(self, x):\n      return 1, x\n\n  def read',
      'ends.open must return arr',
    ),
    (
      '  def read',
      '  def __init__(self, *args):\n    super().__init__(*args)\n    self.n = nnx.Param(jnp.arange(3))\n\n  def read',
      'the parameter blocks/attention_n is int32, but all parameters must be float32',
    ),
  ],
)
def test_a_wrong_method_is_refused_before_anything_is_compiled(tmp_path, old, new, message):
  path = write(tmp_path / 'scale.py', SCALED.replace(old, new))
  ideas.load(path)
  with pytest.raises(ConfigError) as refused:
    check_parts(scaled_config().model)
  assert message in str(refused.value)
  assert str(refused.value).startswith(str(path))
  assert '\n' not in str(refused.value)


def test_valid_parts_pass_with_every_option_of_the_model(tmp_path):
  ideas.load(write(tmp_path / 'scale.py'))
  for changes in ({}, {'dtype': 'bfloat16'}, {'remat': True}, {'position': 'learned', 'num_positions': 2}):
    check_parts(dataclasses.replace(scaled_config().model, **changes))


OTHERS = (
  HEAD
  + """
from model import activation, norm

@norm('halving')
class Halving(nnx.Module):
  def __init__(self, width, use_bias):
    self.gain = nnx.Param(jnp.zeros(width))

  def __call__(self, x):
    return self.gain[...] * x.astype(jnp.float32) / 2

@activation('bent', gated=True)
def bent(x):
  return jnp.where(x > 0, x, x / 8)
"""
)


def test_a_norm_and_an_activation_of_a_file(tmp_path):
  path = tmp_path / 'others.py'
  path.write_text(OTHERS)
  ideas.load(path)
  for changes in ({'norm': 'halving'}, {'feed_forward': 'bent', 'dtype': 'bfloat16'}):
    config = ModelConfig(**TINY, **changes)
    check_parts(config)
    assert config.idea_file == str(path)
    assert Config.from_flat(Config(model=config).to_flat()).model == config
  assert config.gated


@pytest.mark.parametrize(
  ('old', 'new', 'message'),
  [
    ('return self.gain[...] * x', 'return self.gain[:1] * x[..., :1]', 'norm halving must return float32[2, 3, 8]'),
    ('.astype(jnp.float32) / 2', ' / "2"', 'line 14: norm halving: TypeError'),
    ('jnp.where(x > 0, x, x / 8)', 'x.sum(-1)', 'activation bent must return float32[2, 3, 21], as (batch'),
    ('jnp.where(x > 0, x, x / 8)', '1.0', 'activation bent must return float32[2, 3, 21], as (batch'),
  ],
)
def test_a_wrong_norm_or_activation_is_refused(tmp_path, old, new, message):
  path = tmp_path / 'others.py'
  path.write_text(OTHERS.replace(old, new))
  ideas.load(path)
  with pytest.raises(ConfigError) as refused:
    check_parts(ModelConfig(norm='halving', feed_forward='bent', **TINY))
  assert message in str(refused.value)


def test_a_tuning_applies_only_to_the_text_that_it_was_made_with(tmp_path):
  path = write(tmp_path / 'scale.py')
  ideas.load(path)
  experiment = Experiment('?', {'pre': {}, 'scaled': {'model.connection': 'scaled'}}, name='scale')
  scale = Config()
  recorded = tuned_learning_rates.recorded_ideas(experiment, scale, {})
  assert list(recorded) == ['scaled']
  about = {
    'settings': tuned_learning_rates.tuning_settings(experiment, scale, {}),
    'variants': dict(experiment.variants),
    'ideas': recorded,
  }
  found = Tuning(tmp_path / 'tuned.csv', about, ())
  assert tuned_learning_rates.tuning_differences(found, experiment, scale, {}) == ''
  ideas.load(write(path, factor=3))
  different = tuned_learning_rates.tuning_differences(found, experiment, scale, {})
  assert different == 'scaled was tuned with another text of its experiment file'


def forget(path):
  """As in a new process."""
  from model.registry import REGISTRIES

  ideas._loaded.pop(path, None)
  for registry in REGISTRIES:
    registry.remove(path)
