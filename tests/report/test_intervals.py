"""Intervals held against scipy, and against an enumeration of all resamples."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from rpe_bench.report.intervals import (
    LEVEL,
    interquartile_interval,
    mean_interval,
    percentile_interval,
    resamples,
    student_cdf,
    student_interval,
    student_quantile,
    studentised_interval,
    trimmed_mean,
    wilson_interval,
)


def skewed(groups: int, n: int) -> np.ndarray:
    return np.random.default_rng(n).beta(9, 1, (groups, n))


@pytest.mark.parametrize("df", [1, 2, 3, 4, 5, 10, 19, 50])
def test_students_distribution(df):
    for t in (0.0, 0.3, 2.0, 50.0):
        assert student_cdf(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-14)
    for probability in (0.6, 0.975, 1 - 0.025 / 7):
        assert student_quantile(probability, df) == pytest.approx(stats.t.ppf(probability, df), rel=1e-10)


@pytest.mark.parametrize("n", [2, 5, 12])
def test_students_interval(n):
    values = skewed(4, n)
    low, high = student_interval(values)
    expected = stats.t.interval(LEVEL, n - 1, values.mean(axis=1), stats.sem(values, axis=1))
    np.testing.assert_allclose([low, high], expected, rtol=1e-10)


@pytest.mark.parametrize("n", [1, 3, 4, 7, 8, 13])
def test_the_interquartile_mean(n):
    values = skewed(3, n)
    np.testing.assert_allclose(trimmed_mean(values), stats.trim_mean(values, 0.25, axis=1), rtol=1e-12)


@pytest.mark.parametrize("trim", [0, 0.25])
def test_the_percentile_bootstrap(trim):
    values = skewed(2, 9)

    def of(sample, axis):
        return stats.trim_mean(sample, trim, axis=axis)

    found = percentile_interval(values, resamples(9, np.random.default_rng(0), 20_000), trim)
    expected = stats.bootstrap(
        (values,), of, axis=1, n_resamples=20_000, batch=1000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    np.testing.assert_allclose(found, expected, atol=0.004)


def test_the_studentised_bootstrap_is_that_of_all_resamples():
    """Of 5 seeds, 3125 resamples; each resample's t is worked out in plain numbers."""
    values = np.array([0.2, 0.7, 0.75, 0.8, 0.95])
    t = []
    for sample in product(values, repeat=5):
        deviation = np.std(sample)
        shift = np.mean(sample) - values.mean()
        t.append(np.sign(shift) * np.inf if deviation < 1e-12 else shift / (deviation / 5**0.5))
    q_low, q_high = np.quantile(t, [0.025, 0.975], method="nearest")
    se = values.std() / 5**0.5
    expected = values.mean() - q_high * se, values.mean() - q_low * se
    every = np.array([np.bincount(chosen, minlength=5) for chosen in product(range(5), repeat=5)])
    low, high = studentised_interval(values[None], every)
    assert (low[0], high[0]) == pytest.approx(expected, rel=1e-9)
    assert values.mean() - low[0] > high[0] - values.mean()  # it follows the skew


def test_the_studentised_bootstrap_moves_with_shift_and_scale():
    values, counts = skewed(3, 6), resamples(6, np.random.default_rng(0), 1000)
    low, high = studentised_interval(values, counts)
    np.testing.assert_allclose(studentised_interval(10 - 100 * values, counts), (10 - 100 * high, 10 - 100 * low))


def test_many_groups_are_worked_through_in_parts():
    values, counts = skewed(300, 5), resamples(5, np.random.default_rng(0), 20_000)
    for interval in (studentised_interval, percentile_interval):
        low, high = interval(values, counts)
        few_low, few_high = interval(values[-3:], counts)
        np.testing.assert_allclose((low[-3:], high[-3:]), (few_low, few_high), rtol=1e-12)


@pytest.mark.parametrize("interval", [mean_interval, interquartile_interval])
@pytest.mark.parametrize("n", [2, 3, 4, 6, 9])
def test_equal_seeds_and_those_that_are_not_finite(interval, n):
    values = np.full((3, n), 0.1)
    values[1, 0], values[2, 0] = np.nan, np.inf
    low, high = interval(values, resamples(n, np.random.default_rng(0), 1000))
    assert (low[0], high[0]) == pytest.approx((0.1, 0.1), abs=1e-12)
    assert np.isnan([low[1:], high[1:]]).all()


def test_seeds_most_of_which_are_equal_have_no_interval_of_the_whole_axis():
    """Most of their resamples have no spread, and t* is infinite."""
    counts = resamples(5, np.random.default_rng(0))
    values = np.array([[1, 1, 1, 1, 319 / 320], [0.5, 0.5, 0.5, 0.5, 0.53]])
    (low, high), (low_t, high_t) = mean_interval(values, counts), student_interval(values)
    means = values.mean(axis=1)
    np.testing.assert_allclose([low[0], high[1]], means - [3, -3] * (high_t - means))
    assert (low >= means - 3.001 * (means - low_t)).all() and (high <= means + 3.001 * (high_t - means)).all()
    # And yet they hold the mean as often as those without a limit do, at a hundredth of the width.
    rng = np.random.default_rng(0)
    true = 1 - np.minimum(rng.exponential(0.002, (1000, 8)), 1)
    low, high = np.clip(mean_interval(rng.binomial(320, true) / 320, resamples(8, rng, 1000)), 0, 1)
    assert ((low <= 0.998) & (0.998 <= high)).mean() > 0.93 and (high - low).max() < 0.05


@pytest.mark.parametrize("interval", [mean_interval, interquartile_interval])
def test_one_seed_has_no_interval(interval):
    assert np.isnan(interval(np.array([[0.5]]), resamples(1, np.random.default_rng(0), 10))).all()


@pytest.mark.parametrize(("successes", "n"), [(0, 3), (3, 3), (2, 5), (19, 20)])
def test_wilsons_interval(successes, n):
    expected = stats.binomtest(successes, n).proportion_ci(LEVEL, method="wilson")
    assert wilson_interval(successes, n) == pytest.approx((expected.low, expected.high), abs=1e-12)
