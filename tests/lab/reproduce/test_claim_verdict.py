"""Verdicts on hand-written numbers."""

import math

import pytest

from lab.core.reproduction import at_least, at_most, between, exactly
from lab.reproduce.claim_verdict import compare, overall_verdict


def verdict_on(expected, measured):
  return compare(expected, {'a': measured}).verdict


@pytest.mark.parametrize(
  ('expected', 'measured', 'verdict'),
  [
    (exactly('a', '', 1.5), 1.5, 'reproduced'),
    (exactly('a', '', 1.5), math.nextafter(1.5, 2), 'not reproduced'),
    (exactly('a', '', 1.5, 0.1), 1.59, 'reproduced'),
    (exactly('a', '', 1.5, 0.1), 1.61, 'not reproduced'),
    (exactly('a', '', (1, 2)), [1.0, 2.0], 'reproduced'),
    (exactly('a', '', (1, 2)), [1.0, 2.1], 'not reproduced'),
    (exactly('a', '', ((1, 2), (3, 4))), [[1, 2], [3, 4]], 'reproduced'),
    (at_least('a', '', 2), 2, 'reproduced'),
    (at_least('a', '', 2), 1.99, 'not reproduced'),
    (at_most('a', '', 2), [1, 2.01], 'not reproduced'),
    (at_most('a', '', 2), None, 'not reproduced'),
    (at_least('a', '', 2), [3, None], 'not reproduced'),
  ],
)
def test_a_deterministic_value_is_reproduced_within_its_bounds(expected, measured, verdict):
  assert verdict_on(expected, measured) == verdict


# Four seeds, standard deviation 1: the interval of the mean is +- 3.182 * 1 / 2 (the t table at 3 degrees of freedom).
SEEDS = [-math.sqrt(1.5), 0.0, 0.0, math.sqrt(1.5)]


@pytest.mark.parametrize(
  ('low', 'high', 'verdict'),
  [
    (-1.60, 1.60, 'reproduced'),
    (-1.58, 1.60, 'inconclusive'),
    (-1.60, 1.58, 'inconclusive'),
    (1.58, 9, 'inconclusive'),
    (1.60, 9, 'not reproduced'),
    (-9, -1.60, 'not reproduced'),
  ],
)
def test_over_seeds_the_interval_decides(low, high, verdict):
  assert verdict_on(between('a', '', low, high, over_seeds=True), SEEDS) == verdict


def test_the_worst_element_of_an_array_over_seeds_decides():
  expected = at_most('a', '', 2, over_seeds=True)
  assert verdict_on(expected, [[s, s] for s in SEEDS]) == 'reproduced'
  assert verdict_on(expected, [[s, s + 2] for s in SEEDS]) == 'inconclusive'
  assert verdict_on(expected, [[s, s + 9] for s in SEEDS]) == 'not reproduced'


def test_one_seed_is_inconclusive():
  comparison = compare(exactly('a', '', 1, over_seeds=True), {'a': [1.0]})
  assert (comparison.verdict, comparison.measured) == ('inconclusive', '1 (one seed)')


def test_comparison_as_text():
  comparison = compare(exactly('a', 'size', 0.1, 0.5, over_seeds=True), {'a': SEEDS})
  assert (comparison.expected, comparison.measured, comparison.seeds) == ('0.1 ± 0.5', '0 [-1.591, 1.591]', 4)
  assert compare(exactly('a', '', (1, 1.5)), {'a': [1, 1.5]}).measured == '(1, 1.5)'
  assert compare(at_most('a', '', 9), {'a': list(range(10))}).measured == '0 to 9'


def test_the_overall_verdict_is_the_worst():
  good, bad = compare(at_most('a', '', 2), {'a': 1}), compare(at_most('a', '', 0), {'a': 1})
  unclear = compare(at_most('a', '', 0, over_seeds=True), {'a': SEEDS})
  assert overall_verdict([good, good]) == 'reproduced'
  assert overall_verdict([good, unclear]) == 'inconclusive'
  assert overall_verdict([unclear, bad, good]) == 'not reproduced'
