"""Experiment: a question, a baseline, and variants that differ from it in one decision."""

import dataclasses
from collections.abc import Mapping
from typing import Any

Changes = Mapping[str, Any]  # paths of Config to values, as {'model.norm_placement': 'post'}


@dataclasses.dataclass(frozen=True)
class Grid:
  """What --tune gives every variant alike.

  Attributes:
    learning_rates: to choose from.
    seeds: to choose by; none of those that are reported.
  """

  learning_rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3, 1.6e-2)
  seeds: tuple[int, ...] = (100, 101)


@dataclasses.dataclass(frozen=True)
class Experiment:
  """What an experiment file declares.

  Attributes:
    question: what it answers, in one sentence.
    variants: name -> changes over `base`; the first is the baseline that all others are compared with.
    base: changes over the scale file, shared by every variant.
    seeds: of initial values and data order; seed k of a variant is paired with seed k of the baseline.
    config: the scale file, relative to the project.
    grid: what --tune chooses from.
    name: of its file; set by the registry.
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
