"""CompleteP (Dey et al. 2025): the forward pass by hand, initial deviations and refusals."""

import functools
import sys
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from model.config import ConfigError, ModelConfig
from model.transformer import apply

sys.path.append(str(Path(__file__).parents[1] / 'model'))
import numpy_reference as reference
from tiny_models import distance, float64, initial_params, model_params, quick_jit, tiny

TOKENS = jnp.asarray(np.random.default_rng(0).integers(0, 11, (8, 9)))


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
  params = initial_params(config)
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
