import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from one_model import TOKENS, assert_matches, blocks, logits
from tiny_models import float64, model_params, quick_jit, tiny

from model.counts import flops_per_token, num_parameters
from model.distributions import Orthogonal
from model.field_checks import ConfigError
from model.initialisation import distribution
from model.transformer import apply, init, param_shapes, zero_taps

SHAPED = ('attention/value', 'attention/output', 'feed_forward/up', 'feed_forward/down')


def mixed_attention(p, x, alpha, beta, config):
  q, k, v = reference.queries_keys_values(p, x, config)
  attended = reference.attend(q, k, v, config.causal, p.get('sink'))
  heads = [alpha[h] * v[:, :, h] + beta[h] * attended[:, :, h] for h in range(config.num_heads)]
  return reference.linear(p['output'], np.concatenate(heads, -1))


def mixed_feed_forward(p, x, alpha, beta, name):
  """down(alpha up(x) + beta h) as the sum of both, so that neither is mixed within the branch."""
  only_kernel = {'kernel': p['down']['kernel']}
  linear = reference.linear(only_kernel, reference.linear(p['up'], x))
  return alpha * linear + beta * reference.feed_forward(p | {'down': only_kernel}, x, name) + p['down'].get('bias', 0.0)


def streams_of(params, config, tokens):
  """The embedding, and the stream after each block."""
  x = params['embedding']['token'][tokens]
  yield x
  for p, norm, attention, feed_forward in blocks(params, config):
    if config.connection_options.shaped:
      scalars = p['attention_alpha'], p['attention_beta']
      x = mixed_attention(p['attention'], norm('attention_norm', x), *scalars, config)
      scalars = p['feed_forward_alpha'], p['feed_forward_beta']
      x = mixed_feed_forward(p['feed_forward'], norm('feed_forward_norm', x), *scalars, config.feed_forward)
    else:
      x = feed_forward(norm('feed_forward_norm', attention(norm('attention_norm', x))))
    yield x


def forward(params, config):
  *_, x = streams_of(params, config, np.asarray(TOKENS))
  return reference.norm(params['final_norm'], x, config.norm)


@pytest.mark.parametrize(
  'changes',
  [
    {},
    {'feed_forward': 'gelu', 'use_bias': True, 'norm': 'layer', 'attention_sink': True},
    pytest.param({'connection': 'skipless:shaped=false', 'num_heads': 4, 'num_kv_heads': 2}, marks=pytest.mark.slow),
  ],
  ids=str,
)
def test_logits_match_the_equations(changes):
  assert_matches(tiny(**{'connection': 'skipless'} | changes), forward)


@pytest.mark.parametrize('feed_forward', ['swiglu', pytest.param('relu', marks=pytest.mark.slow)])
def test_the_gradients_of_the_scalars_match_differences_of_the_equations(feed_forward):
  config = tiny(connection='skipless', num_layers=1, feed_forward=feed_forward)
  params = model_params(config)
  names = ('attention_alpha', 'attention_beta', 'feed_forward_alpha', 'feed_forward_beta')

  def loss(scalars):
    return jnp.sum(jnp.square(apply(config, params | {'blocks': params['blocks'] | scalars}, TOKENS)[0]))

  found = quick_jit(jax.grad(loss))({name: params['blocks'][name] for name in names})
  exact = float64(params)

  def exact_loss(name, nudge):
    moved = exact | {'blocks': exact['blocks'] | {name: exact['blocks'][name] + nudge}}
    return np.sum(np.square(reference.linear(exact['head'], forward(moved, config))))

  for name in names:
    for element in np.ndindex(found[name].shape):
      nudge = np.zeros(found[name].shape)
      nudge[element] = 1e-5
      expected = (exact_loss(name, nudge) - exact_loss(name, -nudge)) / 2e-5
      np.testing.assert_allclose(found[name][element], expected, rtol=1e-3)


