"""Accuracy by how far back the answer lies and how long the sequence is: a heat map for each encoding."""

import math
import textwrap
from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.ticker import NullLocator

from rpe_bench.report.figures import PAGE, paper_style
from rpe_bench.report.layout import write_above
from rpe_bench.report.load import Results, in_order
from rpe_bench.report.published import BINS, distance_bins
from rpe_bench.report.statistics import LINE, over_seeds
from rpe_bench.report.tables import baseline_table, count_seeds, trained_up_to

COLOURS = "cividis"
"""Brightness grows evenly with the value, so that it is told apart by colour-blind readers and in grey."""

_MOST_COLUMNS = 5
_LEFT, _RIGHT, _GAP = 0.42, 0.08, 0.12
"""Inches beside and between the panels."""
_EMPTY = "#dddddd"


def has_distances(results: Results, task: str) -> bool:
    """Whether a task label has accuracy by more than one distance at some length."""
    return bool((_distances(results, task).groupby("length")["bin"].nunique() > 1).any())


def binned(results: Results, task: str) -> pd.DataFrame:
    """Token accuracy by length and bin of the distance: LINE, length, ratio, bin (0: nearest, BINS - 1: farthest), and
    n, mean, min, max over seeds."""
    return over_seeds(_distances(results, task), "accuracy", [*LINE, "length", "ratio", "bin"])


def distance_figure(results: Results, task: str) -> Figure:
    """One panel an encoding: lengths from left to right, distances from near to far upwards, mean accuracy as colour.

    A line stands behind the last length that was trained on. Grey: no example at such a distance.
    """
    cells = binned(results, task)
    rows = _distances(results, task)
    encodings = in_order(cells["encoding_label"])
    ratios = sorted(cells["ratio"].unique())
    columns = min(len(encodings), _MOST_COLUMNS)
    width = min(1.9, (PAGE - _LEFT - _RIGHT - _GAP * (columns - 1)) / columns)
    with paper_style():
        figure = Figure(figsize=(PAGE, PAGE))
        panels = list(figure.subplots(math.ceil(len(encodings) / columns), columns, squeeze=False).flat)
        for spare in panels[len(encodings) :]:
            spare.remove()
        panels = panels[: len(encodings)]
        bar = figure.add_axes((0.5, 0.5, 0.1, 0.1))
        for panel, encoding in zip(panels, encodings, strict=True):
            image = _draw(panel, cells[cells["encoding_label"] == encoding], ratios)
        _number(panels, ratios, width)
        figure.colorbar(image, cax=bar, orientation="horizontal", ticks=[0, 0.5, 1])
        chance = baseline_table(results).query("task_label == @task")["chance"].unique()
        if len(chance) == 1:
            bar.axvline(chance[0], color="white", linewidth=0.8)
            bar.set_title(f"token accuracy (line: chance, {chance[0]:.3g})", fontsize=6.5, pad=3)
        else:
            bar.set_title("token accuracy", fontsize=6.5, pad=3)
        seeds = count_seeds(rows)
        caption = (
            f"{trained_up_to(rows)}; {'1 seed' if seeds == '1 seed' else f'mean of {seeds}'};"
            " distance: as a share of the greatest at each length"
        )
        _compose(figure, panels, columns, width, encodings, bar, task, caption)
    return figure


def _distances(results: Results, task: str) -> pd.DataFrame:
    rows = results.slices
    return distance_bins(rows[rows["task_label"] == task])


def _draw(axes: Axes, cells: pd.DataFrame, ratios: Sequence[float]) -> AxesImage:
    values = np.full((BINS, len(ratios)), np.nan)
    values[cells["bin"], [ratios.index(ratio) for ratio in cells["ratio"]]] = cells["mean"]
    image = axes.imshow(
        np.ma.masked_invalid(values),
        origin="lower",
        aspect="auto",
        interpolation="nearest",
        vmin=0,
        vmax=1,
        cmap=COLOURS,
    )
    axes.set_facecolor(_EMPTY)
    axes.grid(False)
    trained = sum(ratio <= 1 for ratio in ratios)
    # White between two dark lines is seen on any colour.
    axes.axvline(trained - 0.5, color="black", linewidth=1.6)
    axes.axvline(trained - 0.5, color="white", linewidth=0.7)
    axes.set_yticks([-0.5, BINS / 2 - 0.5, BINS - 0.5], ["0", "0.5", "1"])
    axes.xaxis.set_minor_locator(NullLocator())
    return image


def _compose(
    figure: Figure,
    panels: Sequence[Axes],
    columns: int,
    each: float,
    names: Sequence[str],
    bar: Axes,
    title: str,
    caption: str,
) -> None:
    """Set panels in rows, each below its name, between title and bar; the figure grows to hold them."""
    height = 0.62 * each if columns > 3 else 0.75 * each
    # Also behind an equals sign: "positions=randomised" may be wider than a panel.
    broken = [textwrap.wrap(name.replace("=", "= "), round(each * 17)) for name in names]
    wrapped = [[line.replace("= ", "=") for line in lines] for lines in broken]
    titles, captions = textwrap.wrap(title, round(PAGE * 16)), textwrap.wrap(caption, round(PAGE * 18))
    above = 0.1 + 0.13 * (len(titles) + len(captions))
    rows = math.ceil(len(panels) / columns)
    heads = [max(len(lines) for lines in wrapped[row * columns : (row + 1) * columns]) for row in range(rows)]
    below = 0.68
    total = above + below + sum(height + 0.08 + 0.11 * lines for lines in heads)
    figure.set_size_inches(PAGE, total)
    top = total - above
    for row, lines in enumerate(heads):
        top -= height + 0.08 + 0.11 * lines
        for column, panel in enumerate(panels[row * columns : (row + 1) * columns]):
            x = _LEFT + column * (each + _GAP)
            panel.set_position((x / PAGE, top / total, each / PAGE, height / total))
            panel.set_title("\n".join(wrapped[row * columns + column]), loc="left", pad=2.5)
            if row * columns + column + columns < len(panels):
                panel.tick_params(labelbottom=False)
            if column:
                panel.tick_params(labelleft=False)
    figure.text(_LEFT / PAGE, 0.35 / total, "length / training length (line: training length)", fontsize=7, va="center")
    middle = (total - above + below) / 2 / total
    figure.text(0.1 / PAGE, middle, "distance", fontsize=7, rotation=90, ha="center", va="center")
    bar.set_position(((PAGE - _RIGHT - 2.0) / PAGE, 0.2 / total, 1.9 / PAGE, 0.1 / total))
    write_above(figure, _LEFT, titles, captions)


def _number(panels: Sequence[Axes], ratios: Sequence[float], width: float) -> None:
    """Number the columns of panels of a width in inches, as far as there is room; powers of two first."""
    labels = [f"{ratio:.3g}" for ratio in ratios]
    cell = width / len(labels)
    shown: list[int] = []
    for i in sorted(range(len(labels)), key=lambda i: (math.log2(ratios[i]) % 1 != 0, i)):
        if all(abs(i - j) * cell > 0.028 * (len(labels[i]) + len(labels[j])) + 0.03 for j in shown):
            shown.append(i)
    for panel in panels:
        panel.set_xticks(sorted(shown), [labels[i] for i in sorted(shown)])
