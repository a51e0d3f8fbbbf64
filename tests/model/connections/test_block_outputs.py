import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, float64, initial_params, model_params, quick_jit, tiny

from model.config import ConfigError
from model.counts import num_parameters
from model.transformer import apply

TOKENS = jnp.array([[3, 1, 4], [1, 5, 9]])


def block(params, index, x, config):
  """The output of a block of pre, in float64."""
  p = reference.layer(params['blocks'], index)
  x = x + reference.attention(p['attention'], reference.norm(p['attention_norm'], x, config.norm), config)
  z = reference.norm(p['feed_forward_norm'], x, config.norm)
  return x + reference.feed_forward(p['feed_forward'], z, config.feed_forward)


def head(params, x, config):
  return reference.norm(params['final_norm'], x, config.norm) @ params['head']['kernel']


def dense_former(params, config, every):
  """x_0, x_k, x_2k, ... are kept; after each of these blocks the stream is the sum of all with the next weights."""
  x = params['embedding']['token'][np.asarray(TOKENS)]
  kept, used, weights = [x], 0, params['ends']['weights']
  for index in range(config.num_layers):
    x = block(params, index, x, config)
    if (index + 1) % every == 0:
      kept.append(x)
      x = np.einsum('n,nbtd->btd', weights[used : used + len(kept)], np.stack(kept))
      used += len(kept)
  assert used == len(weights)
  return head(params, x, config)


def u_net(params, config):
  """A stack: the first half pushes its outputs, the second pops one before each block."""
  x, kept, skips = params['embedding']['token'][np.asarray(TOKENS)], [], list(params['ends']['skips'])
  half = config.num_layers // 2
  for index in range(config.num_layers):
    if index >= config.num_layers - half:
      x = x + skips.pop(0) * kept.pop()
    x = block(params, index, x, config)
    if index < half:
      kept.append(x)
  assert not kept
  assert not skips
  return head(params, x, config)


@pytest.mark.parametrize(
  ('setting', 'layers', 'expected'),
  [
    ('dense_former', 3, lambda params, config: dense_former(params, config, 1)),
    ('u_net', 5, u_net),
    *(
      pytest.param(*case, marks=pytest.mark.slow)
      for case in (
        ('dense_former:every=2', 5, lambda params, config: dense_former(params, config, 2)),
        ('dense_former:every=2', 4, lambda params, config: dense_former(params, config, 2)),
        ('u_net', 4, u_net),
        ('u_net', 2, u_net),
      )
    ),
  ],
)
def test_against_the_equations(setting, layers, expected):
  config = tiny(connection=setting, num_layers=layers, d_model=4, d_ff=6)
  params = model_params(config)
  logits = quick_jit(lambda: apply(config, params, TOKENS)[0])()
  assert distance(logits, expected(float64(params), config)) < 3e-6


@pytest.mark.slow
@pytest.mark.parametrize('setting', ['dense_former', 'dense_former:every=2', 'u_net'])
def test_starts_as_pre(setting):
  """To rounding: a sum with the weights 0 and 1 is exact, but XLA fuses the blocks of a scan in another way."""
  config, pre = tiny(connection=setting, num_layers=3), tiny(num_layers=3)
  params = initial_params(config)
  logits = quick_jit(lambda: apply(config, params, TOKENS)[0])()
  shared = {name: part for name, part in params.items() if name != 'ends'}
  assert distance(logits, quick_jit(lambda: apply(pre, shared, TOKENS)[0])()) < 1e-6


def test_parameters_and_products():
  for layers, every, sums in ((4, 1, 4), (5, 2, 2), (6, 3, 2)):
    config = tiny(connection=f'dense_former:every={every}', num_layers=layers)
    weights = sum(number + 1 for number in range(1, sums + 1))  # of the embedding and of each output so far
    assert num_parameters(config) - num_parameters(tiny(num_layers=layers)) == weights
    assert config.connection_class.extra_products(config) == config.d_model * weights
  for layers, pairs in ((2, 1), (5, 2), (6, 3)):
    config = tiny(connection='u_net', num_layers=layers)
    assert num_parameters(config) - num_parameters(tiny(num_layers=layers)) == pairs
    assert config.connection_class.extra_products(config) == 0


@pytest.mark.parametrize(
  ('changes', 'message'),
  [
    ({'connection': 'dense_former:every=0'}, 'every=0: must be at least 1'),
    ({'connection': 'dense_former:every=3'}, 'every must be at most model.num_layers=2'),
    ({'connection': 'u_net', 'num_layers': 1}, 'at least 2'),
    ({'connection': 'u_net', 'attention_residual': 0.5}, 'residual scale'),
    ({'connection': 'dense_former', 'parallel': True}, 'model.parallel'),
  ],
)
def test_refusals(changes, message):
  with pytest.raises(ConfigError, match=message):
    tiny(**changes)
