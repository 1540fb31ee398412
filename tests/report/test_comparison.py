"""Two encodings compared: values worked out by hand, what is said of them, and what is refused."""

import json

import numpy as np
import pandas as pd
import pytest

from rpe_bench import ledger
from rpe_bench.cli import main
from rpe_bench.report.comparison import (
    against_best,
    compare,
    compare_runs,
    fresh_interval,
    resolve,
    variance_parts,
)
from rpe_bench.report.conclusions import comparison_markdown, comparison_text, conclusions, readable, write_comparison
from rpe_bench.report.intervals import student_interval
from rpe_bench.report.load import ReportError
from rpe_bench.schema import TABLES

LENGTHS = (8, 16, 32)
EXAMPLES = 20


def evaluations(scores, task="copy", metric="exact_match"):
    """scores: encoding -> seed -> a score at each of LENGTHS."""
    rows = [
        (task, encoding, seed, 16, length, length / 16, "extrapolation" if length > 16 else "train_lengths", 1.0, score)
        for encoding, seeds in scores.items()
        for seed, of_seed in seeds.items()
        for length, score in zip(LENGTHS, of_seed, strict=True)
    ]
    names = ["task_label", "encoding_label", "seed", "train_length", "length", "ratio", "split", "token_accuracy"]
    return pd.DataFrame(rows, columns=[*names, metric])


def compared(scores, metric="exact_match", examples=None):
    return compare(evaluations(scores, metric=metric), "copy", "a", "b", metric, np.random.default_rng(0), examples)


def far_apart(n, spread=0.01):
    """a is 0.5 above b at length 32, equal at 8, and as often above as below at 16."""
    rng = np.random.default_rng(1)
    a = {seed: [1.0, 0.8, 0.9 + spread * rng.normal()] for seed in range(n)}
    b = {seed: [1.0, 0.8 + 0.1 * (-1) ** seed, 0.4] for seed in range(n)}
    return {"a": a, "b": b}


def said(found):
    return "\n".join(conclusions(found))


def test_differences_are_paired_by_seed():
    found = compared({"a": {3: [1, 0.9, 0.5], 1: [1, 0.7, 0.1]}, "b": {1: [1, 0.5, 0.2], 3: [1, 0.5, 0.2]}})
    assert found.seeds == [1, 3] and found.pairs["difference"].tolist() == pytest.approx([0, 0, 0.2, 0.4, -0.1, 0.3])
    rows = found.lengths
    assert rows["length"].tolist() == list(LENGTHS) and rows["n"].tolist() == [2] * 3
    assert rows["difference"].tolist() == pytest.approx([0, 0.3, 0.1])
    assert (rows["a"] - rows["b"]).tolist() == pytest.approx(rows["difference"].tolist())
    low, high = student_interval(np.array([[0.2, 0.4]]))
    assert (rows["low"][1], rows["high"][1]) == (pytest.approx(max(low[0], -1)), pytest.approx(min(high[0], 1)))
    assert rows["p"].tolist() == [1, 0.5, 1] and rows["p_holm"].tolist() == [1, 1, 1]


def test_seeds_in_one_alone_are_named_and_left_out():
    found = compared({"a": {0: [1] * 3, 1: [1] * 3, 7: [0] * 3}, "b": {1: [0] * 3, 0: [0] * 3, 5: [1] * 3}})
    assert found.seeds == [0, 1] and (found.lengths["difference"] == 1).all()
    assert found.notes == [
        "seed 7 of a is left out: b has no finished run with it",
        "seed 5 of b is left out: a has no finished run with it",
    ]


def test_lengths_in_some_runs_alone_are_named_and_left_out():
    frame = evaluations({"a": {0: [1] * 3, 1: [1] * 3}, "b": {0: [0] * 3, 1: [0] * 3}})
    frame = frame.drop(frame.index[-1])
    found = compare(frame, "copy", "a", "b", "exact_match", np.random.default_rng(0))
    assert found.lengths["length"].tolist() == [8, 16]
    assert found.notes == ["length 32 is left out: not all pairs were evaluated there"]


@pytest.mark.parametrize(
    ("scores", "message"),
    [
        ({"a": {0: [1] * 3}}, "b has no finished run of copy"),
        ({"a": {0: [1] * 3, 2: [1] * 3}, "b": {1: [1] * 3}}, "of copy, a has seeds 0, 2 and b seed 1, none in common"),
    ],
)
def test_what_cannot_be_paired_is_refused(scores, message):
    with pytest.raises(ReportError, match=message):
        compared(scores)


