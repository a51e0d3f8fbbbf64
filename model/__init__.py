"""The Transformer, and only the Transformer.

The letters that end an array's name are its axes:

  B  batch (sequences)        D  model width (the residual stream)
  T  positions (queries)      F  feed-forward width
  S  positions (keys)         V  vocabulary
  H  heads                    L  layers
  K  head width               N  heads of all sequences, B * H
                              C  blocks of positions

so `x_BTD` is the residual stream and `logits_BHTS` are attention logits.
"""

from model.config import ConfigError, ModelConfig
from model.transformer import Constrain, apply, init, unconstrained, zero_taps

__all__ = ['ConfigError', 'Constrain', 'ModelConfig', 'apply', 'init', 'unconstrained', 'zero_taps']
