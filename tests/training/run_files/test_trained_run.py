"""Loading the parameters of a trained run."""

import json
import shutil

import jax
import made_run
import numpy as np
import pytest

import model
from training.config import Config, ConfigError
from training.data.loading import load_data
from training.run_files.trained_run import load_params

CONFIG = Config().replace({
  'data.task': 'copy', 'data.sequence_length': 8, 'model.num_layers': 1, 'model.d_model': 8, 'model.num_heads': 2,
  'run.steps': 60, 'run.batch_size': 4, 'optimizer.ema': 0.9,
})  # fmt: skip


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
  """A run with checkpoints of 24 and 36: every parameter is the step, every average twice that."""
  with pytest.MonkeyPatch.context() as patch:
    state_of = made_run.state_at

    def state_at(step, config):
      state = state_of(step, config)
      return type(state)(**vars(state) | {'ema': jax.tree.map(lambda leaf: 2 * leaf, state.ema)})

    patch.setattr(made_run, 'state_at', state_at)
    return made_run.make_run(tmp_path_factory.mktemp('runs') / 'seed_0', CONFIG, load_data(CONFIG))


@pytest.fixture
def run(trained, tmp_path):
  return shutil.copytree(trained, tmp_path / 'seed_0')


def numbers(params) -> set[float]:
  return {float(x) for leaf in jax.tree.leaves(params) for x in np.ravel(leaf)}


def test_the_newest_or_the_requested_checkpoint_is_loaded(run):
  config, params = load_params(str(run))
  assert config == CONFIG
  assert jax.tree.structure(params) == jax.tree.structure(model.init(config.model, jax.random.key(0)))
  assert numbers(params) == {72.0}  # the evaluated weights: the average
  assert numbers(load_params(run, 36, 'raw')[1]) == {36.0}
  assert numbers(load_params(run, step=24)[1]) == {48.0}


def test_loaded_parameters_work_in_the_model(run):
  config, params = load_params(run)
  logits, _ = model.apply(config.model, params, np.zeros((1, 8), np.int32))
  assert logits.shape == (1, 8, config.model.vocab_size)


def change(path, **fields):
  path.write_text(json.dumps(json.loads(path.read_text()) | fields))


DAMAGE = {
  'there is no run': (shutil.rmtree, {}),
  'has no checkpoint yet': (lambda run: shutil.rmtree(run / 'checkpoints'), {}),
  "has no checkpoint of step=25; available: 24, 36": (lambda run: None, {'step': 25}),
  "has no checkpoint of step='36'; available: 24, 36": (lambda run: None, {'step': '36'}),
  "weights='ema': must be one of evaluated, raw": (lambda run: None, {'weights': 'ema'}),
  "unknown config key 'model.depth'": (lambda run: change(run / 'config.json', **{'model.depth': 3}), {}),
  'config.json does not match its checkpoints (model.d_model is 8 there, 16 here)': (
    lambda run: change(run / 'config.json', **{'model.d_model': 16}),
    {},
  ),
  'config.json is damaged': (lambda run: (run / 'config.json').write_text('{'), {}),
  'manifest.json has changed': (lambda run: (run / 'checkpoints/36/manifest.json').write_text('{'), {}),
  '_METADATA': (lambda run: (run / 'checkpoints/36/state/_METADATA').unlink(), {}),
}  # fmt: skip


@pytest.mark.parametrize('message', DAMAGE)
def test_an_unloadable_run_is_an_error_of_one_line(run, message):
  damage, arguments = DAMAGE[message]
  damage(run)
  with pytest.raises(ConfigError) as error:
    load_params(run, **arguments)
  assert message in str(error.value)
  assert '\n' not in str(error.value)
