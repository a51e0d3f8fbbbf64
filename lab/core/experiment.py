"""Experiment: a question, a baseline, and variants that differ from it in one decision."""

import dataclasses
from collections.abc import Mapping
from typing import Any

Changes = Mapping[str, Any]  # config paths to values, as in {'model.connection': 'post'}


@dataclasses.dataclass(frozen=True)
class Grid:
  """The grid that --tune searches, the same for every variant.

  Attributes:
    learning_rates: the candidate learning rates.
    seeds: the seeds to train each rate with; must not include a seed of the experiment.
  """

  learning_rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
  seeds: tuple[int, ...] = (100, 101)


@dataclasses.dataclass(frozen=True)
class Experiment:
  """An experiment. A file in experiments/ declares one as EXPERIMENT.

  Attributes:
    question: the question that it answers, in one sentence.
    variants: maps the name of each variant to its changes to `base`; the first variant is the baseline of all others.
    base: changes to the scale file, shared by all variants.
    seeds: each sets the initial parameters and the data order; runs of two variants with the same seed are paired.
    config: the path of the scale file, relative to the project root.
    grid: the learning rates and seeds that --tune tries.
    name: the name of its file; set by the registry.
  """

  question: str
  variants: Mapping[str, Changes]
  base: Changes = dataclasses.field(default_factory=dict)
  seeds: tuple[int, ...] = (0, 1, 2, 3, 4)
  config: str = 'configs/tiny.py'
  grid: Grid = Grid()
  name: str = ''

  @property
  def baseline(self) -> str:
    """The variant that the others are compared with."""
    return next(iter(self.variants))
