"""Figures and the table of one run's attention: what they show, that nothing overlaps, and that bytes repeat."""

import itertools
import math

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from rpe_bench.report.attention import (
    _edges,
    compared,
    figures,
    kernel_figure,
    read_attention,
    text_table,
    write_attention,
)
from rpe_bench.report.figures import paper_style, save_figure

TOKENS = {"causal": {8: 10, 16: 18, 64: 66}, "bidirectional": {8: 8, 64: 64}, "one": {8: 10}}
LAYERS, HEADS = 2, 3


def tables(kind: str) -> dict[str, pd.DataFrame]:
    """As of a run that was trained up to 16; heads attend by exp(-distance / (head + 1))."""
    heads, by_distance, kernel = [], [], []
    of_length = {8: 8, 64: 64} if kind == "grid" else TOKENS[kind]
    trained = 4 if kind == "grid" else of_length.get(16, of_length[8])
    for (length, T), layer, head in itertools.product(of_length.items(), range(LAYERS), range(HEADS)):
        about = {"length": length, "layer": layer, "head": head}
        unseen = length > 16
        share = 0.3 * unseen + 0.01 * head * unseen
        values = {"distance_mean": 1.5 + head, "distance_uniform": T / 4, "entropy": 1.0, "entropy_share": 0.5}
        shares = {"unseen_share": share, "unseen_uniform": 0.5 * unseen, "examples": 32, "tokens": T}
        split = "extrapolation" if unseen else "train_lengths"
        heads.append(about | {"split": split} | values | shares)
        side = math.isqrt(T) if kind == "grid" else T
        for d in range(side):
            row = {"distance": d, "unseen": d >= trained, "queries": T - d, "weight": math.exp(-d / (head + 1)) / 2}
            by_distance.append(about | row)
        offsets = range(1 - side, side if kind in ("grid", "bidirectional") else 1)
        for places in itertools.product(offsets, repeat=2 if kind == "grid" else 1):
            names = ("offset_y", "offset_x") if kind == "grid" else ("offset",)
            d = max(map(abs, places))
            hidden = head == 0 and d > 5
            row = {"unseen": d >= trained, "pairs": T - d, "logit": 3 - 0.1 * d, "kernel": -math.inf if hidden else -d}
            kernel.append(about | dict(zip(names, places, strict=True)) | row)
    return {
        name: pd.DataFrame(rows)
        for name, rows in zip(("attention", "by_distance", "kernel"), (heads, by_distance, kernel), strict=True)
    }


KINDS = [*TOKENS, "grid"]


@pytest.fixture(params=KINDS)
def frames(request: pytest.FixtureRequest) -> dict[str, pd.DataFrame]:
    return tables(request.param)


def assert_nothing_overlaps(figure: Figure) -> None:
    with paper_style():
        figure.draw_without_rendering()
        inside = figure.bbox.padded(1)
        boxes = [text.get_window_extent() for text in figure.texts]
        boxes += [legend.get_window_extent() for legend in figure.legends]
        boxes.append(Bbox.union([axes.get_tightbbox() for axes in figure.axes]))
        labels = [axes.xaxis.label.get_window_extent() for axes in figure.axes if axes.get_xlabel()]
    for i, box in enumerate(boxes):
        assert inside.x0 <= box.x0 and box.x1 <= inside.x1, i
        assert inside.y0 <= box.y0 and box.y1 <= inside.y1, i
        assert not any(box.overlaps(other) for other in boxes[i + 1 :]), i
    assert not any(one.overlaps(other) for one, other in itertools.combinations(labels, 2))


def test_nothing_overlaps(frames: dict[str, pd.DataFrame]) -> None:
    for figure in figures(frames, "retrieval-rope-quick-s0-0123abcd").values():
        assert_nothing_overlaps(figure)


def test_written_twice_the_bytes_are_the_same_and_tables_read_back(tmp_path) -> None:
    frames = {name: frame[frame["layer"] == 0] for name, frame in tables("one").items()}
    first, second = (write_attention(frames, tmp_path / name, "a run") for name in ("one", "two"))
    names = ("attention", "by_distance", "kernel", "logit")
    expected = [f"{name}.csv" for name in names[:3]]
    expected += [f"{name}.{kind}" for name in names for kind in ("pdf", "svg", "png")]
    assert [path.name for path in first] == expected
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == sorted(expected)
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name
    for name, frame in read_attention(tmp_path / "one").items():
        pd.testing.assert_frame_equal(frame, frames[name], rtol=1e-8, check_dtype=False)


def test_maps_of_a_grid_have_the_same_bytes_too(tmp_path) -> None:
    rows = tables("grid")["kernel"].query("layer == 0 and head == 1 and length == 64")
    first, second = (save_figure(kernel_figure(rows, "a run"), tmp_path / name) for name in ("one", "two"))
    for one, other in zip(first, second, strict=True):
        assert one.read_bytes() == other.read_bytes(), one.name


def test_what_is_compared_is_the_longest_within_training_and_the_longest() -> None:
    for name, frame in tables("causal").items():
        assert compared(frame) == [16, 64], name
    assert compared(tables("one")["attention"]) == [8]
    beyond = tables("causal")["attention"].query("length == 64")
    assert compared(beyond) == [64]


def test_the_table_is_of_the_compared_lengths() -> None:
    head, *lines = text_table(tables("causal")["attention"]).splitlines()
    assert head.split("distance", 1)[1] == " at 16 distance at 64 entropy at 16 entropy at 64 unseen at 64"
    assert len(lines) == LAYERS * HEADS
    assert lines[-1].split() == ["1", "2", "3.5", "3.5", "1.00", "1.00", "0.320"]


def test_lines_are_the_numbers_of_the_table() -> None:
    frames = tables("causal")
    drawn = figures(frames, "a run")
    panel = drawn["attention"].axes[0]
    rows = frames["attention"].query("layer == 0 and head == 2")
    assert np.allclose(panel.lines[2].get_xydata(), rows[["length", "distance_mean"]])
    assert panel.lines[3].get_ydata().tolist() == rows["distance_uniform"].tolist()
    for name, column in (("kernel", "kernel"), ("logit", "logit")):
        line = drawn[name].axes[1].lines[1]
        rows = frames["kernel"].query("length == 64 and layer == 0 and head == 1")
        at_zero = rows[column][rows["offset"] == 0].iloc[0]
        assert np.allclose(2 ** line.get_xdata() - 1, -rows["offset"])
        assert np.allclose(line.get_ydata(), rows[column] - at_zero)
    hidden = drawn["kernel"].axes[1].lines[0].get_ydata()
    assert np.isnan(hidden[:-6]).all() and np.isfinite(hidden[-6:]).all()


def test_the_heat_map_shows_the_mean_weight_of_each_step_of_distance() -> None:
    frames = tables("causal")
    mesh = figures(frames, "a run")["by_distance"].axes[1].collections[0]
    edges = _edges(66)
    assert edges[0] == (0, 1) and edges[-1][1] == 66
    assert all(one[1] == other[0] for one, other in itertools.pairwise(edges))
    found = mesh.get_array().reshape(LAYERS * HEADS, len(edges))
    weight = np.exp(-np.arange(66) / 2) / 2
    assert np.allclose(found[1], [weight[first:after].mean() for first, after in edges])


def test_rows_of_a_grid_go_down() -> None:
    panel = figures(tables("grid"), "a run")["kernel"].axes[0]
    assert panel.yaxis_inverted()
