import functools

import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, float64, initial_params, model_params, quick_jit, tiny

from model.config import ConfigError
from model.connections.hyper_connections import composite_gain
from model.connections.manifold_hyper_connections import permutation_mixture, sinkhorn
from model.counts import flops_per_token, matmul_parameters, num_parameters
from model.transformer import apply, init

TOKENS = jnp.array([[3, 1, 4], [1, 5, 9]])
N = 3
DYNAMIC, STATIC = 'hyper_connections:streams=3', 'hyper_connections:streams=3:dynamic=false'
MANIFOLD, LITE = 'manifold_hyper_connections:streams=3', 'manifold_hyper_connections:streams=3:lite=true'
every_setting = pytest.mark.parametrize('setting', [DYNAMIC, STATIC, MANIFOLD, LITE])
# In lexicographic order: row i of a permutation's matrix has its 1 in column p(i).
PERMUTATIONS = [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)]


def rms_normed(x):
  return x / np.sqrt((x * x).mean(-1, keepdims=True) + reference.EPSILON)


def weights_by_token(p, streams, setting):
  """(A, C, B) for streams (n, D) at one position; p has the parameters of one sublayer."""
  if 'manifold' not in setting:
    mix, read, write = (p[f'{name}_weights'] for name in ('mix', 'read', 'write'))
    if setting == DYNAMIC:
      mix, read, write = mix.copy(), read.copy(), write.copy()
      for i, x in enumerate(rms_normed(streams)):
        mix[:, i] += p['mix_scale'] * np.tanh(x @ p['mix_projection']['kernel'])
        read[i] += p['mix_scale'] * np.tanh(x @ p['read_projection']['kernel'])[0]
        write[i] += p['write_scale'] * np.tanh(x @ p['write_projection']['kernel'])[0]
    return mix, read, write
  x = rms_normed(streams.reshape(-1))
  logits = {
    name: p[f'{name}_logits'] + p[f'{name}_scale'] * (x @ p[f'{name}_projection']['kernel'])
    for name in ('mix', 'read', 'write')
  }
  if setting == LITE:
    mix = np.zeros((N, N))
    for weight, permutation in zip(reference.softmax(logits['mix']), PERMUTATIONS, strict=True):
      for i in range(N):
        mix[i, permutation[i]] += weight
  else:
    mix = np.exp(logits['mix'].reshape(N, N))
    for _ in range(20):
      mix = mix / mix.sum(0)
      mix = mix / mix.sum(1)[:, None]
  return mix, reference.sigmoid(logits['read']), 2 * reference.sigmoid(logits['write'])


def sublayer_by_definition(p, streams, branch, setting, norm):
  """(weights, streams after) of streams (B, T, n, D); each position by itself, except in the branch."""
  batch, length = streams.shape[:2]
  weights = [[weights_by_token(p, streams[b, t], setting) for t in range(length)] for b in range(batch)]
  mix, read, write = (np.array([[weights[b][t][k] for t in range(length)] for b in range(batch)]) for k in range(3))
  y = branch(norm(np.einsum('bti,btid->btd', read, streams)))
  after = np.einsum('btij,btjd->btid', mix, streams) + write[..., None] * y[:, :, None]
  return (mix, read, write), after


def by_definition(params, tokens, config):
  """The logits, and (A, C, B) of every sublayer."""
  streams = np.repeat(params['embedding']['token'][tokens][:, :, None], N, 2)
  weights = []
  for index in range(config.num_layers):
    p = reference.layer(params['blocks'], index)
    for name, branch in (
      ('attention', lambda x, p=p: reference.attention(p['attention'], x, config)),
      ('feed_forward', lambda x, p=p: reference.feed_forward(p['feed_forward'], x, config.feed_forward)),
    ):
      own = {key.removeprefix(f'{name}_'): value for key, value in p.items() if key.startswith(f'{name}_')}
      norm = functools.partial(reference.norm, own['norm'], kind=config.norm)
      found, streams = sublayer_by_definition(own, streams, branch, config.connection, norm)
      weights.append(found)
  x = reference.norm(params['final_norm'], streams.sum(2), config.norm)
  return x @ params['head']['kernel'], [np.stack(parts) for parts in zip(*weights, strict=True)]


