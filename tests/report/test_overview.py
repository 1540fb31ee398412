"""Encodings by tasks, and what accuracy costs."""

import json

import numpy as np
import pandas as pd
import pytest

from rpe_bench.report.cost import cost_figure, costs, has_costs
from rpe_bench.report.figures import COLUMN, paper_style
from rpe_bench.report.load import load_results
from rpe_bench.report.overview import has_overview, overview_figure
from rpe_bench.report.statistics import effective_lengths


def inside(figure):
    with paper_style():
        figure.draw_without_rendering()
        boxes = [axes.get_tightbbox() for axes in figure.axes] + [text.get_window_extent() for text in figure.texts]
        edge = figure.bbox.padded(1)
    return all(edge.x0 <= b.x0 and b.x1 <= edge.x1 and edge.y0 <= b.y0 and b.y1 <= edge.y1 for b in boxes)


def test_the_overview_has_a_number_for_every_encoding_and_task(fabricate):
    for seed in range(2):
        for encoding in ("alibi", "rope"):
            run = fabricate("copy", encoding, seed)
        fabricate("retrieval", "alibi", seed)
        lost = fabricate("adjacency_tutorial", "rope", seed)
        pd.read_csv(lost / "eval.csv").assign(exact_match=0.5).to_csv(lost / "eval.csv", index=False)
    results = load_results(run.parents[1])
    figure = overview_figure(results)
    axes = figure.axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["alibi", "rope"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["copy", "retrieval"]
    shown = {(text.get_position()[1], text.get_position()[0]): text.get_text() for text in axes.texts}
    lengths = effective_lengths(results.evaluations)
    means = lengths.groupby(["encoding_label", "task_label"])["effective_ratio"].mean()
    assert set(shown) == {(0, 0), (1, 0), (0, 1)}  # rope was not run on retrieval
    assert shown[1, 0].rstrip("+") == f"{means['rope', 'copy']:.3g}"
    assert np.ma.getmaskarray(axes.images[0].get_array()).tolist() == [[False, False], [False, True]]
    caption = " ".join(text.get_text() for text in figure.texts)
    assert "mean over 2 seeds" in caption and "not shown, as no run holds at the training length: adjacency_" in caption
    assert figure.get_figwidth() == COLUMN and inside(figure)


def test_there_is_no_overview_where_nothing_holds(fabricate):
    run = fabricate("copy", "rope")
    pd.read_csv(run / "eval.csv").assign(exact_match=0.0).to_csv(run / "eval.csv", index=False)
    assert not has_overview(load_results(run.parents[1]))


@pytest.fixture
def timed(fabricate):
    for encoding, speed, more in (("alibi", 1000, 0), ("rope", 2000, 500), ("t5", 1500, 10), ("nope", 4000, 0)):
        for seed in range(3):
            run = fabricate("copy", encoding, seed)
            record = json.loads((run / "run.json").read_text())
            record |= {"tokens_per_second": speed * (1 + seed), "parameters": 1000 + more}
            (run / "run.json").write_text(json.dumps(record))
    return load_results(run.parents[1])


def test_costs_are_medians_and_the_front_is_what_nothing_beats(timed):
    table = costs(timed, "copy").set_index("encoding_label")
    assert table.loc["alibi", ["milliseconds", "milliseconds_min", "milliseconds_max"]].tolist() == [
        500.0,
        pytest.approx(1000 / 3),
        1000.0,
    ]
    assert table["more_parameters"].to_dict() == {"alibi": 0, "nope": 0, "rope": 500, "t5": 10}
    for cost in ("milliseconds", "more_parameters"):
        for label, row in table.iterrows():
            better = (table[cost] <= row[cost]) & (table["mean"] >= row["mean"])
            strictly = (table[cost] < row[cost]) | (table["mean"] > row["mean"])
            assert row[f"front_{cost}"] == (not (better & strictly).any()), (cost, label)
    assert table["front_more_parameters"].to_dict() == {"alibi": True, "nope": False, "rope": False, "t5": False}


def test_the_cost_figure_marks_every_encoding_in_both_panels(timed):
    figure = cost_figure(timed, "copy")
    table = costs(timed, "copy").set_index("encoding_label")
    assert [axes.get_xlabel() for axes in figure.axes] == [
        "training time / ms per 1,000 tokens",
        "parameters beyond the smallest model",
    ]
    for axes, cost in zip(figure.axes, ("milliseconds", "more_parameters"), strict=True):
        marks = [line for line in axes.lines if line.get_marker() != "None"]
        drawn = sorted((line.get_xdata()[0], line.get_ydata()[0]) for line in marks)
        assert drawn == sorted(zip(table[cost], table["mean"], strict=True))
    assert "mean and 95 % interval over 3 seeds" in " ".join(text.get_text() for text in figure.texts)
    assert inside(figure)


def test_there_are_no_costs_without_times(fabricate):
    assert not has_costs(load_results(fabricate("copy", "rope").parents[1]), "copy")
