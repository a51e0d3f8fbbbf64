"""Run: one variant of an experiment with one seed."""

import dataclasses
from pathlib import Path

from training.config import Config


@dataclasses.dataclass(frozen=True)
class Run:
  """One variant of an experiment with one seed.

  Attributes:
    experiment: the name of the experiment.
    variant: the name of the variant.
    seed: the seed of the initial parameters and the data order, unless flags set one of these seeds separately.
    config: the complete config.
    directory: <workdir>/<experiment>/<variant>/seed_<k>.
    tuned: whether its learning rate was chosen by --tune.
  """

  experiment: str
  variant: str
  seed: int
  config: Config
  directory: Path
  tuned: bool = False

  @property
  def label(self) -> str:
    """The name of the run in messages: experiment/variant/seed_k."""
    return f'{self.experiment}/{self.variant}/seed_{self.seed}'