def test_a_seed_that_comes_twice_is_refused():
    frame = evaluations({"a": {0: [1] * 3}, "b": {0: [1] * 3}})
    with pytest.raises(ReportError, match="a has seed 0 of copy twice"):
        compare(pd.concat([frame, frame]), "copy", "a", "b", "exact_match", np.random.default_rng(0))


# In words


def test_with_three_pairs_nothing_can_be_significant_and_that_is_said():
    found = compared(far_apart(3))
    assert (found.lengths["p"].min(), found.lengths["p_holm"].min()) == (0.25, 0.75)
    text = said(found)
    assert "With 3 pairs the smallest two-sided p of a permutation test is 0.25" in text
    assert "6 pairs at a single length, and 7 with Holm's correction over 3 lengths" in text
    assert "Cannot be concluded: that a and b differ at any length. Nor that they are alike: at 16" in text
    assert "An indication, no more: the interval leaves out 0 at 32, where a is higher" in text
    assert "Can be concluded" not in text
    assert "measured coverage of a 95 % interval of 3 seeds" in text


def test_with_enough_pairs_it_is_concluded():
    found = compared(far_apart(10))
    text = said(found)
    assert "Can be concluded: a has the higher exact match, at 32 (corrected p at most 0.0059)." in text
    assert "Cannot be concluded: that a and b differ at 8 and 16." in text
    assert "exact over 1024 patterns; Holm's correction over 3 lengths" in text
    assert "An indication" not in text
    other = said(compare(evaluations(far_apart(10)), "copy", "b", "a", "exact_match", np.random.default_rng(0)))
    assert "Can be concluded: a has the higher exact match, at 32" in other


def test_a_higher_loss_is_worse():
    text = said(compared(far_apart(10), metric="loss"))
    assert "Can be concluded: a has the higher loss, which is worse, at 32" in text


def test_how_many_seeds_a_difference_takes():
    wide, narrow = compared(far_apart(10, spread=0.3)), compared(far_apart(10))
    assert "to see by the corrected test a difference of 0.05 takes" in said(wide)
    assert wide.lengths["detectable"][2] > 5 * narrow.lengths["detectable"][2]
    assert np.isnan(wide.lengths["detectable"][0])  # all pairs the same
    assert "by the test, corrected over 3" in said(wide)
    assert np.isinf(compared(far_apart(3)).lengths["detectable_holm"][2])


def test_pairs_that_do_not_differ_at_all():
    text = said(compared({name: {seed: [1, 1, 1] for seed in range(4)} for name in "ab"}))
    assert "nothing can be said of what could have been seen" in text and "Nor how many seeds" in text


def test_one_pair_has_neither_interval_nor_test():
    found = compared({"a": {0: [1, 1, 1]}, "b": {0: [0, 0, 0]}})
    assert found.lengths["low"].isna().all()
    assert said(found).startswith("One pair: no interval and no test.")
    assert readable(found)["95 % interval"].tolist() == [""] * 3
    assert "1 pair of runs" in comparison_text(found)


def test_a_run_that_did_not_fit_is_named_and_counts():
    frame = evaluations(far_apart(3))
    frame.loc[(frame["encoding_label"] == "b") & (frame["seed"] == 1), "token_accuracy"] = 0.4
    found = compare(frame, "copy", "a", "b", "exact_match", np.random.default_rng(0))
    [note] = found.notes
    assert note.startswith("seed 1 of b did not fit: token accuracy 0.400 at the training length, below 0.9; it counts")
    assert found.seeds == [0, 1, 2]


# By example


def by_example(scores, rng, tokens=None):
    """Rows of examples.csv whose means are the scores."""
    frames = []
    for encoding, seeds in scores.items():
        for seed, of_seed in seeds.items():
            for length, score in zip(LENGTHS, of_seed, strict=True):
                values = rng.permutation(np.arange(EXAMPLES) < round(score * EXAMPLES)).astype(float)
                columns = {
                    "length": length,
                    "example": np.arange(EXAMPLES),
                    "tokens": tokens or 4,
                    "exact_match": values,
                }
                frames.append(pd.DataFrame(columns).assign(encoding_label=encoding, seed=seed, loss=1 - values))
    return pd.concat(frames, ignore_index=True)


