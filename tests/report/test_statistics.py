"""Statistics held against values worked out by hand."""

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from rpe_bench.means import token_mean
from rpe_bench.report.intervals import student_interval, wilson_interval
from rpe_bench.report.statistics import (
    areas,
    effective_lengths,
    fits,
    generalising,
    over_seeds,
    over_seeds_effective,
    over_seeds_fitted,
    over_tasks,
    share_generalising,
    token_means,
)


def rows(exact_match, lengths=(8, 16, 20, 32, 64), train_length=16, seed=0, encoding="rope", task="copy", accuracy=1.0):
    return pd.DataFrame(
        {
            "task_label": task,
            "encoding_label": encoding,
            "seed": seed,
            "train_length": train_length,
            "length": lengths,
            "ratio": np.array(lengths) / train_length,
            "split": "extrapolation",
            "exact_match": exact_match,
            "token_accuracy": accuracy,
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


def test_a_seed_that_comes_twice_is_refused():
    with pytest.raises(ValueError, match="seed 1 comes twice for task_label=copy, encoding_label=rope, length=8"):
        over_seeds(pd.concat([rows([1.0] * 5, seed=1), rows([0.5] * 5, seed=1)]), "exact_match")


def test_intervals_and_the_interquartile_mean():
    values = np.random.default_rng(0).normal(0.5, 0.05, (8, 5))
    frame = pd.concat([rows(values[seed], seed=seed) for seed in range(8)])
    found = over_seeds(frame, "exact_match", rng=np.random.default_rng(0))
    np.testing.assert_allclose(found["mean"], values.mean(axis=0))
    np.testing.assert_allclose(found["iqm"], stats.trim_mean(values, 0.25, axis=0))
    for center, low, high in (("mean", "low", "high"), ("iqm", "iqm_low", "iqm_high")):
        assert (found[low] < found[center]).all() and (found[center] < found[high]).all()
        assert ((found[high] - found[low]) < 0.2).all()
    few = over_seeds(frame[frame["seed"] < 3], "exact_match", rng=np.random.default_rng(0))
    np.testing.assert_allclose(few[["low", "high"]].T, student_interval(values[:3].T))


def test_intervals_end_where_accuracies_do_and_one_seed_has_none():
    frame = pd.concat([rows([1.0] * 5), rows([0.9] * 5, seed=1)])
    found = over_seeds(frame, "exact_match", rng=np.random.default_rng(0))
    assert (found["high"] == 1).all() and (found["low"] > 0).all()
    frame = frame.assign(other=frame["exact_match"])
    assert (over_seeds(frame, "other", rng=np.random.default_rng(0))["high"] > 1).all()
    assert over_seeds(rows([1.0] * 5), "exact_match", rng=np.random.default_rng(0))["low"].isna().all()


def test_lines_of_different_numbers_of_seeds_stay_apart():
    alone = pd.concat([rows(np.linspace(0, 1, 5) * seed / 6, seed=seed) for seed in range(6)])
    other = rows([0.5] * 5, encoding="alibi")
    found = over_seeds(pd.concat([alone, other]), "exact_match", rng=np.random.default_rng(0))
    assert found["n"].tolist() == [1] * 5 + [6] * 5
    expected = over_seeds(alone, "exact_match", rng=np.random.default_rng(0))
    pd.testing.assert_frame_equal(found.iloc[5:].reset_index(drop=True), expected)


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


def test_area_is_over_log_length_from_the_training_length():
    frame = rows([0.3, 1, 0.5, 0.5, 0], lengths=(8, 16, 32, 64, 256))
    found = areas(frame).iloc[0]
    assert (found["first"], found["longest"]) == (16, 256)
    # One doubling at 0.75, one at 0.5, two at 0.25 in the mean.
    assert found["area"] == pytest.approx((0.75 + 0.5 + 2 * 0.25) / 4)
    assert areas(rows([0.7] * 5))["area"].item() == pytest.approx(0.7)
    assert areas(rows([0.2], lengths=(16,))).empty
    assert areas(frame, "token_accuracy")["area"].item() == pytest.approx(1)


def test_share_that_generalises():
    seeds = [[1, 1, 1, 0.95, 0], [1, 1, 1, 0.9, 1], [1, 1, 1, 0.89, 1]]
    frame = pd.concat([rows(values, seed=seed) for seed, values in enumerate(seeds)])
    assert generalising(frame)["generalises"].tolist() == [True, True, False]  # at 32
    assert generalising(frame, multiple=4)["generalises"].tolist() == [False, True, True]
    assert generalising(frame, multiple=1.5)["length"].tolist() == [32] * 3  # the next one evaluated
    assert generalising(frame, multiple=8).empty
    assert generalising(frame, multiple=4, metric="token_accuracy")["generalises"].all()
    found = share_generalising(frame).iloc[0]
    assert (found["n"], found["generalising"], found["length"]) == (3, 2, 32)
    assert found["share"] == pytest.approx(2 / 3)
    assert (found["low"], found["high"]) == pytest.approx(wilson_interval(2, 3))


def test_a_seed_that_did_not_fit_is_flagged_by_what_was_trained_alone():
    good, bad = [1.0, 0.9, 0, 0, 0], [1.0, 0.89, 1, 1, 1]
    frame = pd.concat(
        [
            rows(0.0, seed=0, accuracy=good),
            rows(1.0, seed=1, accuracy=bad),
            rows(0.0, seed=0, task="bytes", accuracy=0.5),
        ]
    )
    found = fits(frame).set_index(["task_label", "seed"])
    assert found["length"].tolist() == [16] * 3
    assert found.loc["copy", "fitted"].tolist() == [True, False]
    assert found.loc[("bytes", 0), "fitted"] is pd.NA  # no run gets there: the bar tells none from another
    assert fits(frame, bar=0.4)["fitted"].all()


def test_means_are_reported_with_and_without_what_did_not_fit():
    frame = pd.concat(
        [
            rows(1.0, seed=0),
            rows(0.5, seed=1, accuracy=0.2),
            rows(0.1, encoding="nope", accuracy=0.2),
            rows(0.3, task="bytes", accuracy=0.5),
        ]
    )
    found = over_seeds_fitted(frame, "exact_match")
    found = found[found["length"] == 32].set_index(["task_label", "encoding_label"])
    assert found.index.tolist() == [("bytes", "rope"), ("copy", "nope"), ("copy", "rope")]
    assert found["mean"].tolist() == [0.3, 0.1, 0.75] and found["n"].tolist() == [1, 1, 2]
    assert found["n_fitted"].tolist() == [pd.NA, 0, 1]
    np.testing.assert_equal(found["mean_fitted"].to_numpy(), [np.nan, np.nan, 1.0])
    pd.testing.assert_frame_equal(
        over_seeds_fitted(frame, "exact_match").iloc[:, :-2], over_seeds(frame, "exact_match")
    )


def scores(values, encoding="rope"):
    return pd.DataFrame(
        [(task, encoding, seed, value) for task, seeds in values.items() for seed, value in enumerate(seeds)],
        columns=["task_label", "encoding_label", "seed", "score"],
    )


def test_one_number_over_tasks():
    frame = pd.concat([scores({"a": [1.0, 0.8], "b": [0.2, 0.2, 0.2]}), scores({"a": [1.0], "b": [0.3]}, "alibi")])
    found = over_tasks(frame, "score").set_index("encoding_label")
    assert found.index.tolist() == ["alibi", "rope"]
    rope = found.loc["rope"]
    assert (rope["tasks"], rope["runs"], rope["mean"]) == (2, 5, pytest.approx(0.55))
    # All of the variance is of task a, with one degree of freedom: its interval, halved.
    low, high = student_interval(np.array([[1.0, 0.8]]))
    assert rope["high"] - rope["low"] == pytest.approx((high[0] - low[0]) / 2)
    assert np.isnan(found.loc["alibi", ["low", "high"]].to_numpy(dtype=float)).all()


def test_the_interval_over_tasks_covers_the_truth():
    """Three tasks of different spread, 4 seeds each, 150 experiments."""
    draw = np.random.default_rng(0)
    held = []
    for _ in range(150):
        found = over_tasks(
            scores({t: draw.normal(0.5, sd, 4) for t, sd in zip("abc", (0.02, 0.05, 0.1), strict=True)}), "score"
        )
        held.append(found["low"].item() <= 0.5 <= found["high"].item())
    assert 0.91 <= np.mean(held) <= 0.99


def test_means_over_tokens_weigh_every_token_alike():
    rows = pd.DataFrame({"run": [1, 0, 0, 1], "tokens": [1, 3, 1, 1], "loss": [2.0, 1.0, 5.0, np.nan]})
    found = token_means(rows.assign(accuracy=[1.0, 0.5, 0.1, 0.0]), ["run"], ["loss", "accuracy"])
    assert found["run"].tolist() == [0, 1] and found["tokens"].tolist() == [4, 2]
    assert found["loss"].tolist()[0] == token_mean([1.0, 5.0], [3, 1]) == 2.0 and np.isnan(found["loss"][1])
    assert found["accuracy"].tolist() == [pytest.approx(0.4), 0.5]
    assert np.isnan(token_mean([1.0, np.nan], [1, 0]))