@functools.cache
def both(setting):
  """(logits, {name: weights}) of the model, weights by sublayer and averaged over tokens; and those by definition."""
  config = tiny(connection=setting)
  params = model_params(config)
  logits, stats = quick_jit(lambda p: apply(config, p, TOKENS, full_stats=True))(params)
  found = {name: np.stack([*stats['mean'][name].values()], 1) for name in ('mixing', 'reading', 'writing')}
  expected, weights = by_definition(float64(params), np.asarray(TOKENS), config)
  exact = dict(zip(found, (part.mean((1, 2)) for part in weights), strict=True))
  return (logits, {name: part.reshape(4, *part.shape[2:]) for name, part in found.items()}), (expected, exact)


@every_setting
def test_against_the_equations_in_float64(setting):
  (logits, weights), (expected, exact) = both(setting)
  assert distance(logits, expected) < 1e-5
  for name in exact:
    assert distance(weights[name], exact[name]) < 1e-5, name


START = [
  'hyper_connections',
  'manifold_hyper_connections:streams=2',
  *(
    pytest.param(setting, marks=pytest.mark.slow)
    for setting in (
      'hyper_connections:streams=1',
      'hyper_connections:streams=2',
      STATIC,
      'manifold_hyper_connections',
      LITE,
    )
  ),
]


@functools.cache
def logits_and_statistics(setting):
  config = tiny(connection=setting)
  run = quick_jit(lambda key: apply(config, init(config, key), TOKENS, full_stats=True))
  return run(jax.random.key(0))


@pytest.mark.slow
@pytest.mark.parametrize('setting', START)
def test_starts_as_pre(setting):
  """The logits, and the forward statistics, which are those of the mean of the streams."""
  (logits, stats), (expected, plain) = logits_and_statistics(setting), logits_and_statistics('pre')
  np.testing.assert_allclose(logits, expected, atol=2e-5)
  same = {name: stats['mean'][name] for name in plain['mean']}
  for found, exact in zip(
    jax.tree.leaves((same, stats['max'])), jax.tree.leaves((plain['mean'], plain['max'])), strict=True
  ):
    np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize('name', ['hyper_connections', 'manifold_hyper_connections'])
def test_each_sublayer_first_reads_the_next_stream(name):
  config = tiny(connection=f'{name}:streams=3')
  blocks = initial_params(config)['blocks']
  part = 'logits' if 'manifold' in name else 'weights'
  read = np.stack([blocks[f'attention_read_{part}'], blocks[f'feed_forward_read_{part}']], 1).reshape(4, 3)
  expected = np.eye(3)[[1, 2, 0, 1]]  # sublayers 1, 2, 3, 4
  np.testing.assert_array_equal(read, 2 * expected - 1 if 'manifold' in name else expected)
  for part in ('mix', 'read', 'write'):
    np.testing.assert_array_equal(blocks[f'attention_{part}_projection']['kernel'], 0)


@pytest.mark.parametrize('size', [1.0, 30.0])
def test_a_mixture_of_permutations_is_doubly_stochastic(size):
  mix = permutation_mixture(size * jax.random.normal(jax.random.key(0), (50, 24)), 4)
  assert mix.shape == (50, 4, 4)
  assert (mix >= 0).all()
  for axis in (-1, -2):
    np.testing.assert_allclose(mix.sum(axis), 1, rtol=2e-6)
  assert np.linalg.norm(float64(mix), 2, (-2, -1)).max() <= 1 + 2e-6


