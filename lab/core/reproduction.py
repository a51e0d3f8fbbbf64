"""Reproduction: a published claim, the values that would confirm it, and functions that measure and plot them."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:  # matplotlib takes a second to import, and listing the experiments does not need it
  from matplotlib.figure import Figure

Measured = Mapping[str, Any]  # numbers, and lists of them, by name: the content of measured.json
Bound = float | Sequence[float] | Sequence[Sequence[float]]


@dataclasses.dataclass(frozen=True)
class Expected:
  """A number or an array that a source states, with the range of measured values that agree with it.

  Attributes:
    quantity: its key in the measured values.
    description: what it is, in a few words.
    low, high: the smallest and largest values that agree with the source: numbers, or arrays with one per element.
    text: the two bounds as text.
    over_seeds: whether the first axis of the measured array is the seed. If so, the confidence interval of the mean is
      compared with the bounds.
  """

  quantity: str
  description: str
  low: Bound
  high: Bound
  text: str
  over_seeds: bool = False


def exactly(
  quantity: str, description: str, value: Bound, tolerance: float = 0.0, over_seeds: bool = False
) -> Expected:
  """The source states a value; a measured value may differ by the tolerance (rounding, or a published error)."""
  low, high = (np.asarray(value, float) + sign * tolerance for sign in (-1, 1))
  text = format_value(value) if tolerance < 1e-4 else f'{format_value(value)} ± {tolerance:g}'
  return Expected(quantity, description, low.tolist(), high.tolist(), text, over_seeds)


def between(quantity: str, description: str, low: Bound, high: Bound, over_seeds: bool = False) -> Expected:
  """The source states a range."""
  return Expected(quantity, description, low, high, f'{format_value(low)} to {format_value(high)}', over_seeds)


def at_least(quantity: str, description: str, low: float, over_seeds: bool = False) -> Expected:
  """The source states a lower bound."""
  return Expected(quantity, description, low, np.inf, f'{low:g} or more', over_seeds)


def at_most(quantity: str, description: str, high: float, over_seeds: bool = False) -> Expected:
  """The source states an upper bound."""
  return Expected(quantity, description, -np.inf, high, f'{high:g} or less', over_seeds)


def format_value(value: Any) -> str:
  """Formats a number with four significant digits, a list as (1, 1.5), a list of more than six numbers as its range."""
  if np.ndim(value) == 0:
    return 'not finite' if value is None else f'{value:.4g}'
  if np.size(value) > 6:
    return f'{format_value(np.min(value))} to {format_value(np.max(value))}'
  return f'({", ".join(map(format_value, value))})'


@dataclasses.dataclass(frozen=True)
class Reproduction:
  """A published claim to test. A file in experiments/ declares one as REPRODUCTION.

  Attributes:
    claim: the claim, in one sentence.
    source: the paper or article, with the section, figure or equation.
    expected: the values that decide the verdict.
    seconds: the approximate run time on two CPU cores.
    draw: draws the figure from the measured values alone.
    caption: what the figure shows.
    measure: a pure function that computes the measured values with BlockLab's own modules. Its keyword arguments are
      the settings. None if `read` is set.
    settings: the arguments of `measure`, such as sizes and seeds.
    full: changes to the settings for --scale=full, meant for a GPU.
    read: computes the measured values from the finished runs of the EXPERIMENT in the same file. None if `measure` is
      set.
    drift: the largest difference between machines that --check accepts: relative with `measure`, absolute with `read`.
    name: the name of its file; set by the registry.
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
