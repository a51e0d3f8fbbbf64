"""The parts of the NumPy model that every residual design shares: embedding, branches and head."""

import functools

import jax.numpy as jnp
import numpy as np
import numpy_reference as reference
from tiny_models import distance, float64, model_params, quick_jit

from model.transformer import apply

TOKENS = jnp.array([[3, 1, 4, 1], [5, 9, 2, 6]])


def logits(config, params, tokens=TOKENS):
  """Those of the model, from one compiled program."""
  return quick_jit(functools.partial(_logits, config))(params, tokens)


def _logits(config, params, tokens):
  return apply(config, params, tokens)[0]


def embedded(params):
  return params['embedding']['token'][np.asarray(TOKENS)]


def blocks(params, config):
  """For each block: its parameters, its norms and its two branches as functions."""
  for index in range(config.num_layers):
    p = reference.layer(params['blocks'], index)
    yield (
      p,
      lambda name, x, p=p: reference.norm(p[name], x, config.norm),
      lambda x, p=p: reference.attention(p['attention'], x, config),
      lambda x, p=p: reference.feed_forward(p['feed_forward'], x, config.feed_forward),
    )


def assert_matches(config, forward, tolerance=3e-6):
  """The logits of the model are those of `forward(params, config)`, which returns what the head's kernel reads."""
  params = model_params(config)
  exact = float64(params)
  head = exact['head']
  expected = reference.linear(head, forward(exact, config))
  assert distance(logits(config, params), expected) < tolerance
