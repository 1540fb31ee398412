"""Heat maps of accuracy by distance and length: what is drawn, and that nothing covers anything."""

import matplotlib
import numpy as np
import pandas as pd
import pytest

from rpe_bench.report import write_report
from rpe_bench.report.figures import PAGE, paper_style, save_figure
from rpe_bench.report.heatmaps import BINS, binned, distance_figure, has_distances
from rpe_bench.report.load import load_results

LENGTHS = [24, 48, 96]


@pytest.fixture
def retrieval(fabricate):
    """A function that leaves a run with accuracies by distance: accuracy(seed, length, distance)."""

    def leave(encoding, seed, accuracy, lengths=LENGTHS, **config):
        run = fabricate("retrieval", encoding, seed, config={"evaluation.lengths": list(lengths), **config})
        rows = []
        for length in lengths:
            for distance in range(1, length):
                row = {"length": length, "slice": "distance", "value": distance, "examples": distance}
                rows.append(row | {"tokens": distance, "loss": 0.1, "accuracy": accuracy(seed, length, distance)})
        rows.append(rows[0] | {"slice": "something else", "value": 5, "accuracy": 0.0})
        pd.DataFrame(rows).to_csv(run / "slices.csv", index=False)
        return run.parents[1]

    return leave


def by_hand(seed, length, distance):
    return distance / length if seed == 0 else 1.0


def test_bins_weigh_distances_by_tokens_and_seeds_alike(retrieval):
    for seed in range(2):
        results = load_results(retrieval("rope", seed, by_hand))
    cells = binned(results, "retrieval").set_index(["length", "bin"])
    for length in LENGTHS:
        distances = np.arange(1, length)
        # Bin b holds the distances d with b / BINS < d / farthest <= (b + 1) / BINS.
        for place in range(BINS):
            inside = (BINS * distances > place * (length - 1)) & (BINS * distances <= (place + 1) * (length - 1))
            d = distances[inside]
            expected = (np.average(d / length, weights=d) + 1) / 2
            row = cells.loc[(length, place)]
            assert row["mean"] == pytest.approx(expected) and row["n"] == 2


def test_a_name_wider_than_its_panel_is_broken_between_its_words(retrieval):
    for name in ("alibi", "cope", "fire", "t5"):
        retrieval(name, 0, by_hand)
    drawn = {"name": "randomised", "range": 512}
    figure = distance_figure(load_results(retrieval("rope", 0, by_hand, positions=drawn)), "retrieval")
    titles = [panel.get_title(loc="left") for panel in figure.axes[:5]]
    assert titles == ["alibi", "cope", "fire", "rope (positions=\nrandomised)", "t5"]


def test_one_panel_an_encoding_with_the_mean_as_colour(retrieval):
    for encoding in ("t5", "alibi"):
        for seed in range(2):
            results = load_results(retrieval(encoding, seed, by_hand))
    figure = distance_figure(results, "retrieval")
    assert figure.get_figwidth() == PAGE
    *panels, bar = figure.axes
    assert [panel.get_title(loc="left") for panel in panels] == ["alibi", "t5"]
    cells = binned(results, "retrieval").query("encoding_label == 't5'")
    drawn = panels[1].images[0].get_array()
    assert drawn.shape == (BINS, len(LENGTHS)) and panels[1].images[0].get_clim() == (0, 1)
    for cell in cells.itertuples():
        assert drawn[cell.bin, LENGTHS.index(cell.length)] == pytest.approx(cell.mean)
    assert not panels[1].yaxis_inverted()  # near below
    assert [line.get_xdata()[0] for line in panels[0].lines] == [1.5, 1.5]  # behind 24 and 48, of 48 trained on
    assert [label.get_text() for label in panels[0].get_xticklabels()] == ["0.5", "1", "2"]
    assert "mean of 2 seeds" in figure.texts[-1].get_text() and bar.lines[0].get_xdata()[0] == 1 / 16


def test_a_distance_that_a_length_has_not_is_no_accuracy(retrieval):
    results = load_results(retrieval("rope", 0, by_hand, lengths=[5, 48]))
    figure = distance_figure(results, "retrieval")
    drawn = figure.axes[0].images[0].get_array()
    assert drawn.mask[:, 0].sum() == BINS - 4 and not drawn.mask[:, 1].any()
    assert "1 seed" in figure.texts[-1].get_text()


@pytest.mark.parametrize("number", [1, 3, 25])
def test_nothing_overlaps_and_the_same_bytes_come_again(retrieval, tmp_path, number):
    lengths = [24, 48, 60, 72, 96, 192, 384]
    for i in range(number):
        config = {"encoding.an_unusually_long_option": "with-a-value" if i == 1 else "none"}
        results = load_results(
            retrieval(f"encoding_{i // 2}", 0, by_hand, lengths=lengths, **config, **{"encoding.base": i})
        )
    figure = distance_figure(results, "retrieval")
    assert len(figure.axes) == number + 1
    with paper_style():
        figure.draw_without_rendering()
        boxes = [axes.get_tightbbox() for axes in figure.axes] + [text.get_window_extent() for text in figure.texts]
        inside = figure.bbox.padded(1)
        for i, box in enumerate(boxes):
            assert inside.x0 <= box.x0 and box.x1 <= inside.x1 and inside.y0 <= box.y0 and box.y1 <= inside.y1, i
            for other in boxes[i + 1 :]:
                assert not box.padded(-1).overlaps(other), (i, other)
        ticks = [label.get_window_extent() for label in figure.axes[number - 1].get_xticklabels()]
        assert all(one.x1 < other.x0 for one, other in zip(ticks, ticks[1:], strict=False))
    if number == 3:
        first = save_figure(distance_figure(results, "retrieval"), tmp_path / "first")
        with matplotlib.rc_context({"font.size": 20, "image.cmap": "jet"}):
            second = save_figure(distance_figure(results, "retrieval"), tmp_path / "second")
        assert all(one.read_bytes() == other.read_bytes() for one, other in zip(first, second, strict=True))


def test_a_report_draws_it_for_every_task_that_has_distances(retrieval, fabricate, tmp_path):
    results_dir = retrieval("rope", 0, by_hand)
    fabricate("copy", "rope", 0)
    fabricate("adjacency_tutorial", "rope", 0)
    results = load_results(results_dir)
    assert [has_distances(results, task) for task in ("retrieval", "copy", "adjacency_tutorial")] == [
        True,
        False,
        False,
    ]
    figures = {path.name for path in write_report(results_dir, tmp_path / "out").figures}
    assert {name for name in figures if "distance" in name} == {
        f"retrieval-distance.{kind}" for kind in ("pdf", "svg", "png")
    }


def test_a_single_distance_is_no_heat_map(fabricate):
    assert not has_distances(load_results(fabricate("retrieval", "rope").parents[1]), "retrieval")
