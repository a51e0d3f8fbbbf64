"""CompleteP (Dey et al. 2025): the forward pass by hand, and the coordinate check."""

import functools
import math
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from model.config import ConfigError, ModelConfig
from model.transformer import apply, init
from training.config import OptimizerConfig
from training.optimizer import make_optimizer

sys.path.append(str(Path(__file__).parents[1] / 'model'))
import numpy_reference as reference
from separate_leaves import _apply
from tiny_models import distance, float64, model_params, quick_jit, tiny

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (8, 9)))
STEPS = 4


def test_the_logits_by_hand():
  config = tiny(connection='completep:base_layers=3:base_width=2')
  params = model_params(config)
  p, tokens = float64(params), np.asarray(TOKENS)
  x = p['embedding']['token'][tokens]
  for index in range(2):
    layer = reference.layer(p['blocks'], index)
    x = x + 3 / 2 * reference.attention(layer['attention'], reference.norm(layer['attention_norm'], x, 'rms'), config)
    normed = reference.norm(layer['feed_forward_norm'], x, 'rms')
    x = x + 3 / 2 * reference.feed_forward(layer['feed_forward'], normed, 'swiglu')
  logits = reference.norm(p['final_norm'], x, 'rms') @ p['head']['kernel']
  assert distance(quick_jit(functools.partial(apply, config))(params, TOKENS)[0], logits) < 1e-5


def test_initial_deviations():
  width = 256
  config = ModelConfig(
    vocab_size=256, d_model=width, num_layers=2, num_heads=4, connection='completep:base_layers=1:base_width=64'
  )
  params = init(config, jax.random.key(0))
  for kernel, deviation in (
    (params['head']['kernel'], width**-0.5 * (64 / width) ** 0.5),
    (params['blocks']['attention']['output']['kernel'], width**-0.5),
    (params['blocks']['feed_forward']['down']['kernel'], config.ff_width**-0.5),
    (params['embedding']['token'], 1.0),
  ):
    assert float(jnp.std(kernel)) == pytest.approx(deviation, rel=0.02)


@pytest.mark.parametrize(
  'changes',
  [{'init': 'gpt2'}, {'tie_embeddings': True}, {'rezero': True}, {'parallel': True}, {'attention_residual': 0.5}],
)
def test_refused(changes):
  with pytest.raises(ConfigError, match=r'completep|model\.parallel|model\.rezero'):
    tiny(connection='completep', **changes)


@pytest.mark.parametrize('option', ['base_layers', 'base_width'])
def test_base_sizes_are_positive(option):
  with pytest.raises(ConfigError, match=f'completep:{option}=0: must be at least 1'):
    tiny(connection=f'completep:{option}=0')


def changes(connection: str, d_model: int, num_layers: int) -> tuple[float, float]:
  """The root mean square of the change of the last stream and of the logits after a few steps of AdamW."""
  config = tiny(connection=connection, d_model=d_model, d_ff=2 * d_model, num_heads=d_model // 8, num_layers=num_layers)
  optimizer = make_optimizer(
    OptimizerConfig(learning_rate=0.01, warmup_steps=0, schedule='constant', weight_decay=0, clip=0), STEPS, config
  )

  def loss(params):
    logits = jax.nn.log_softmax(apply(config, params, TOKENS[:, :-1])[0])
    return -jnp.mean(jnp.take_along_axis(logits, TOKENS[:, 1:, None], -1))

  def activations(params):
    states = []

    def record(state, tap):
      del tap
      states.append(state)
      return state, state

    logits = _apply(record, config, params, TOKENS)
    return states[-1], logits

  def run(key):
    params = init(config, key)

    def step(_, carry):
      params, state = carry
      moves, state = optimizer.update(jax.grad(loss)(params), state, params)
      return jax.tree.map(jnp.add, params, moves), state

    after, _ = jax.lax.fori_loop(0, STEPS, step, (params, optimizer.init(params)))
    return [jnp.sqrt(jnp.mean((a - b) ** 2)) for a, b in zip(activations(after), activations(params), strict=True)]

  sizes = np.mean(jax.jit(jax.vmap(run))(jax.random.split(jax.random.key(0), 4)), 1)
  return float(sizes[0]), float(sizes[1])


COMPLETEP = 'completep:base_layers=2:base_width=16'


def growth(connection, small, large) -> list[float]:
  """The exponent with which the changes grow from one (d_model, num_layers) to another."""
  ratio = math.prod(large) / math.prod(small)
  pairs = zip(changes(connection, *small), changes(connection, *large), strict=True)
  return [math.log(b / a) / math.log(ratio) for a, b in pairs]


@pytest.mark.slow
@pytest.mark.parametrize(('small', 'large'), [((16, 2), (128, 2)), ((16, 2), (16, 16))], ids=['width', 'depth'])
def test_the_changes_of_activations_are_flat_with_completep(small, large):
  assert np.abs(growth(COMPLETEP, small, large)).max() < 0.2
  assert max(growth('pre', small, large)) > 0.3
