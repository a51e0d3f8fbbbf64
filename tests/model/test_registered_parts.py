"""An activation and a norm that are registered outside of the model's own files are used like built-in ones."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from tiny_models import distance, initial_params, model_params, random_stream, tiny

import model
from model import ACTIVATIONS, NORMS
from model.config import ConfigError, ModelConfig
from model.feed_forward import FeedForward
from model.forward_statistics import Stats


@pytest.fixture
def registries(monkeypatch):
  """The registries as copies, so that parts registered by a test end with it."""
  for registry in (ACTIVATIONS, NORMS):
    for name, value in vars(registry).items():
      if isinstance(value, dict):
        monkeypatch.setattr(registry, name, dict(value))


@pytest.fixture
def cubed(registries):
  @model.activation('cubed', rectified=True)
  def cubed(x):
    """max(x, 0)^3."""
    return jnp.maximum(x, 0) ** 3

  return cubed


@pytest.fixture
def shifted(registries):
  @model.norm('shifted')
  class Shifted(nnx.Module):
    """x + gain + shift."""

    def __init__(self, width: int, use_bias: bool):
      self.gain = nnx.Param(jnp.zeros(width))
      self.shift = nnx.Param(jnp.full(width, 3.0 + use_bias))

    def __call__(self, x):
      return x.astype(jnp.float32) + self.gain[...] + self.shift[...]

  return Shifted


def active(stats: Stats):
  return stats['max']['active_units']


def test_a_registered_activation(cubed):
  config = tiny(feed_forward='cubed')
  assert (config.gated, config.ff_width, ModelConfig(feed_forward='cubed').ff_width) == (False, 12, 256)
  branch = FeedForward(config)
  branch.up.kernel[...], branch.down.kernel[...] = jnp.full((8, 12), 0.5), jnp.eye(12, 8)
  x, exact = random_stream(1, 3, 8)
  expected = np.repeat(np.maximum(0.5 * exact.sum(-1, keepdims=True), 0) ** 3, 8, -1)
  assert distance(branch(x), expected) < 1e-5
  np.testing.assert_array_equal(active(branch.statistics(-jnp.ones((1, 3, 8)))), np.zeros(12))
  assert ACTIVATIONS.description('cubed') == 'max(x, 0)^3.'


def test_a_registered_norm_is_used_in_every_place_with_its_initial_values(shifted):
  config = tiny(norm='shifted', qk_norm=True, embedding_norm=True, connection='sandwich', use_bias=True)
  params = initial_params(config)
  blocks = params['blocks']
  places = [
    params['embedding_norm'],
    params['final_norm'],
    *(blocks['attention'][f'{x}_norm'] for x in ('query', 'key')),
  ]
  places += [blocks[f'{s}_{norm}'] for s in ('attention', 'feed_forward') for norm in ('norm', 'output_norm')]
  for place in places:
    assert (np.asarray(place['gain']) == 1).all()
    assert (np.asarray(place['shift']) == 4).all()
  assert model.num_parameters(config) == sum(x.size for x in jax.tree.leaves(params))
  logits, _ = model.apply(config, model_params(config), jnp.zeros((1, 3), int))
  assert np.isfinite(logits).all()


def test_what_is_no_activation_or_norm_is_refused(registries):
  for wrong in (3, int):
    with pytest.raises(ConfigError, match=r"^activation 'mine': must be a function of one array"):
      model.activation('mine')(wrong)
  for wrong in (3, int, lambda width, use_bias: None, nnx.Module):
    with pytest.raises(
      ConfigError, match=r"^norm 'mine': must be a subclass of flax\.nnx\.Module with a method __call"
    ):
      model.norm('mine')(wrong)
  for register, name in ((model.activation, 'relu'), (model.norm, 'rms')):
    with pytest.raises(ConfigError, match=f'test_registered_parts.py: .*{name!r} is already built in: choose another'):
      register(name)(
        type('Mine', (nnx.Module,), {'__call__': lambda x: x, '__module__': __name__}) if name == 'rms' else lambda x: x
      )
  assert 'mine' not in {*ACTIVATIONS, *NORMS}
