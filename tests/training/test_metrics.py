import math

import jax
import jax.numpy as jnp
import pytest

from model.config import ModelConfig
from model.transformer import param_shapes
from training.metrics import named_metrics

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


def step_metrics(config: ModelConfig, positions: int | None = None) -> dict:
  """A step's metrics, all numbers different: 1, 2, 3, ...; with `positions`, those of inspect.level=full."""
  layers = config.num_layers
  at = () if positions is None else (positions,)
  numbers = iter(range(1, 10_000))

  def fill(*shape: int):
    return jnp.asarray([next(numbers) for _ in range(math.prod(shape))], jnp.float32).reshape(shape)

  def norms(path, leaf):
    return fill(layers) if path[0].key == 'blocks' else fill()

  def sublayers():
    return {'attention': fill(layers), 'feed_forward': fill(layers)}

  scalars = {'train/loss': fill(), 'nonfinite_in_a_row': jnp.asarray(next(numbers), jnp.int32)}
  stats: dict = {'mean': {'stream_square': sublayers()}, 'max': {}}
  if positions is not None:
    others = ('input_square', 'branch_square', 'branch_inner', 'relative_residual')
    stats['mean'] |= {name: sublayers() for name in others} | {'attention_entropy': fill(layers, 2)}
    stats['max'] = {'largest_logit': fill(layers, 2), 'active_units': jnp.zeros((layers, 4))}
  return {
    'scalars': scalars,
    'stream_gradient': {'blocks': fill(layers, 2, *at, 3), 'output': fill(*at, 3)},
    'stats': stats,
    'parameter_norms': {
      kind: jax.tree.map_with_path(norms, param_shapes(config)) for kind in ('grad_norm', 'update_norm', 'param_norm')
    },
  }


KINDS = ('grad_norm', 'update_norm', 'param_norm', 'update_ratio')
PARTS = ('total', 'skip', 'branch', 'cosine', 'gain')


def test_every_number_has_a_name():
  named = named_metrics(step_metrics(CONFIG))
  blocks, sublayers = ('block_00', 'block_01'), ('attention', 'feed_forward')
  expected = {'train/loss', 'nonfinite_in_a_row', 'stream_gradient/output/total'}
  for block in blocks:
    expected |= {f'{kind}/{block}/{name}' for kind in KINDS for name in IN_A_BLOCK}
    expected |= {f'stream_rms/{block}/{sublayer}' for sublayer in sublayers}
    for sublayer in sublayers:
      expected |= {f'stream_gradient/{block}/{sublayer}/{part}' for part in PARTS}
  expected |= {f'{kind}/{name}' for kind in KINDS for name in OUTSIDE}
  assert named.keys() == expected
  assert {type(value) for value in named.values()} == {float}


def test_full_adds_names():
  metrics = step_metrics(CONFIG, positions=3)
  named = named_metrics(metrics)
  plain = named_metrics(step_metrics(CONFIG)).keys()
  sites = [f'block_0{layer}/{name}' for layer in (0, 1) for name in ('attention', 'feed_forward')]
  heads = [f'block_0{layer}/head_{head}' for layer in (0, 1) for head in (0, 1)]
  more = {f'stream_gradient_by_position/{site}/{part}' for site in sites for part in PARTS}
  more |= {'stream_gradient_by_position/output/total', 'silent_units/block_00', 'silent_units/block_01'}
  by_sublayer = ('branch_rms', 'branch_ratio', 'branch_cosine', 'relative_residual')
  more |= {f'{name}/{site}' for name in by_sublayer for site in sites}
  more |= {f'{name}/{head}' for name in ('attention_entropy', 'largest_logit') for head in heads}
  assert named.keys() == plain | more
  assert named['largest_logit/block_01/head_0'] == float(metrics['stats']['max']['largest_logit'][1, 0])
  assert named['relative_residual/block_01/attention'] == metrics['stats']['mean']['relative_residual']['attention'][1]
  for site in sites:
    totals, whole = (named[f'{kind}/{site}/total'] for kind in ('stream_gradient_by_position', 'stream_gradient'))
    assert [type(value) for value in totals] == [float] * 3
    assert sum(total**2 for total in totals) == pytest.approx(whole**2)


def test_every_name_has_the_right_number():
  metrics = step_metrics(CONFIG)
  named = named_metrics(metrics)
  norms = metrics['parameter_norms']['grad_norm']
  blocks = norms['blocks']
  for layer in (0, 1):
    site = f'grad_norm/block_{layer:02d}'
    assert named[f'{site}/attention/query'] == blocks['attention']['query']['kernel'][layer]
    assert named[f'{site}/attention/query/bias'] == blocks['attention']['query']['bias'][layer]
    assert named[f'{site}/feed_forward_norm/gain'] == blocks['feed_forward_norm']['gain'][layer]
    assert named[f'{site}/attention_scale'] == blocks['attention_scale'][layer]
    update, param = (metrics['parameter_norms'][kind]['blocks'] for kind in ('update_norm', 'param_norm'))
    query = (update['attention']['query']['kernel'][layer], param['attention']['query']['kernel'][layer])
    names = (f'{kind}/block_{layer:02d}/attention/query' for kind in ('update_norm', 'param_norm', 'update_ratio'))
    assert [named[name] for name in names] == pytest.approx([*map(float, query), float(query[0]) / float(query[1])])
    for index, sublayer in enumerate(('attention', 'feed_forward')):
      square = float(metrics['stats']['mean']['stream_square'][sublayer][layer])
      assert named[f'stream_rms/block_{layer:02d}/{sublayer}'] == pytest.approx(square**0.5)
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
  queries = [name for name in named if name.startswith('grad_norm/') and name.endswith('attention/query')]
  assert queries == sorted(queries) == [f'grad_norm/block_{layer:02d}/attention/query' for layer in range(12)]
  assert len([name for name in named if '/block_11/' in name]) == len([name for name in named if '/block_03/' in name])


def test_without_inspection_only_scalars_are_logged():
  scalars = step_metrics(CONFIG)['scalars']
  assert named_metrics({'scalars': scalars}) == {'train/loss': 1.0, 'nonfinite_in_a_row': 2.0}
