"""Tests and power, held against scipy and against simulations of known truth."""

import math

import numpy as np
import pytest
from scipy import stats

from rpe_bench.report.coverage import SHAPES
from rpe_bench.report.significance import (
    ALPHA,
    POWER,
    detectable,
    detectable_by_signs,
    fewest_pairs,
    holm,
    pairs_needed,
    power,
    sign_flip_test,
    smallest_p,
)


def rng():
    return np.random.default_rng(0)


@pytest.mark.parametrize("n", [2, 5, 9])
def test_exact_p_is_that_of_scipy(n):
    a, b = np.random.default_rng(n).integers(0, 6, (2, 4, n)) / 5  # with ties, and sums that differ by rounding
    expected = stats.permutation_test(
        (a, b), lambda x, y, axis: (x - y).mean(axis=axis), permutation_type="samples", vectorized=True, axis=1
    ).pvalue
    np.testing.assert_allclose(sign_flip_test(a - b, rng()), expected, atol=1e-12)


def test_random_patterns_agree_with_all_of_them():
    differences = np.random.default_rng(3).normal(0.4, 1, (5, 16))
    exact = sign_flip_test(differences, rng())
    drawn = sign_flip_test(np.concatenate([differences, np.zeros((5, 1))], axis=1), rng())
    np.testing.assert_allclose(drawn, exact, atol=0.02)
    assert sign_flip_test(np.full((1, 30), 0.5), rng())[0] == pytest.approx(1 / 10_000)  # never 0


def test_the_smallest_p_and_the_fewest_pairs():
    for n in (1, 2, 3, 6):
        assert sign_flip_test(np.full((1, n), 0.3), rng())[0] == smallest_p(n)
    assert smallest_p(3) == 0.25
    assert (fewest_pairs(), fewest_pairs(7), fewest_pairs(1, alpha=0.25)) == (6, 9, 3)
    for tests in (1, 7):
        n = fewest_pairs(tests)
        assert tests * smallest_p(n) <= ALPHA < tests * smallest_p(n - 1)


def test_what_is_not_finite_has_no_p():
    assert np.isnan(sign_flip_test(np.array([[np.inf, 1.0], [np.nan, 1.0]]), rng())).all()
    assert sign_flip_test(np.zeros((1, 8)), rng()).tolist() == [1.0]


def test_holm():
    np.testing.assert_allclose(holm(np.array([0.01, 0.04, 0.03, 0.005])), [0.03, 0.06, 0.06, 0.02])
    found = holm(np.array([0.01, np.nan, 0.9]))
    assert found[0] == pytest.approx(0.03) and np.isnan(found[1]) and found[2] == 1
    assert holm(np.empty(0)).tolist() == []


@pytest.mark.parametrize("n", [5, 10])
def test_false_positives_over_all_lengths_are_at_most_5_percent(n):
    """2,000 comparisons of an encoding with itself for each shape of seeds, over 7 lengths that share their seeds."""
    experiments, lengths = 2_000, 7
    singles, any_of_them = [], []
    for number, shape in enumerate(SHAPES.values()):
        draw = np.random.default_rng([n, number])
        a, b = (shape.sample(draw, experiments, n)[:, None] for _ in range(2))
        noise_a, noise_b = draw.normal(0, 0.02, (2, experiments, lengths, n))
        p = sign_flip_test((a + noise_a - b - noise_b).reshape(-1, n), rng()).reshape(experiments, lengths)
        singles.append((p[:, 0] <= ALPHA).mean())
        any_of_them.append(np.mean([(holm(row) <= ALPHA).any() for row in p]))
    # The test is exact. The standard error of a share is 0.005, of their mean over the shapes 0.002.
    assert np.mean(singles) <= 0.052 and max(singles) <= 0.065
    assert np.mean(any_of_them) <= 0.05 and max(any_of_them) <= 0.065
    assert (np.mean(singles) == 0) if n == 5 else (np.mean(singles) > 0.04)  # of 5 pairs, no p is below 0.05


@pytest.mark.parametrize("n", [2, 3, 5, 20])
def test_power_is_that_of_the_noncentral_t(n):
    for effect in (0.3, 1.0, 1.5):
        critical = stats.t.ppf(1 - ALPHA / 2, n - 1)
        expected = stats.nct.sf(critical, n - 1, effect * n**0.5) + stats.nct.cdf(-critical, n - 1, effect * n**0.5)
        assert power(effect, n) == pytest.approx(expected, abs=2e-3)
    assert power(0.0, n) == pytest.approx(ALPHA, abs=2e-3)


def test_the_smallest_difference_is_seen_as_often_as_it_says():
    draw = np.random.default_rng(5)
    for n in (3, 8):
        values = draw.normal(detectable(n), 1, (4_000, n))
        seen = np.abs(stats.ttest_1samp(values, 0, axis=1).statistic) > stats.t.ppf(1 - ALPHA / 2, n - 1)
        assert seen.mean() == pytest.approx(POWER, abs=0.02)
    assert detectable(1) == math.inf


@pytest.mark.parametrize(("n", "tests"), [(6, 1), (8, 1), (9, 7), (10, 7), (12, 1)])
def test_the_test_sees_its_smallest_difference_as_often_as_it_says(n, tests):
    values = np.random.default_rng(n).normal(detectable_by_signs(n, tests), 1, (2_000, n))
    seen = sign_flip_test(values, rng()) * tests <= ALPHA
    assert seen.mean() == pytest.approx(POWER, abs=0.05)


def test_too_few_pairs_see_nothing():
    assert detectable_by_signs(5) == math.inf and detectable_by_signs(8, 7) == math.inf
    assert detectable_by_signs(6) < math.inf and detectable_by_signs(9, 7) < math.inf


def test_the_pairs_that_a_difference_takes():
    for difference, sd, tests in ((0.1, 0.1, 1), (0.1, 0.1, 7), (0.05, 0.2, 7), (5.0, 0.1, 7)):
        n = pairs_needed(difference, sd, tests)
        assert detectable_by_signs(n, tests) * sd <= difference * (1 + 1e-5)
        assert n == fewest_pairs(tests) or detectable_by_signs(n - 1, tests) * sd > difference
    assert pairs_needed(5.0, 0.1, 7) == 9  # however large: the test's own limit
    assert pairs_needed(0.001, 1.0, most=100) is None
