"""Statistics held against values worked out by hand or by enumeration."""

from itertools import product

import numpy as np
import pandas as pd
import pytest

from rpe_bench.report.statistics import (
    bootstrap_interval,
    effective_lengths,
    over_seeds,
    over_seeds_effective,
    resamples,
)


def rows(exact_match, lengths=(8, 16, 20, 32, 64), train_length=16, seed=0, encoding="rope"):
    return pd.DataFrame(
        {
            "task_label": "copy",
            "encoding_label": encoding,
            "seed": seed,
            "train_length": train_length,
            "length": lengths,
            "ratio": np.array(lengths) / train_length,
            "split": "extrapolation",
            "exact_match": exact_match,
        }
    )


def test_mean_and_range_count_every_seed():
    frame = pd.concat(
        [rows([1, 1, 0.5, 0, 0], seed=0), rows([1, 0.5, 0, 0, 0], seed=1), rows([0, 0, 0.1, 0, 0], seed=2)]
    )
    summary = over_seeds(frame, "exact_match").set_index("length")
    assert summary["n"].tolist() == [3] * 5
    assert summary.loc[16, ["mean", "min", "max"]].tolist() == [0.5, 0, 1]
    assert summary.loc[20, "mean"] == pytest.approx(0.2)


def test_a_seed_that_is_not_finite_is_not_dropped():
    frame = pd.concat([rows([1.0] * 5), rows([np.nan] * 5, seed=1)])
    summary = over_seeds(frame, "exact_match")
    assert summary["mean"].isna().all() and (summary["n"] == 2).all()


def test_the_interval_is_that_of_all_possible_resamples():
    values = np.array([0.1, 0.4, 0.45, 0.9])
    every = np.array([np.mean(sample) for sample in product(values, repeat=len(values))])
    exact = np.quantile(every, [0.025, 0.975])
    found = bootstrap_interval(values, resamples(len(values), np.random.default_rng(1), 100_000))
    assert found == pytest.approx(exact, abs=0.015)


def test_the_interval_of_two_or_three_seeds_is_their_range_and_one_seed_has_none():
    for values in ([0.2, 0.6], [0.2, 0.3, 0.6]):
        weights = resamples(len(values), np.random.default_rng(0))
        assert bootstrap_interval(np.array(values), weights) == pytest.approx((0.2, 0.6))
    assert np.isnan(bootstrap_interval(np.array([0.5]), resamples(1, np.random.default_rng(0)))).all()


def test_the_interval_covers_a_mean_of_many_values_as_often_as_it_says():
    rng = np.random.default_rng(0)
    weights = resamples(40, rng, 2000)
    intervals = [bootstrap_interval(rng.normal(size=40), weights) for _ in range(400)]
    assert 0.91 <= np.mean([low <= 0 <= high for low, high in intervals]) <= 0.98


def test_an_interval_does_not_hang_on_the_other_rows_and_can_be_repeated():
    mine = pd.concat([rows(np.linspace(0, 1, 5) * (seed + 1) / 5, seed=seed) for seed in range(5)])
    other = mine.assign(encoding_label="alibi", exact_match=mine["exact_match"] ** 2)
    alone = over_seeds(mine, "exact_match", rng=np.random.default_rng(0))
    together = over_seeds(pd.concat([other, mine]), "exact_match", rng=np.random.default_rng(0))
    together = together[together["encoding_label"] == "rope"].reset_index(drop=True)
    pd.testing.assert_frame_equal(alone, together)
    shuffled = over_seeds(mine.sample(frac=1, random_state=0), "exact_match", rng=np.random.default_rng(0))
    pd.testing.assert_frame_equal(alone, shuffled)


@pytest.mark.parametrize(
    ("exact_match", "length", "at_limit"),
    [
        ([1, 1, 1, 1, 1], 64, True),
        ([0, 1, 1, 1, 1], 64, True),  # below the training length nothing is asked
        ([1, 1, 0.9, 0.89, 1], 20, False),  # up to, not at: the last length doesn't count
        ([1, 0.5, 1, 1, 1], 0, False),
    ],
)
def test_effective_length(exact_match, length, at_limit):
    found = effective_lengths(rows(exact_match))
    assert found["effective_length"].tolist() == [length]
    assert found["effective_ratio"].tolist() == [length / 16]
    assert found["at_limit"].tolist() == [at_limit]


def test_effective_length_starts_above_a_training_length_that_was_not_evaluated():
    frame = rows([1, 1, 0], lengths=(8, 24, 32))
    assert effective_lengths(frame)["effective_length"].tolist() == [24]
    assert effective_lengths(frame, threshold=0)["effective_length"].tolist() == [32]


def test_effective_length_is_summarised_over_seeds():
    frame = pd.concat([rows([1, 1, 1, 0, 0]), rows([1] * 5, seed=1)])
    summary = over_seeds_effective(frame).iloc[0]
    assert (summary["n"], summary["mean"], summary["min"], summary["max"], summary["at_limit"]) == (2, 42, 20, 64, 1)