def test_examples_tell_where_the_spread_comes_from():
    scores = far_apart(3, spread=0)
    examples = by_example(scores, np.random.default_rng(0)).sample(frac=1, random_state=0)  # in any order
    found = compared(scores, examples=examples)
    assert found.examples == EXAMPLES and found.notes == []
    pd.testing.assert_frame_equal(found.lengths[list(compared(scores).lengths)], compared(scores).lengths)
    pair = found.pairs.iloc[-1]
    assert pair["a_higher"] - pair["b_higher"] == round(pair["difference"] * EXAMPLES)
    assert (found.lengths["fresh_low"] <= found.lengths["low"] + 1e-12).all()
    assert (found.lengths["fresh_high"] >= found.lengths["high"] - 1e-12).all()
    assert "By example: of the variance of the mean difference at 16" in said(found)
    assert "and by example, 20 a length" in comparison_text(found)
    assert "fresh examples too" in readable(found)


def test_without_all_examples_it_is_paired_by_seed_alone_and_says_so():
    scores = far_apart(3)
    examples = by_example(scores, np.random.default_rng(0))
    found = compared(scores, examples=examples[(examples["encoding_label"] == "a") | (examples["seed"] != 2)])
    assert found.examples is None and "variance_seeds" not in found.lengths
    assert found.notes == [
        "paired by seed alone: there is for seed 2 of b no examples.csv, as from before runs recorded it"
    ]
    found = compared(scores, examples=examples.iloc[:0])
    assert found.notes == ["paired by seed alone: these runs have no examples.csv, as from before runs recorded it"]


def test_different_examples_are_refused():
    scores = far_apart(2)
    examples = by_example(scores, np.random.default_rng(0))
    examples.loc[examples.index[-1], "tokens"] = 5
    with pytest.raises(ReportError, match="a and b were not scored on the same examples of length 32"):
        compared(scores, examples=examples)


def test_parts_of_variance_are_found_again():
    """Of simulated values with known parts, S = 6 seeds and E = 50 examples, in the mean of 300 experiments."""
    rng = np.random.default_rng(0)
    seeds, examples, rest = 0.3, 0.5, 0.8
    found = []
    for _ in range(300):
        values = seeds * rng.normal(size=(6, 1)) + examples * rng.normal(size=50) + rest * rng.normal(size=(6, 50))
        found.append(variance_parts(values))
    expected = seeds**2 / 6, examples**2 / 50, rest**2 / 300
    assert np.mean(found, axis=0) == pytest.approx(expected, rel=0.15)
    flat = variance_parts(np.broadcast_to(rng.normal(size=(6, 1)), (6, 50)))
    assert flat[1:] == pytest.approx((0, 0), abs=1e-12) and flat[0] > 0


