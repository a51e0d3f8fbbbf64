"""Reproduction: a published claim, the values it should give, and how BlockLab measures and draws them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # matplotlib takes a second to import, and who lists experiments draws nothing
  from matplotlib.figure import Figure

Measured = Mapping[str, Any]  # numbers, and lists of them, by name: what measured.json holds
Bound = float | Sequence[float] | Sequence[Sequence[float]]


@dataclasses.dataclass(frozen=True)
class Expected:
  """One number, or an array of them, that a source gives, and how far from it still counts as the same.

  Attributes:
    quantity: its name in what is measured.
    says: what it is, in a few words.
    low, high: the least and the most that agree with the source; of one number, or one for each of an array.
    text: the two as a person reads them.
    over_seeds: the first axis of what is measured is the seed: then the interval of the mean is judged.
  """

  quantity: str
  says: str
  low: Bound
  high: Bound
  text: str
  over_seeds: bool = False


def exactly(quantity: str, says: str, value: Bound, tolerance: float = 0.0, over_seeds: bool = False) -> Expected:
  """The source gives `value`; what is measured may differ from it by `tolerance`, for rounding or as published."""
  low, high = (np.asarray(value, float) + sign * tolerance for sign in (-1, 1))
  text = spell(value) if tolerance < 1e-4 else f'{spell(value)} ± {tolerance:g}'
  return Expected(quantity, says, low.tolist(), high.tolist(), text, over_seeds)


def between(quantity: str, says: str, low: Bound, high: Bound, over_seeds: bool = False) -> Expected:
  """The source gives a range."""
  return Expected(quantity, says, low, high, f'{spell(low)} to {spell(high)}', over_seeds)


def at_least(quantity: str, says: str, low: float, over_seeds: bool = False) -> Expected:
  """The source gives a lower bound."""
  return Expected(quantity, says, low, np.inf, f'{low:g} or more', over_seeds)


def at_most(quantity: str, says: str, high: float, over_seeds: bool = False) -> Expected:
  """The source gives an upper bound."""
  return Expected(quantity, says, -np.inf, high, f'{high:g} or less', over_seeds)


def spell(value: Any) -> str:
  """A number in four digits, a list as (1, 1.5), a long one by its ends."""
  if np.ndim(value) == 0:
    return 'not finite' if value is None else f'{value:.4g}'
  if np.size(value) > 6:
    return f'{spell(np.min(value))} to {spell(np.max(value))}'
  return f'({", ".join(map(spell, value))})'


@dataclasses.dataclass(frozen=True)
class Reproduction:
  """What a file declares as REPRODUCTION: a claim that can fail.

  Attributes:
    claim: what the source says, in one sentence.
    source: the paper or article, with the section, figure or equation.
    expected: the values that decide the verdict.
    seconds: about how long it takes on two cores.
    draw: the figure, from what was measured and nothing else.
    caption: what the figure shows.
    measure: computes it through BlockLab's own modules, from the settings as keyword arguments; pure. None: see read.
    settings: what `measure` is given: sizes, seeds.
    full: changes of the settings at --scale=full, for a GPU.
    read: computes it from the finished runs of the EXPERIMENT that the same file declares, instead of `measure`.
    drift: the relative difference that another machine may show without --check naming it; with `read`, the absolute.
    name: of its file; set by the registry.
  """

  claim: str
  source: str
  expected: tuple[Expected, ...]
  seconds: float
  draw: 'Callable[[Measured], Figure]'
  caption: str
  measure: Callable[..., Mapping[str, Any]] | None = None
  settings: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  full: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  read: Callable[[Any], Mapping[str, Any]] | None = None
  drift: float = 1e-3
  name: str = ''

  def at_scale(self, scale: str) -> dict[str, Any]:
    """The settings at a scale, `small` or `full`."""
    return {**self.settings, **(self.full if scale == 'full' else {})}
