import functools

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from tiny_models import configs, initial_params, quick_jit, tiny

from model.config import ModelConfig
from model.distributions import Constant, Normal, Orthogonal, draw_one
from model.initialisation import depth_scale, distribution, initial_values
from model.transformer import init, param_shapes


def by_path(tree) -> dict:
  return {'/'.join(part.key for part in path): leaf for path, leaf in jax.tree.leaves_with_path(tree)}


@settings(max_examples=100, deadline=None, derandomize=True)
@given(configs())
def test_the_table_has_a_row_for_every_kernel_embedding_gain_and_bias(config):
  for path, leaf in by_path(param_shapes(config)).items():
    source = distribution(config, path, leaf.shape[1:] if path.startswith('blocks/') else leaf.shape)
    assert (source is None) == path.endswith(('_scale', '/sink', '/alpha', '/shift'))
    assert source is None or isinstance(source, Constant) == path.endswith(('gain', 'bias'))


def test_a_parameter_that_the_table_lacks_has_the_values_of_its_class():
  params = by_path(initial_params(tiny(rezero=True)))
  np.testing.assert_array_equal(params['blocks/attention_scale'], [0.0, 0.0])


# Widths that all differ, large enough to estimate a standard deviation from one layer.
SIZES = {
  'vocab_size': 200, 'num_layers': 3, 'd_model': 48, 'num_heads': 4, 'num_kv_heads': 2, 'head_dim': 16, 'd_ff': 80,
  'num_positions': 40, 'position': 'learned', 'use_bias': True, 'norm': 'layer', 'qk_norm': True,
}  # fmt: skip
FANS = {
  'attention/query': (48, 64),
  'attention/key': (48, 32),
  'attention/value': (48, 32),
  'attention/output': (64, 48),
  'feed_forward/gate': (48, 80),
  'feed_forward/up': (48, 80),
  'feed_forward/down': (80, 48),
}
LAST = ('attention/output', 'feed_forward/down')
DEEPNORM = ('attention/value', 'attention/output', 'feed_forward/gate', 'feed_forward/up', 'feed_forward/down')
SCHEMES = {
  'fan_in': lambda fan_in, fan_out: 1 / np.sqrt(fan_in),
  'xavier': lambda fan_in, fan_out: np.sqrt(2 / (fan_in + fan_out)),
  'gpt2': lambda fan_in, fan_out: 0.02,
}


def expected_deviations(scheme, depth, placement):
  """The standard deviation of each random parameter, by the DeepNorm and GPT-2 papers and Glorot's rule."""
  deviations = {
    'embedding/token': 0.02 if scheme == 'gpt2' else 1.0,
    'embedding/position': 0.01 if scheme == 'gpt2' else 0.1,
    'head/kernel': 0.02 if scheme == 'gpt2' else 1 / np.sqrt(48),
  }
  for name, fans in FANS.items():
    scale = 1.0
    if placement == 'deepnorm':
      scale = 24**-0.25 if name in DEEPNORM else 1.0
    elif depth and name in LAST:
      scale = 1 / np.sqrt(6)
    deviations[f'blocks/{name}/kernel'] = SCHEMES[scheme](*fans) * scale
  return deviations


@pytest.mark.parametrize('placement', ['pre', 'post', 'sandwich', 'deepnorm', 'none'])
@pytest.mark.parametrize('depth', [True, False])
@pytest.mark.parametrize('scheme', SCHEMES)
def test_the_table_matches_the_papers(scheme, depth, placement):
  config = ModelConfig(init=scheme, init_depth_scale=depth, connection=placement, **SIZES)
  sources = {
    path: distribution(config, path, leaf.shape[path.startswith('blocks/') :])
    for path, leaf in by_path(param_shapes(config)).items()
  }
  drawn = {path: source.standard_deviation for path, source in sources.items() if isinstance(source, Normal)}
  assert drawn == pytest.approx(expected_deviations(scheme, depth, placement), rel=1e-6)
  for path, source in sources.items():
    if path not in drawn:
      assert source.value == (1.0 if path.endswith('gain') else 0.0)


@pytest.mark.parametrize(
  ('scheme', 'depth', 'placement'),
  [
    ('fan_in', True, 'pre'),
    pytest.param('xavier', True, 'deepnorm', marks=pytest.mark.slow),
    pytest.param('gpt2', False, 'pre', marks=pytest.mark.slow),
  ],
)
def test_drawn_values_have_the_standard_deviation_of_the_table(scheme, depth, placement):
  config = ModelConfig(init=scheme, init_depth_scale=depth, connection=placement, **SIZES)
  params = by_path(quick_jit(functools.partial(init, config))(jax.random.key(0)))
  expected = expected_deviations(scheme, depth, placement)
  for path, leaf in params.items():
    assert leaf.dtype == np.float32
    for layer in leaf if path.startswith('blocks/') else leaf[None]:
      values = np.asarray(layer, np.float64)
      if path not in expected:
        np.testing.assert_array_equal(values, 1.0 if path.endswith('gain') else 0.0)
        continue
      n, deviation = values.size, expected[path]
      assert abs(values.std() / deviation - 1) < 4.5 / np.sqrt(2 * n), path
      assert abs(values.mean() / deviation) < 4.5 / np.sqrt(n), path
      within = (np.abs(values) < deviation).mean()  # 0.6827 of a normal distribution
      assert abs(within - 0.6827) < 4.5 * np.sqrt(0.6827 * 0.3173 / n), path


