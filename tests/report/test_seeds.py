"""How many seeds a report says that it takes to see a difference."""

import math

import numpy as np
import pandas as pd

from rpe_bench.report.load import load_results
from rpe_bench.report.seeds import HEADING, SIZES, seeds_lines, typical_spread
from rpe_bench.report.significance import pairs_needed
from rpe_bench.report.typeset import rendered


def rows(scores):
    """scores: encoding -> seed -> a score at ratios 0.5, 1 and 2."""
    return pd.DataFrame(
        [
            (encoding, seed, ratio, 16 * ratio, score)
            for encoding, seeds in scores.items()
            for seed, of_seed in seeds.items()
            for ratio, score in zip((0.5, 1, 2), of_seed, strict=True)
        ],
        columns=["encoding_label", "seed", "ratio", "length", "token_accuracy"],
    )


def test_the_spread_is_of_paired_differences():
    rng = np.random.default_rng(0)
    shared = rng.normal(0, 0.3, 40)  # what encodings share under a seed is in no difference
    scores = {
        name: {
            seed: rng.normal(0, 9, 1).tolist() + (shared[seed] + rng.normal(0, 0.02, 2)).tolist() for seed in range(40)
        }
        for name in "abc"
    }
    found = typical_spread(rows(scores))
    assert abs(found / (0.02 * math.sqrt(2)) - 1) < 0.15
    single = {"d": {0: [0.5, 0.5, 0.5]}}
    assert typical_spread(rows(scores | single)) == found
    one = rows({"a": scores["a"], "b": scores["b"]})
    at = one[one["ratio"] >= 1].pivot(index=["length", "seed"], columns="encoding_label", values="token_accuracy")
    assert np.isclose(typical_spread(one), (at["a"] - at["b"]).groupby("length").std().median())


def test_without_spread_nothing_is_said():
    same = {name: {seed: [1.0, 1.0, 0.5] for seed in range(3)} for name in "ab"}
    assert math.isnan(typical_spread(rows(same)))
    assert math.isnan(typical_spread(rows({"a": {0: [1, 1, 1]}, "b": {0: [1, 1, 0]}})))


def test_the_page_of_tables_says_it_of_each_task(fabricate):
    for encoding in ("alibi", "rope"):
        for seed in range(3):
            run = fabricate("copy", encoding, seed)
        fabricate("retrieval", encoding)
    results = load_results(run.parents[1])
    [line] = seeds_lines(results)
    spread = typical_spread(results.evaluations.query("task == 'copy'"))
    counts = [pairs_needed(size, spread) for size in SIZES]
    assert line.startswith(f"copy: 0.05 with {counts[0]} seeds, 0.1 with {counts[1]} seeds, 0.2 with {counts[2]} seeds")
    assert line.endswith("; here are 3)")
    text = rendered(results)["accuracy.md"]
    assert HEADING in text and f"- {line}" in text
