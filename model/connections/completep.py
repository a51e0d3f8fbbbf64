"""A parametrisation for which the best learning rate does not depend on width or depth."""

import dataclasses

import jax

from model.connections.base import Connection, OptimizerFactors, Site, connection
from model.field_checks import ConfigError


@connection('completep')
class CompleteP(Connection):
  """x + (L0 / L) F(N(x)), learning rates and epsilon by width and depth (Dey et al. 2025, CompleteP, table 1, alpha 1).

  With m = d_model / base_width and n = num_layers / base_layers, relative to the base model:

                   initial variance   learning rate   epsilon      weight decay
    embedding      1                  1               1 / m
    norms, biases  1                  1               1 / (m n) in the blocks, otherwise 1 / m
    hidden kernels 1 / m (fan_in)     1 / m           1 / (m n)    m
    head           1 / m^2            1 / m           1            m

  The paper multiplies the logits by 1 / m and leaves the head's initial variance and learning rate alone; with AdamW
  the row above is the same training, since only the product counts. The other rows are those of the authors' code
  (nanoGPT-mup). `init_depth_scale` is not applied. Where the width changes, the width of a head should not: attention
  is divided by its square root.
  """

  optimizers = ('adamw',)

  @dataclasses.dataclass(frozen=True)
  class Options:
    """The options.

    Attributes:
      base_layers: L0, the number of blocks of the model for which the learning rate was tuned.
      base_width: its d_model.
    """

    base_layers: int = 2
    base_width: int = 64

    def __post_init__(self):
      for name in ('base_layers', 'base_width'):
        if getattr(self, name) < 1:
          raise ConfigError(f'model.connection=completep:{name}={getattr(self, name)}: must be at least 1')

  def __init__(self, config, sublayer, site):
    super().__init__(config, sublayer, site)
    self.norm = self.make_norm()

  def read(self, state: jax.Array, site: Site) -> jax.Array:
    return self.norm(state)

  def term(self, y_BTD: jax.Array, site: Site) -> jax.Array:
    return y_BTD / self.multiples(self.config)[1]

  def write(self, state: jax.Array, y_BTD: jax.Array, site: Site) -> jax.Array:
    return state + y_BTD

  @classmethod
  def multiples(cls, config) -> tuple[float, float]:
    """The width and the depth, as multiples of those of the base model."""
    options = config.connection_options
    return config.d_model / options.base_width, config.num_layers / options.base_layers

  @classmethod
  def depth_scale(cls, config, name, branch_outputs):
    return cls.multiples(config)[0] ** -0.5 if name == 'head' else 1.0

  @classmethod
  def optimizer_factors(cls, config, path):
    width, depth = cls.multiples(config)
    if path == 'head/kernel':
      return OptimizerFactors(learning_rate=1 / width, weight_decay=width)
    if path == 'head/bias':  # its gradient does not depend on the width
      return OptimizerFactors()
    epsilon = 1 / (width * depth) if path.startswith('blocks/') else 1 / width
    if path.startswith('blocks/') and path.endswith('/kernel'):
      return OptimizerFactors(learning_rate=1 / width, epsilon=epsilon, weight_decay=width)
    return OptimizerFactors(epsilon=epsilon)

  @classmethod
  def check(cls, config):
    super().check(config)
    if config.init != 'fan_in':
      raise ConfigError(
        f'model.connection=completep requires model.init=fan_in, its variance by width, not {config.init}'
      )
    if config.tie_embeddings:
      raise ConfigError(
        'model.connection=completep requires model.tie_embeddings=False: the embedding and the head have different '
        'learning rates'
      )