def square(**changes):
  """A config whose kernels all have the same shape, so that only their paths differ."""
  return ModelConfig(**({'vocab_size': 8, 'num_layers': 2, 'd_model': 8, 'd_ff': 8, 'num_heads': 2} | changes))


@functools.cache
def values(config, seed=0):
  drawn = quick_jit(functools.partial(init, config))(jax.random.key(seed))
  return {path: np.asarray(leaf) for path, leaf in by_path(drawn).items()}


VARIANTS = [
  *[{'connection': name} for name in ('post', 'sandwich', 'res_post', 'none')],
  *[{'feed_forward': name} for name in ('relu', 'gelu', 'geglu', 'bilinear')],
  {'num_heads': 1},
  {'num_heads': 4},
  {'norm': 'layer', 'use_bias': True, 'qk_norm': True, 'embedding_norm': True},
  {'rezero': True},
  {'parallel': True},
  {'tie_embeddings': True},
  {'position': 'learned', 'num_positions': 8},
  {'remat': True, 'dtype': 'bfloat16', 'dropout': 0.1, 'attention_residual': 0.0},
]


@pytest.mark.parametrize(
  'changes', [pytest.param(changes, marks=[pytest.mark.slow] * (k % 5 > 0)) for k, changes in enumerate(VARIANTS)]
)
def test_variants_share_initial_values(changes):
  baseline, variant = values(square()), values(square(**changes))
  shared = baseline.keys() & variant.keys()
  assert len(shared) >= len(baseline) - 3
  for path in shared:
    np.testing.assert_array_equal(variant[path], baseline[path], err_msg=path)


@pytest.mark.slow
def test_deepnorm_shares_initial_values_up_to_its_scale():
  baseline, deepnorm = values(square(init_depth_scale=False)), values(square(connection='deepnorm'))
  for path in deepnorm.keys() & baseline.keys():
    name = path.removeprefix('blocks/').removesuffix('/kernel')
    np.testing.assert_allclose(deepnorm[path], baseline[path] * (0.5 if name in DEEPNORM else 1.0), rtol=1e-6)


@pytest.mark.slow
def test_a_deeper_model_starts_with_the_layers_of_a_shallower_one():
  for depth in (False, True):
    shallow, deep = (values(square(num_layers=layers, init_depth_scale=depth)) for layers in (2, 4))
    for path, value in shallow.items():
      first = deep[path][: len(value)]
      if depth and path.removeprefix('blocks/').removesuffix('/kernel') in LAST:
        np.testing.assert_allclose(first * np.sqrt(8), value * np.sqrt(4), rtol=1e-6, err_msg=path)
      else:
        np.testing.assert_array_equal(first, value, err_msg=path)


@pytest.mark.slow
def test_jitted_and_eager_values_are_identical():
  config = square()  # the standard deviations are not powers of two, multiplication by which would not round
  shapes = param_shapes(config)
  some = {'head': shapes['head'], 'blocks': {'attention': {'output': shapes['blocks']['attention']['output']}}}
  draw = functools.partial(initial_values, config, some, constructed=lambda: some)
  compiled, eager = by_path(jax.jit(draw)(jax.random.key(0))), by_path(draw(jax.random.key(0)))
  assert len(compiled) == 2
  for path, value in compiled.items():
    np.testing.assert_array_equal(value, eager[path], err_msg=path)


def test_values_differ_by_path_layer_and_seed():
  drawn = []
  for seed in (0, 1):
    for path, value in values(square(init='gpt2', init_depth_scale=False), seed).items():
      if not path.endswith('gain'):
        deviation = 0.02
        drawn += [np.round(layer / deviation, 3).tobytes() for layer in value.reshape(-1, 8, 8)]
  assert len(drawn) == len(set(drawn)) == 2 * (2 * 7 + 2)


def test_deepnorm_kernel_scale():
  config = tiny(connection='deepnorm', num_layers=12)
  assert depth_scale(config, 'blocks/feed_forward/up/kernel') == pytest.approx(0.3195, abs=5e-5)
  assert depth_scale(config, 'blocks/attention/query/kernel') == 1


@pytest.mark.parametrize(
  'shape', [(4, 4), *[pytest.param(shape, marks=pytest.mark.slow) for shape in ((3, 4), (4, 3))]]
)
def test_orthogonal_kernels_have_orthonormal_rows_or_columns(shape):
  keys = jax.random.split(jax.random.key(0), 4000)
  values = np.asarray(jax.jit(jax.vmap(functools.partial(draw_one, Orthogonal(), shape)))(keys))
  wide = values if shape[0] <= shape[1] else values.swapaxes(1, 2)
  products = wide @ wide.swapaxes(1, 2)
  np.testing.assert_allclose(products, np.broadcast_to(np.eye(min(shape)), products.shape), atol=2e-6)
  # Uniformly distributed: each element has mean 0, which without the signs of R it has not, and variance 1 / 4.
  assert np.abs(values.mean(0)).max() < 4.5 * 0.5 / np.sqrt(4000)
  np.testing.assert_allclose((values**2).mean(0), 1 / 4, atol=4.5 * 0.25 / np.sqrt(4000))