def test_the_interval_for_fresh_examples_is_never_narrower():
    """Two seeds have one degree of freedom, a t of 12.7; examples bring more."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        values = 0.1 * rng.normal(size=(2, 1)) + rng.normal(size=30) + 0.1 * rng.normal(size=(2, 30))
        low, high = fresh_interval(values)
        of_seeds = student_interval(values.mean(axis=1)[None])
        assert low <= of_seeds[0][0] + 1e-12 and high >= of_seeds[1][0] - 1e-12


def test_a_single_example_tells_nothing_by_example():
    scores = far_apart(2)
    examples = by_example(scores, np.random.default_rng(0))
    found = compared(scores, examples=examples[examples["example"] == 0])
    assert found.examples is None and found.notes == ["paired by seed alone: a single example of each length"]


def test_the_interval_for_fresh_examples_covers_where_that_for_these_does_not():
    rng = np.random.default_rng(0)
    fresh, these = [], []
    for _ in range(500):
        values = 0.1 * rng.normal(size=(5, 1)) + rng.normal(size=40) + 0.2 * rng.normal(size=(5, 40))
        low, high = fresh_interval(values)
        fresh.append(low <= 0 <= high)
        low, high = (end[0] for end in student_interval(values.mean(axis=1)[None]))
        these.append(low <= 0 <= high)
    assert 0.92 <= np.mean(fresh) <= 0.98
    assert np.mean(these) < 0.85


# For tables


def test_against_the_best():
    scores = far_apart(8)
    scores["c"] = {seed: [0.0, 0.0, 0.0] for seed in (0, 1, 2)}
    found = against_best(evaluations(scores), "exact_match", np.random.default_rng(0))
    at = found[found["length"] == 32].set_index("encoding_label")
    assert at["best"].tolist() == [True, False, False]
    assert at["worse"].tolist() == [False, True, False]  # three pairs cannot tell
    assert at["could_tell"].tolist() == [False, True, False]
    assert at["n"].tolist() == [8, 8, 3] and at["pairs"].tolist() == [0, 8, 3]
    assert at.loc["b", "p_holm"] == pytest.approx(2 * 2**-7)
    low = against_best(evaluations(scores, metric="loss"), "loss", np.random.default_rng(0))
    assert low[low["length"] == 32].set_index("encoding_label")["best"].tolist() == [False, False, True]


def test_all_that_reach_the_best_mean_are_the_best():
    same = {seed: [1.0, 0.9, 0.3] for seed in range(3)}
    scores = {
        "a": same,
        "b": {seed: [1.0, 0.8, 0.3] for seed in range(3)},
        "c": {0: [0.9, 0.9, 0.3], 1: [1.0, 0.9, 0.2]},
    }
    found = against_best(evaluations(scores), "exact_match", np.random.default_rng(0))
    best = found.groupby("length")["best"].apply(list).tolist()
    assert best == [[True, True, False], [True, False, True], [True, True, False]]
    assert not found["worse"].any()


# Of a results directory


def test_names_stand_for_one_configuration():
    known = ["alibi", "rope (base=10000)", "rope (base=500000)", "t5 (buckets=8)"]
    assert resolve("alibi", known, "") == "alibi" and resolve("t5", known, "") == "t5 (buckets=8)"
    assert resolve("rope (base=500000)", known, "") == "rope (base=500000)"
    with pytest.raises(ReportError, match=r"rope is 2 configurations of copy, .*'rope \(base=10000\)', 'rope"):
        resolve("rope", known, " of copy")
    with pytest.raises(ReportError, match=r"alibbi has no finished run; did you mean alibi\? \(there are: alibi, "):
        resolve("alibbi", known, "")


def test_a_task_is_the_configuration_that_has_both(fabricate):
    for seed in range(2):
        for encoding in ("rope", "alibi"):
            run = fabricate("copy", encoding, seed=seed)
        fabricate("copy", "rope", seed=seed, config={"recipe.steps": 7})
    found = compare_runs(run.parents[1], "rope", "alibi", "copy")
    assert found.task.startswith("copy (") and found.seeds == [0, 1]
    assert compare_runs(run.parents[1], "rope", "alibi").task == found.task  # the only one, also where none is named
    with pytest.raises(ReportError, match=r"^t5 has no finished run of copy \(there are: alibi, rope\)"):
        compare_runs(run.parents[1], "rope", "t5", "copy")
    with pytest.raises(ReportError, match=r"^alibbi has no finished run; did you mean alibi\?"):
        compare_runs(run.parents[1], "rope", "alibbi")
    fabricate("copy", "alibi", config={"recipe.steps": 7})
    with pytest.raises(ReportError, match="copy is 2 configurations, of which one is to be named"):
        compare_runs(run.parents[1], "rope", "alibi", "copy")
    with pytest.raises(
        ReportError, match=r"^--task: which one\? .* has 2 tasks with finished runs of both \(there are:"
    ):
        compare_runs(run.parents[1], "rope", "alibi")


def add_examples(run):
    """examples.csv whose means are those of eval.csv."""
    frames = []
    for row in pd.read_csv(run / "eval.csv").itertuples():
        exact = (np.arange(EXAMPLES) < round(row.exact_match * EXAMPLES)).astype(float)
        columns = {"length": row.length, "example": np.arange(EXAMPLES), "tokens": 4, "loss": row.loss}
        frames.append(pd.DataFrame(columns).assign(token_accuracy=exact, exact_match=exact))
    pd.concat(frames)[list(TABLES["examples"])].to_csv(run / "examples.csv", index=False)


@pytest.fixture
def results_dir(fabricate):
    for encoding in ("alibi", "rope"):
        for seed in range(3):
            run = fabricate("copy", encoding, seed)
    fabricate("retrieval", "alibi", 0)
    fabricate("copy", "rope", 3, status="failed")
    fabricate("copy", "t5", 3, status="failed")
    return run.parents[1]


def test_runs_are_compared(results_dir):
    found = compare_runs(results_dir, "alibi", "rope", "copy", "token_accuracy")
    assert found.seeds == [0, 1, 2] and found.examples is None
    assert (found.lengths["difference"].iloc[-3:] > 0).all()
    assert any(note.startswith("failed: copy-rope-quick-s3-") and "loss is nan" in note for note in found.notes)
    assert not any("t5" in note for note in found.notes)


def test_what_nothing_is_known_of_is_named_too(results_dir):
    """It may be of the two encodings."""
    old = next((results_dir / "runs").glob("copy-rope-*-s2-*"))
    (old / "run.json").write_text((old / "run.json").read_text().replace('"format": 1', '"format": 0'))
    (results_dir / "runs/notes").mkdir()
    asked = ["copy-rope-quick-s9-00000000", "copy-t5-quick-s9-00000000"]
    ledger.append(results_dir, "sweep", runs=asked)
    found = compare_runs(results_dir, "alibi", "rope", "copy", "token_accuracy")
    assert found.seeds == [0, 1]
    assert f"other format: {old.name} (results format 0, where this version reads 1)" in found.notes
    assert "foreign: notes (no run.json)" in found.notes
    assert any(note.startswith(f"missing: {asked[0]}") for note in found.notes)
    assert not any("t5" in note for note in found.notes)


def test_examples_are_read_where_runs_have_them(results_dir):
    for run in (results_dir / "runs").glob("copy-*"):
        if json.loads((run / "run.json").read_text())["status"] == "finished":
            add_examples(run)
    found = compare_runs(results_dir, "alibi", "rope", "copy")
    assert found.examples == EXAMPLES and "fresh_low" in found.lengths
    (run / "examples.csv").write_text("length\n1\n")
    run = sorted((results_dir / "runs").glob("copy-alibi-*"))[0]
    (run / "examples.csv").write_text("length\n1\n")
    with pytest.raises(ReportError, match="examples.csv: no column example"):
        compare_runs(results_dir, "alibi", "rope", "copy")


def test_the_command_prints_and_writes(results_dir, tmp_path, capsys):
    order = ["alibi", "rope", "--task", "copy", str(results_dir), "--out", str(tmp_path / "out")]
    assert main(["compare", *order]) == 0
    printed = capsys.readouterr().out
    found = compare_runs(results_dir, "alibi", "rope", "copy")
    assert printed.startswith(comparison_text(found))
    names = [
        "copy-alibi-rope-exact_match.md",
        "copy-alibi-rope-exact_match.csv",
        "copy-alibi-rope-exact_match-pairs.csv",
    ]
    assert printed.splitlines()[-3:] == [str(tmp_path / "out" / name) for name in names]
    markdown, lengths, pairs = (tmp_path / "out" / name for name in names)
    assert markdown.read_text() == comparison_markdown(found)
    pd.testing.assert_frame_equal(pd.read_csv(lengths), found.lengths, check_dtype=False)
    pd.testing.assert_frame_equal(pd.read_csv(pairs), found.pairs, check_dtype=False)
    assert [path.read_bytes() for path in write_comparison(found, tmp_path / "again")] == [
        path.read_bytes() for path in (markdown, lengths, pairs)
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("alibi rope RESULTS --task sort", "sort has no finished run (there are: copy, retrieval)"),
        ("alibi t5 --task copy RESULTS", "t5 has no finished run of copy (there are: alibi, rope)"),
        ("--task copy alibi alibi RESULTS", "alibi is to be compared with itself: name two"),
        ("alibi rope RESULTS --task copy --metric accuracy", "argument --metric: invalid choice: 'accuracy'"),
        ("alibi --task copy", "the following arguments are required: OTHER"),
        ("alibi rope RESULTS more --task copy", "unrecognized arguments: more"),
        (
            "alibi rope RESULTS --task copy --out RESULTS/runs/file",
            "--out=RESULTS/runs/file: RESULTS/runs/file: File exists",
        ),
    ],
)
def test_a_wrong_request_is_one_line_and_status_2(results_dir, capsys, arguments, message):
    (results_dir / "runs/file").write_text("mine")
    given = [word.replace("RESULTS", str(results_dir)) for word in arguments.split()]
    assert main(["compare", *given]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and error.startswith("error: ")
    assert message.replace("RESULTS", str(results_dir)) in error
    assert (results_dir / "runs/file").read_text() == "mine"


def test_a_place_without_runs_is_one_line(tmp_path, capsys):
    assert main(["compare", "alibi", "rope", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"error: no runs in {tmp_path}")
