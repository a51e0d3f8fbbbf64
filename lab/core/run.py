"""Run: one variant of an experiment with one seed, and the directory that holds its files."""

import dataclasses
from pathlib import Path

from training.config import Config


@dataclasses.dataclass(frozen=True)
class Run:
  """One variant with one seed.

  Attributes:
    experiment: its name.
    variant: its name.
    seed: of initial values and data order, unless the flags set these apart.
    config: all that decides the run.
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
    """Its name in messages."""
    return f'{self.experiment}/{self.variant}/seed_{self.seed}'
