"""Experiment: a question, a baseline, and variants that differ from it in one decision."""

import dataclasses
from collections.abc import Mapping
from typing import Any

Changes = Mapping[str, Any]  # config paths to values, as in {'model.norm_placement': 'post'}


@dataclasses.dataclass(frozen=True)
class Grid:
  """The grid that --tune searches, the same for every variant.

  Attributes:
    learning_rates: to choose from.
    seeds: to train each rate with; none of them may be a seed of the experiment.
  """

  learning_rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
  seeds: tuple[int, ...] = (100, 101)


@dataclasses.dataclass(frozen=True)
class Experiment:
  """An experiment, which a file in experiments/ declares as EXPERIMENT.

  Attributes:
    question: the question that it answers, in one sentence.
    variants: for each name its changes to `base`; the first variant is the baseline for all others.
    base: changes to the scale file, shared by all variants.
    seeds: of the initial values and the data order; runs of two variants with the same seed are paired.
    config: the scale file, relative to the project.
    grid: of the learning rates that --tune tries.
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
    """The variant with which the others are compared."""
    return next(iter(self.variants))