def test_sinkhorn_is_doubly_stochastic():
  mix = sinkhorn(jax.random.normal(jax.random.key(0), (50, 4, 4)))
  assert (mix > 0).all()
  np.testing.assert_allclose(mix.sum(-1), 1, rtol=2e-6)
  np.testing.assert_allclose(mix.sum(-2), 1, rtol=1e-3)
  products = functools.reduce(np.matmul, float64(mix))
  for matrices in (float64(mix), products):
    assert np.linalg.norm(matrices, 2, (-2, -1)).max() <= 1 + 1e-3


def test_sinkhorn_of_large_logits_has_rows_that_sum_to_1():
  """The columns need more iterations then, as the spectral norm does."""
  mix = sinkhorn(100 * jax.random.normal(jax.random.key(0), (50, 4, 4)))
  np.testing.assert_allclose(mix.sum(-1), 1, rtol=1e-4)
  gradient = jax.grad(lambda logits: jnp.sum(sinkhorn(logits) ** 2))(jnp.array([[200.0, 0.0], [0.0, -200.0]]))
  assert jnp.isfinite(gradient).all()


@pytest.mark.parametrize('setting', [MANIFOLD, LITE])
def test_no_depth_amplifies_the_streams_of_a_doubly_stochastic_mixing(setting):
  (_, weights), _ = both(setting)
  for gain in composite_gain(weights['mixing']):
    assert gain.shape == (4,)
    np.testing.assert_allclose(gain, 1, atol=2e-2 if setting == MANIFOLD else 1e-5)
  products = functools.reduce(lambda first, second: second @ first, float64(weights['mixing']))
  assert np.linalg.norm(products, 2, (-2, -1)).max() <= (1.01 if setting == MANIFOLD else 1 + 1e-5)


def test_composite_gain_counted_by_hand():
  first, second = np.array([[1.0, 2.0], [0.0, 1.0]]), np.array([[1.0, 0.0], [-3.0, 1.0]])
  rows, columns = composite_gain(jnp.array([first, second]))  # second @ first = [[1, 2], [-3, -5]]
  np.testing.assert_array_equal(rows, [3, 8])
  np.testing.assert_array_equal(columns, [3, 3])


# Counted by hand, for d_model 8 and 4 sublayers: logits or weights, scales, projections; multiply-adds of the sums.
COUNTS = {
  STATIC: (9 + 3 + 3, 0, 0),
  DYNAMIC: (9 + 3 + 3 + 2, 8 * (3 + 1 + 1), 2 * 8 * (3 + 1 + 1)),  # two more streams go through the projections
  MANIFOLD: (9 + 3 + 3 + 3, 24 * (9 + 3 + 3), 0),
  LITE: (6 + 3 + 3 + 3, 24 * (6 + 3 + 3), 0),
}


@every_setting
def test_parameters_and_flops_counted_by_hand(setting):
  others, kernels, repeated = COUNTS[setting]
  config, pre = tiny(connection=setting), tiny()
  assert num_parameters(config) - num_parameters(pre) == 4 * (others + kernels)
  assert matmul_parameters(config) - matmul_parameters(pre) == 4 * kernels
  sums = 8 * (3 + 9 + 3)  # 3 streams read, 3 mixed into each of 3, 3 written
  assert flops_per_token(config, 5) - flops_per_token(pre, 5) == 6 * 4 * (kernels + repeated + sums)


@pytest.mark.parametrize(
  ('setting', 'message'),
  [
    ('hyper_connections:streams=0', 'from 1 to 64'),
    ('hyper_connections:streams=65', 'from 1 to 64'),
    ('manifold_hyper_connections:streams=1', 'from 2 to 64'),
    ('manifold_hyper_connections:streams=6:lite=true', 'from 2 to 5'),
  ],
)
def test_refused(setting, message):
  with pytest.raises(ConfigError, match=f'streams=.*{message}'):
    tiny(connection=setting)


@pytest.mark.parametrize('changes', [{'rezero': True}, {'parallel': True}, {'attention_residual': 0.5}], ids=str)
def test_not_combined_with_options_of_one_stream(changes):
  with pytest.raises(ConfigError, match='hyper_connections'):
    tiny(connection=DYNAMIC, **changes)