def test_unshaped_it_is_pre_norm_with_residual_scales_of_0():
  plain, scaled = tiny(connection='skipless:shaped=false'), tiny(attention_residual=0.0, feed_forward_residual=0.0)
  assert param_shapes(plain) == param_shapes(scaled)
  for keys, leaf in jax.tree.leaves_with_path(param_shapes(plain)):
    path = '/'.join(key.key for key in keys)
    shape = leaf.shape[path.startswith('blocks/') :]
    assert distribution(plain, path, shape) == distribution(scaled, path, shape)
  params = model_params(plain)
  np.testing.assert_allclose(logits(plain, params), logits(scaled, params), rtol=1e-5, atol=1e-6)


SIZES = {'d_model': 16, 'd_ff': 20, 'vocab_size': 40}


@functools.cache
def initial(connection, num_layers, feed_forward):
  """A config, and its initial values."""
  config = tiny(**SIZES, connection=connection, num_layers=num_layers, feed_forward=feed_forward)
  return config, jax.tree.map(np.asarray, quick_jit(functools.partial(init, config))(jax.random.key(0)))


def test_the_table_states_the_orthogonal_kernels():
  config = tiny(connection='skipless', init='xavier')
  sources = {
    path: distribution(config, f'blocks/{path}/kernel', (8, 8))
    for path in ('attention/query', 'attention/key', 'feed_forward/gate', *SHAPED)
  }
  up = 'blocks/feed_forward/up/kernel'
  assert [sources[name] for name in SHAPED] == [Orthogonal(), Orthogonal(), Orthogonal(), Orthogonal(up)]
  others = tiny(init='xavier')
  for name in ('attention/query', 'attention/key', 'feed_forward/gate'):
    assert sources[name] == distribution(others, f'blocks/{name}/kernel', (8, 8))


def test_initial_values():
  _, params = initial('skipless', 8, 'swiglu')
  p = params['blocks']
  np.testing.assert_array_equal(p['attention_alpha'], np.ones((8, 2)))
  np.testing.assert_array_equal(p['attention_beta'], np.zeros((8, 2)))
  np.testing.assert_array_equal(p['feed_forward_alpha'], np.ones(8))
  np.testing.assert_array_equal(p['feed_forward_beta'], np.zeros(8))
  kernels = []
  for index in range(8):
    one = reference.layer(p, index)
    value, output = one['attention']['value']['kernel'], one['attention']['output']['kernel']
    up, down = one['feed_forward']['up']['kernel'], one['feed_forward']['down']['kernel']
    for kernel in (value, output, up):
      np.testing.assert_allclose(kernel @ kernel.T, np.eye(16), atol=2e-6)
    np.testing.assert_array_equal(down, up.T)
    kernels += [value, output, up]
  assert len({kernel.tobytes() for kernel in kernels}) == 24  # drawn independently


@pytest.mark.slow
def test_the_other_parameters_start_as_without_shaping():
  (_, shaped), (_, plain) = initial('skipless', 8, 'swiglu'), initial('skipless:shaped=false', 8, 'swiglu')
  for part, name in (('attention', 'query'), ('attention', 'key'), ('feed_forward', 'gate')):
    np.testing.assert_array_equal(shaped['blocks'][part][name]['kernel'], plain['blocks'][part][name]['kernel'])
  np.testing.assert_array_equal(shaped['head']['kernel'], plain['head']['kernel'])


def test_parameters_and_flops():
  assert num_parameters(tiny(connection='skipless', num_layers=3)) == num_parameters(tiny(num_layers=3)) + 3 * (
    2 * 2 + 2
  )
  assert num_parameters(tiny(connection='skipless:shaped=false')) == num_parameters(tiny())
  assert flops_per_token(tiny(connection='skipless'), 4) == flops_per_token(tiny(), 4)


