"""The statistics, compared with tables and worked examples."""

import numpy as np
import pytest
from scipy import stats

from lab.analysis import statistics
from lab.analysis.recorded_run import Score
from lab.analysis.statistics import compare_paired


def of_differences(*differences, margin=0.02):
  """The comparison of runs whose losses differ by these numbers, seed by seed."""
  baseline = {seed: Score(3.0 + 0.1 * seed) for seed in range(len(differences))}
  variant = {seed: Score(3.0 + 0.1 * seed + difference) for seed, difference in enumerate(differences)}
  return compare_paired(variant, baseline, margin)


def test_interval_is_that_of_the_t_table():
  # mean .10, standard deviation sqrt(.001), t(.975, 4) = 2.776: .10 -+ 2.776 * .03162 / sqrt(5)
  found = of_differences(0.06, 0.08, 0.10, 0.12, 0.14)
  assert found.difference == pytest.approx(0.10)
  assert (found.low, found.high) == pytest.approx((0.0607, 0.1393), abs=1e-4)
  # t(.975, 1) = 12.706: .15 -+ 12.706 * .0707 / sqrt(2)
  assert statistics.interval([0.1, 0.2]) == pytest.approx((-0.4853, 0.7853), abs=1e-4)


@pytest.mark.parametrize('n', [2, 3, 5])
def test_interval_covers_the_truth_19_times_in_20(n):
  rng = np.random.default_rng(0)
  samples = rng.normal(0.3, 2.0, size=(3000, n))
  intervals = [statistics.interval(sample) for sample in samples]
  covered = np.mean([low <= 0.3 <= high for low, high in intervals])
  assert covered == pytest.approx(0.95, abs=0.015)  # 4 standard errors


def test_p_value_is_that_of_the_paired_t_test():
  rng = np.random.default_rng(1)
  a, b = rng.normal(3, 0.1, 6), rng.normal(3.1, 0.1, 6)
  found = compare_paired(dict(enumerate(map(Score, a))), dict(enumerate(map(Score, b))), 0.02)
  assert found.p == pytest.approx(stats.ttest_rel(a, b).pvalue)


@pytest.mark.parametrize(
  ('differences', 'verdict', 'direction'),
  [
    ((-0.06, -0.08, -0.10, -0.12, -0.14), 'better', 'better'),
    ((0.06, 0.08, 0.10, 0.12, 0.14), 'worse', 'worse'),
    ((-0.001, 0.002, 0.0), 'equivalent', ''),
    ((-0.05, 0.0, 0.02), 'inconclusive', ''),
    ((-0.024, -0.004, 0.004), 'inconclusive', ''),
    ((0.010, 0.011, 0.012), 'equivalent', 'worse'),  # a difference, but smaller than the margin
    ((-0.010, -0.011, -0.012), 'equivalent', 'better'),
    ((0.00, 0.05, 0.10), 'inconclusive', ''),
    ((-0.018, -0.022, -0.026), 'inconclusive', 'better'),
    ((0.018, 0.022, 0.026), 'inconclusive', 'worse'),
    ((0.5,), 'inconclusive (one seed)', ''),
    ((), 'inconclusive (no pair of runs)', ''),
  ],
)
def test_the_verdict_depends_on_the_interval_and_the_margin(differences, verdict, direction):
  found = of_differences(*differences)
  assert (found.verdict, found.direction, found.n) == (verdict, direction, len(differences))


def test_one_seed_gives_no_interval_and_no_p():
  found = of_differences(0.5)
  assert found.difference == pytest.approx(0.5)
  assert (found.low, found.high, found.p, found.seeds_to_settle) == (None, None, None, None)


def test_only_common_seeds_are_paired():
  found = compare_paired(
    {0: Score(3.0), 1: Score(3.3), 5: Score(9.0)}, {1: Score(3.1), 0: Score(3.0), 7: Score(1.0)}, 0.02
  )
  assert found.differences == pytest.approx({0: 0.0, 1: 0.2})


