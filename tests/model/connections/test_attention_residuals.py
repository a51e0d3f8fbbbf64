import jax
import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
import pytest
from tiny_models import distance, float64, initial_params, model_params, quick_jit, random_stream, tiny

from model.config import ConfigError
from model.connections import Site
from model.connections.attention_residuals import AttentionResiduals, read_sources
from model.counts import num_parameters
from model.transformer import apply

TOKENS = jnp.array([[3, 1, 4], [1, 5, 9]])


def mixture(w, sources):
  """sum_i softmax_i(w . v_i / rms(v_i)) v_i, over the sources v_i."""
  logits = [(v / np.sqrt((v**2).mean(-1, keepdims=True) + reference.EPSILON)) @ w for v in sources]
  return np.einsum('...i,i...d->...d', reference.softmax(np.stack(logits, -1)), np.stack(sources))


def expected_logits(params, config, lengths):
  """The logits, with one source for each group of this many blocks, or, if None, for each sublayer."""
  finished, group, starts = [params['embedding']['token'][np.asarray(TOKENS)]], [], np.cumsum([0, *(lengths or ())])
  for index in range(config.num_layers):
    p = reference.layer(params['blocks'], index)
    if lengths is None or index in starts:
      finished, group = [*finished, *([sum(group)] if group else [])], []
    for name in ('attention', 'feed_forward'):
      sources = [*finished, *([sum(group)] if group else [])]
      x = reference.norm(p[f'{name}_norm'], mixture(p[f'{name}_reader'], sources), config.norm)
      if name == 'attention':
        y = reference.attention(p['attention'], x, config)
      else:
        y = reference.feed_forward(p['feed_forward'], x, config.feed_forward)
      if lengths is None:
        finished.append(y)
      else:
        group.append(y)
  sources = [*finished, *([sum(group)] if group else [])]
  x = reference.norm(params['final_norm'], mixture(params['ends']['reader'], sources), config.norm)
  return x @ params['head']['kernel']


@pytest.mark.parametrize(
  ('groups', 'lengths'),
  [
    (2, (2, 1)),
    (0, None),
    pytest.param(8, (1, 1, 1), marks=pytest.mark.slow),
    pytest.param(1, (3,), marks=pytest.mark.slow),
  ],
)
def test_against_the_equations(groups, lengths):
  config = tiny(connection=f'attention_residuals:groups={groups}', num_layers=3, d_model=4, d_ff=6)
  params = model_params(config)
  logits = quick_jit(lambda: apply(config, params, TOKENS)[0])()
  assert distance(logits, expected_logits(float64(params), config, lengths)) < 3e-6


def three_sources():
  return tuple(random_stream(2, 3, 4, seed=seed)[0] for seed in range(3))


@pytest.mark.slow
def test_the_gradient_of_the_mixture_is_that_of_its_equation():
  w, weight, sources = random_stream(4, seed=5)[0], random_stream(2, 3, 4, seed=6)[0], three_sources()

  def plain(w, sources):
    v = jnp.stack(sources)
    p = jax.nn.softmax(v / jnp.sqrt(jnp.mean(v**2, -1, keepdims=True) + reference.EPSILON) @ w, 0)
    return jnp.sum(weight * jnp.sum(p[..., None] * v, 0))

  def ours(w, sources, written):
    return jnp.sum(weight * read_sources(w, sources, written, None))

  for used in (3, 2):
    expected = jax.grad(plain, (0, 1))(w, sources[:used])
    actual = jax.grad(ours, (0, 1))(w, sources, jnp.array(used == 3))
    assert distance((actual[0], actual[1][:used]), expected) < 1e-5
    assert all((gradient == 0).all() for gradient in actual[1][used:])


@pytest.mark.parametrize('groups', [0, 1, 2])
def test_the_weights_are_equal_at_the_start_and_sum_to_1(groups):
  config = tiny(connection=f'attention_residuals:groups={groups}', d_model=4)
  one, two, three = three_sources()
  ends = config.connection_class.ends(config)
  state = ends.open(one)
  earlier = (one,) if groups == 1 else (one, two)
  state = state._replace(earlier=earlier, current=(three,) * len(state.current))
  for index, sublayer in ((3, 'attention'), (4, 'feed_forward')):
    site = Site(jnp.array(index), 4)
    part = AttentionResiduals(config, sublayer, site)
    weights = part.weights(state, site)['reading']
    count = 2 if sublayer == 'attention' or groups == 1 else 3  # a group that has just begun is not read
    np.testing.assert_allclose(weights, [1 / count] * count + [0] * (len(weights) - count), rtol=1e-6)
    mean = sum((*earlier, three)[:count]) / count
    part.norm = lambda x: x
    assert distance(part.read(state, site), mean) < 1e-6
    part.reader[...] = jnp.arange(4.0)
    assert float(part.weights(state, site)['reading'].sum()) == pytest.approx(1, abs=1e-6)
  total = sum(earlier) + three * len(state.current)
  assert distance(AttentionResiduals.stream(state), total) < 1e-6


def test_the_finished_sources_are_computed_with_once_a_group():
  sources, w = three_sources(), random_stream(4, seed=5)[0]
  config = tiny(connection='attention_residuals', d_model=4)
  state = config.connection_class.ends(config).open(sources[0])
  state = state._replace(earlier=sources)
  fixed = AttentionResiduals.fixed(config, state)
  np.testing.assert_array_equal(read_sources(w, sources, None, fixed), read_sources(w, sources, None, None))


def test_parameters_and_initial_values():
  config = tiny(connection='attention_residuals')
  params = initial_params(config)
  assert num_parameters(config) == num_parameters(tiny()) + (2 * config.num_layers + 1) * config.d_model
  # Per sublayer, one for each source: twice one width; 1, 2, 2, 3 sources, and 3 for the head.
  assert config.connection_class.extra_products(config) == 2 * config.d_model * (1 + 2 + 2 + 3 + 3)
  full = tiny(connection='attention_residuals:groups=0')
  assert full.connection_class.extra_products(full) == 2 * full.d_model * (1 + 2 + 3 + 4 + 5)
  readers = (params['ends']['reader'], params['blocks']['attention_reader'], params['blocks']['feed_forward_reader'])
  assert all((reader == 0).all() for reader in readers)


def test_groups_are_even_and_no_more_than_the_blocks():
  lengths = {(8, 96): (12,) * 8, (8, 6): (1,) * 6, (5, 12): (3, 3, 2, 2, 2), (0, 4): (1,) * 4}
  for (groups, layers), expected in lengths.items():
    config = tiny(connection=f'attention_residuals:groups={groups}', num_layers=layers)
    assert AttentionResiduals.groups(config) == expected


def test_refusals():
  with pytest.raises(ConfigError, match='groups=-1: must be positive'):
    tiny(connection='attention_residuals:groups=-1')
  with pytest.raises(ConfigError, match='residual scale'):
    tiny(connection='attention_residuals', attention_residual=0.5)
