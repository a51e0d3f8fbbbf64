import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from model.config import ModelConfig
from model.transformer import param_shapes
from training.metrics import named_metrics, two_paths


@given(st.integers(0, 2**32), st.integers(1, 20), st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_two_paths_are_those_of_the_vectors(seed, size, skip_size, branch_size):
  skip, branch = np.random.default_rng(seed).normal(size=(2, size)) * [[skip_size], [branch_size]]
  paths = two_paths([skip @ skip, branch @ branch, skip @ branch])
  assert paths.keys() == {'total', 'skip', 'branch', 'cosine'}
  assert paths['skip'] == pytest.approx(np.linalg.norm(skip))
  assert paths['branch'] == pytest.approx(np.linalg.norm(branch))
  longer = max(paths['skip'], paths['branch'])
  assert paths['total'] == pytest.approx(np.linalg.norm(skip + branch), abs=1e-6 * longer)
  assert paths['cosine'] == pytest.approx(skip @ branch / np.linalg.norm(skip) / np.linalg.norm(branch))


def test_two_paths_that_cancel_sum_to_zero():
  assert two_paths([4.0, 4.0, -4.0]) == {'total': 0.0, 'skip': 2.0, 'branch': 2.0, 'cosine': -1.0}
  assert two_paths(np.float32([4.0, 4.0, -4.0001]))['total'] == 0.0  # rounding has gone below


def test_a_path_that_carries_nothing_has_no_direction():
  assert two_paths([9.0, 0.0, 0.0]) == {'total': 3.0, 'skip': 3.0, 'branch': 0.0, 'cosine': 0.0}
  assert two_paths([0.0, 9.0, 0.0]) == {'total': 3.0, 'skip': 0.0, 'branch': 3.0, 'cosine': 0.0}


@pytest.mark.parametrize('products', [[math.nan] * 3, [math.inf, 1.0, 0.0], [1.0, math.inf, math.nan]])
def test_numbers_that_are_not_finite_stay_so(products):
  paths = two_paths(products)
  assert not math.isfinite(paths['total'])
  assert {name for name in ('skip', 'branch') if math.isfinite(paths[name])} == {
    name for name, product in zip(('skip', 'branch'), products, strict=False) if math.isfinite(product)
  }


CONFIG = ModelConfig(
  vocab_size=11, num_layers=2, d_model=8, num_heads=2, norm='layer', use_bias=True, position='learned', rezero=True,
  qk_norm=True, embedding_norm=True,
)  # fmt: skip
IN_A_BLOCK = [
  'attention/query', 'attention/query/bias', 'attention/key', 'attention/key/bias', 'attention/value',
  'attention/value/bias', 'attention/output', 'attention/output/bias', 'attention/query_norm/gain',
  'attention/query_norm/bias', 'attention/key_norm/gain', 'attention/key_norm/bias', 'attention_norm/gain',
  'attention_norm/bias', 'attention_scale', 'feed_forward/gate', 'feed_forward/gate/bias', 'feed_forward/up',
  'feed_forward/up/bias', 'feed_forward/down', 'feed_forward/down/bias', 'feed_forward_norm/gain',
  'feed_forward_norm/bias', 'feed_forward_scale',
]  # fmt: skip
OUTSIDE = [
  'embedding/token', 'embedding/position', 'embedding_norm/gain', 'embedding_norm/bias', 'final_norm/gain',
  'final_norm/bias', 'head', 'head/bias',
]  # fmt: skip


def step_metrics(config: ModelConfig) -> dict:
  """A step's metrics with a number of its own in each place: 1, 2, 3, ..."""
  layers = config.num_layers
  numbers = iter(range(1, 10_000))

  def fill(*shape: int):
    return jnp.asarray([next(numbers) for _ in range(math.prod(shape))], jnp.float32).reshape(shape)

  def norms(path, leaf):
    return fill(layers) if path[0].key == 'blocks' else fill()

  return {
    'scalars': {'train/loss': fill(), 'nonfinite_in_a_row': jnp.asarray(next(numbers), jnp.int32)},
    'stream_gradient': {'blocks': fill(layers, 2, 3), 'output': fill(3)},
    'stream_rms': {'attention': fill(layers), 'feed_forward': fill(layers)},
    'grad_norms': jax.tree.map_with_path(norms, param_shapes(config)),
  }


def test_every_number_has_a_name():
  named = named_metrics(step_metrics(CONFIG))
  blocks, sublayers = ('block_00', 'block_01'), ('attention', 'feed_forward')
  expected = {'train/loss', 'nonfinite_in_a_row', 'stream_gradient/output/total'}
  for block in blocks:
    expected |= {f'grad_norm/{block}/{name}' for name in IN_A_BLOCK}
    expected |= {f'stream_rms/{block}/{sublayer}' for sublayer in sublayers}
    for sublayer in sublayers:
      expected |= {f'stream_gradient/{block}/{sublayer}/{part}' for part in ('total', 'skip', 'branch', 'cosine')}
  expected |= {f'grad_norm/{name}' for name in OUTSIDE}
  assert named.keys() == expected
  assert {type(value) for value in named.values()} == {float}


def test_every_name_has_its_number():
  metrics = step_metrics(CONFIG)
  named = named_metrics(metrics)
  norms, blocks = metrics['grad_norms'], metrics['grad_norms']['blocks']
  for layer in (0, 1):
    place = f'grad_norm/block_{layer:02d}'
    assert named[f'{place}/attention/query'] == blocks['attention']['query']['kernel'][layer]
    assert named[f'{place}/attention/query/bias'] == blocks['attention']['query']['bias'][layer]
    assert named[f'{place}/feed_forward_norm/gain'] == blocks['feed_forward_norm']['gain'][layer]
    assert named[f'{place}/attention_scale'] == blocks['attention_scale'][layer]
    for index, sublayer in enumerate(('attention', 'feed_forward')):
      assert named[f'stream_rms/block_{layer:02d}/{sublayer}'] == metrics['stream_rms'][sublayer][layer]
      skip, branch, inner = metrics['stream_gradient']['blocks'][layer, index].tolist()
      stream = f'stream_gradient/block_{layer:02d}/{sublayer}'
      assert named[f'{stream}/skip'] ** 2 == pytest.approx(skip)
      assert named[f'{stream}/branch'] ** 2 == pytest.approx(branch)
      assert named[f'{stream}/total'] ** 2 == pytest.approx(skip + branch + 2 * inner)
      assert named[f'{stream}/cosine'] == pytest.approx(inner / (skip * branch) ** 0.5)
  assert named['stream_gradient/output/total'] ** 2 == pytest.approx(float(metrics['stream_gradient']['output'][0]))
  assert named['grad_norm/head'] == norms['head']['kernel']
  assert named['grad_norm/head/bias'] == norms['head']['bias']
  assert named['grad_norm/embedding/token'] == norms['embedding']['token']
  assert named['grad_norm/final_norm/gain'] == norms['final_norm']['gain']
  assert (named['train/loss'], named['nonfinite_in_a_row']) == (1.0, 2.0)


def test_layers_are_numbered_so_that_names_sort():
  named = named_metrics(step_metrics(ModelConfig(num_layers=12, d_model=8)))
  queries = [name for name in named if name.endswith('attention/query')]
  assert queries == sorted(queries) == [f'grad_norm/block_{layer:02d}/attention/query' for layer in range(12)]
  assert len([name for name in named if '/block_11/' in name]) == len([name for name in named if '/block_03/' in name])


def test_without_inspection_there_are_the_scalars_alone():
  scalars = step_metrics(CONFIG)['scalars']
  assert named_metrics({'scalars': scalars}) == {'train/loss': 1.0, 'nonfinite_in_a_row': 2.0}