def test_equal_differences_have_no_division_by_zero():
  same = compare_paired({0: Score(3.0), 1: Score(2.5)}, {0: Score(3.0), 1: Score(2.5)}, 0.02)
  assert (same.low, same.high, same.p, same.verdict) == (0.0, 0.0, 1.0, 'equivalent')
  shifted = compare_paired({0: Score(3.5), 1: Score(2.75)}, {0: Score(3.25), 1: Score(2.5)}, 0.02)
  assert (shifted.low, shifted.high, shifted.p, shifted.verdict) == (0.25, 0.25, 0.0, 'worse')
  rounded = of_differences(0.1, 0.1, 0.1)  # equal but for the last bit
  assert rounded.verdict == 'worse'
  assert rounded.p < 1e-20


def test_seeds_to_settle():
  # mean .05, standard deviation .05; to clear .02 the half-width must be below .03:
  # n = 13: 2.179 * .05 / sqrt(13) = .0302; n = 14: 2.160 * .05 / sqrt(14) = .0289
  assert of_differences(0.0, 0.05, 0.10).seeds_to_settle == 14
  assert of_differences(0.06, 0.08, 0.10, 0.12, 0.14).seeds_to_settle is None  # already conclusive
  assert of_differences(-0.08, 0.02, 0.12).seeds_to_settle is None  # a mean on the margin stays inconclusive


def test_runs_that_do_not_learn_make_a_comparison_unstable():
  baseline = {0: Score(3.0), 1: Score(3.1), 2: Score(3.2)}
  diverged = compare_paired({0: Score(3.2), 1: Score(None, learned=False), 2: Score(3.5)}, baseline, 0.02)
  assert diverged.verdict == 'unstable (2 of 3 learned)'
  assert diverged.differences == pytest.approx({0: 0.2, 2: 0.3})
  stuck = compare_paired({seed: Score(4.4, learned=False) for seed in range(3)}, baseline, 0.02)
  assert stuck.verdict == 'unstable (0 of 3 learned)'
  assert stuck.n == 3  # they reached the last step, although they did not learn
  failed_baseline = compare_paired({0: Score(3.0), 1: Score(3.0)}, {0: Score(None, learned=False), 1: Score(3.0)}, 0.02)
  assert failed_baseline.verdict == 'unstable (baseline: 1 of 2 learned)'
  assert (failed_baseline.n, failed_baseline.low) == (1, None)


def test_holm_by_hand():
  # sorted .005 .01 .03 .04: 4 * .005 = .02, 3 * .01 = .03, 2 * .03 = .06, 1 * .04 = .04, raised to .06
  assert statistics.holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
  assert statistics.holm([0.7, 0.6]) == [1.0, 1.0]
  assert statistics.holm([]) == []


def test_token_share():
  tokens = [100, 200, 300, 400]
  assert statistics.token_share(tokens, [4.0, 3.0, 2.0, 1.0], 2.5) == pytest.approx(250 / 400)
  # below at 200, above again at 300; it stays below from 325
  assert statistics.token_share(tokens, [4.0, 2.0, 3.0, 1.0], 2.5) == pytest.approx(325 / 400)
  assert statistics.token_share(tokens, [4.0, 3.0, 2.0, 1.0], 1.0) == 1.0
  assert statistics.token_share(tokens, [4.0, 3.0, 2.0, 1.0], 9.0) == 0.25  # from the first point
  assert statistics.token_share(tokens, [4.0, 3.0, 2.0, 1.0], 0.5) is None


def test_power_law_exponent():
  sizes = np.array([4, 8, 32])
  values = [3 * sizes**-0.5, 0.1 * sizes**2.0, np.ones(3)]
  np.testing.assert_allclose(statistics.power_law_exponent(sizes, values), [-0.5, 2, 0], atol=1e-12)