@pytest.mark.parametrize('connection', ['skipless', pytest.param('skipless:shaped=false', marks=pytest.mark.slow)])
def test_no_gradient_flows_along_the_skip_path_and_shaped_it_starts_with_the_same_norm_at_every_sublayer(connection):
  config, params = initial(connection, 8, 'swiglu')
  weights = jnp.asarray(np.random.default_rng(1).normal(size=(*TOKENS.shape, config.vocab_size)), jnp.float32)
  gradient = jax.grad(lambda taps: jnp.sum(weights * apply(config, params, TOKENS, taps)[0]))
  products = np.asarray(quick_jit(gradient)(zero_taps(config))['blocks'], np.float64)
  np.testing.assert_array_equal(products[..., [0, 2]], 0)
  branch = products[..., 1].ravel()[1:]  # without the first sublayer, whose norm divides by the size of the embedding
  if connection == 'skipless':
    np.testing.assert_allclose(branch, branch[-1], rtol=1e-4)
  else:
    assert branch.max() > 100 * branch.min() > 0


@pytest.mark.parametrize(
  ('changes', 'reason'),
  [
    ({'attention_residual': 0.5}, 'has no residual scale that can be set'),
    ({'feed_forward_residual': 0.0}, 'has no residual scale that can be set'),
    ({'rezero': True}, 'model.rezero requires'),
    ({'parallel': True}, 'model.parallel requires'),
    ({'num_heads': 4, 'num_kv_heads': 2}, 'num_kv_heads=2 must be 0'),
    ({'head_dim': 2}, 'head_dim 4 must be d_model 8'),
    ({'head_dim': 8}, 'head_dim 16 must be d_model 8'),
    ({'d_ff': 7}, 'its width 7 must be at least model.d_model=8'),
    ({'attention_gate': True}, 'model.attention_gate must be false'),
    ({'connection': 'skipless:shape=false'}, "did you mean 'shaped'"),
  ],
  ids=str,
)
def test_refusals(changes, reason):
  with pytest.raises(ConfigError, match=reason):
    tiny(**{'connection': 'skipless'} | changes)


@pytest.mark.parametrize(
  'changes', [{'num_heads': 4, 'num_kv_heads': 2}, {'head_dim': 2}, {'d_ff': 7}, {'attention_gate': True}], ids=str
)
def test_the_unshaped_form_needs_no_square_kernels(changes):
  tiny(connection='skipless:shaped=false', **changes)


def normed(x_TD):
  return x_TD / np.linalg.norm(x_TD, axis=-1, keepdims=True)


def effective_rank(x_TD):
  """The exponential of the entropy of the eigenvalues of the positions' Gram matrix (Roy & Vetterli 2007)."""
  share = np.linalg.svd(normed(x_TD), compute_uv=False) ** 2 / len(x_TD)
  return np.exp(-sum(p * np.log(p) for p in share if p > 0))


@pytest.mark.parametrize(
  ('activation', 'layers'),
  [('swiglu', 8), *[pytest.param(name, 32, marks=pytest.mark.slow) for name in ('swiglu', 'relu', 'gelu')]],
)
def test_the_kernel_of_the_positions_keeps_its_rank_with_depth_only_if_shaped(activation, layers):
  """In float64, at the initial values; without shaping, the shallower model has Gaussian kernels from NumPy."""
  tokens = np.arange(10)[None]
  ranks = {}
  for connection in ('skipless', 'skipless:shaped=false'):
    if connection == 'skipless' or layers > 8:
      config, params = initial(connection, layers, activation)
    else:
      config = tiny(**SIZES, connection=connection, num_layers=layers, feed_forward=activation)
      params = model_params(config)
    x, *streams = streams_of(float64(params), config, tokens)
    ranks[connection] = [effective_rank(stream[0]) for stream in (x, *streams)]
    if connection == 'skipless':
      gram, start = (normed(y[0]) @ normed(y[0]).T for y in (streams[-1], x))
      np.testing.assert_allclose(gram, start, atol=1e-4)
  kept, plain = ranks['skipless'], ranks['skipless:shaped=false']
  assert min(kept[0], plain[0]) > 6
  np.testing.assert_allclose(kept, kept[0], rtol=1e-4)
  assert plain[2] < 0.5 * plain[0]
  assert plain[8] < 0.5 * plain[2]
  assert plain[-1] < 1.01 or layers == 8
