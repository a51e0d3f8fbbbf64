import pytest
from hypothesis import given, settings
from tiny_models import configs, tiny

from model.config import ModelConfig
from model.counts import flops_per_token, matmul_parameters, num_parameters


def parameters_by_formula(config):
  """The sizes of all kernels, biases and norms, added up by hand; (those in matrix products, all)."""
  d, f = config.d_model, config.ff_width
  width = config.head_dim or d // config.num_heads
  queries, keys = config.num_heads * width, (config.num_kv_heads or config.num_heads) * width
  ups = 2 if config.feed_forward in ('glu', 'swiglu', 'geglu', 'reglu', 'bilinear') else 1
  projections = 2 * (queries + keys) + config.attention_gate * queries
  kernels = config.num_layers * (d * projections + (ups + 1) * d * f) + d * config.vocab_size

  def norm(width):
    vectors, scalars = {'rms': (1, 0), 'layer': (1 + config.use_bias, 0), 'dyt': (2, 1), 'derf': (2, 2)}[config.norm]
    return vectors * width + scalars

  norms = {'none': 0, 'sandwich': 4}.get(config.connection, 1 if config.parallel else 2)
  layer = norms * norm(d) + config.qk_norm * 2 * norm(width) + config.rezero * 2
  layer += config.attention_sink * config.num_heads + config.attention_gate * config.use_bias * queries
  layer += config.use_bias * (queries + 2 * keys + d + ups * f + d)
  total = kernels + config.num_layers * layer + config.use_bias * config.vocab_size
  tables = config.vocab_size * (not config.tie_embeddings) + config.num_positions * (config.position == 'learned')
  total += tables * d
  outer_norms = config.embedding_norm + (config.connection in ('pre', 'sandwich', 'res_post'))
  return kernels, total + outer_norms * norm(d)


@settings(max_examples=150, deadline=None, derandomize=True)
@given(configs())
def test_counts_match_the_formula(config):
  assert (matmul_parameters(config), num_parameters(config)) == parameters_by_formula(config)


# Counted by hand: (L, D, F, H, K, vocabulary) = (2, 8, 12, 2, 4, 11) in the tiny config.
KERNELS = 2 * (4 * 8 * 8 + 3 * 8 * 12) + 8 * 11
BIASES = 2 * (4 * 8 + 2 * 12 + 8) + 11


@pytest.mark.parametrize(
  ('changes', 'others'),
  [
    ({}, 11 * 8 + 5 * 8),
    ({'connection': 'sandwich'}, 11 * 8 + 9 * 8),
    ({'connection': 'none'}, 11 * 8),
    ({'connection': 'deepnorm', 'rezero': False}, 11 * 8 + 4 * 8),
    ({'parallel': True, 'rezero': True}, 11 * 8 + 3 * 8 + 2 * 2),
    ({'norm': 'layer', 'use_bias': True, 'qk_norm': True}, BIASES + 11 * 8 + 2 * (5 * 8 + 2 * 2 * 4)),
    ({'attention_sink': True}, 11 * 8 + 5 * 8 + 2 * 2),
    ({'tie_embeddings': True, 'position': 'learned', 'embedding_norm': True}, 10 * 8 + 6 * 8),
  ],
  ids=str,
)
def test_parameters_counted_by_hand(changes, others):
  config = tiny(**changes)
  assert matmul_parameters(config) == KERNELS
  assert num_parameters(config) == KERNELS + others


def test_flops_counted_by_hand():
  config = ModelConfig(
    vocab_size=10, num_layers=2, d_model=16, num_heads=4, num_kv_heads=2, d_ff=24, feed_forward='relu', use_bias=True
  )
  attention = 16 * 16 + 16 * 8 + 16 * 8 + 16 * 16  # query, key, value, output
  feed_forward = 16 * 24 + 24 * 16
  matmul = 2 * (attention + feed_forward) + 16 * 10
  assert matmul_parameters(config) == matmul == 3232
  assert flops_per_token(config, 8) == 6 * 3232 + 6 * 2 * 8 * 16 == 20_928


def test_flops_without_a_causal_mask_and_with_a_tied_head_counted_by_hand():
  config = ModelConfig(
    vocab_size=7, num_layers=3, d_model=8, num_heads=2, head_dim=6, d_ff=5, causal=False, tie_embeddings=True,
    position='learned', connection='sandwich', qk_norm=True, remat=True,
  )  # fmt: skip
  matmul = 3 * (4 * 8 * 12 + 3 * 8 * 5) + 8 * 7  # gated: three kernels; a tied head is also a matrix product
  assert matmul_parameters(config) == matmul == 1568
  assert flops_per_token(config, 9) == 6 * 1568 + 12 * 3 * 9 * 12 == 13_296


def test_a_model_that_no_device_could_hold_is_counted_exactly():
  config = ModelConfig(num_layers=2**31 - 1, d_model=2**20, vocab_size=2**31 - 1)
  layer = 4 * 2**40 + 3 * 2**20 * config.ff_width + 2 * 2**20
  assert num_parameters(config) == (2**31 - 1) * layer + 2 * 2**20 * (2**31 - 1) + 2**20
