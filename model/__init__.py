"""The Transformer, as two pure functions: `init(config, key)` and `apply(config, params, tokens)`.

The suffix of an array's name gives its axes:

  B  batch (sequences)        D  model width (the residual stream)
  T  query positions          F  feed-forward width
  S  key positions            V  vocabulary
  H  heads                    L  layers
  K  head width               N  heads of all sequences, B * H
  1  an axis of length 1      C  blocks of positions

so `x_BTD` is the residual stream and `logits_BHTS` are attention logits.
"""

from model.activations import ACTIVATIONS, activation
from model.config import ConfigError, ModelConfig
from model.connections import Connection, Ends, Site, connection
from model.counts import flops_per_token, num_parameters
from model.norm import NORMS, norm
from model.transformer import Constrain, apply, init, unconstrained, zero_taps

__all__ = [
  'ACTIVATIONS',
  'NORMS',
  'ConfigError',
  'Connection',
  'Constrain',
  'Ends',
  'ModelConfig',
  'Site',
  'activation',
  'apply',
  'connection',
  'flops_per_token',
  'init',
  'norm',
  'num_parameters',
  'unconstrained',
  'zero_taps',
]
