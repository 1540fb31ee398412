"""Perplexity by position in the sequence, beside what was trained on."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from rpe_bench.report import curves
from rpe_bench.report.figures import COLUMN, PAGE, Style, looks_of, paper_style
from rpe_bench.report.layout import compose, log_axis, number_log
from rpe_bench.report.load import Results
from rpe_bench.report.published import grouped_floor, grouped_positions


def perplexity_figure(results: Results, task: str, looks: Mapping[str, Style] | None = None) -> Figure:
    """Perplexity by position for one task label, one line an encoding, on a logarithmic axis.

    One panel for the training length, one for twice that and one for the longest length; of many encodings, a panel a
    family for the longest length alone. A task with a single answer in a sequence has one panel across lengths instead,
    of the position where the answer is read, or of the length where it is read from no single position. Means over
    seeds are taken of the loss, so that they are geometric means of the perplexity: one seed that is certain and wrong
    doesn't hide the others. Long sequences are drawn in groups of positions, as `published.grouped_positions` has them.
    """
    looks = looks or looks_of(results.encoding_labels)
    rows = grouped_positions(curves.of_task(results.positions, task))
    with paper_style():
        if (rows["to"] - rows["position"]).max() > 1 or rows.groupby("length")["position"].nunique().max() > 1:
            return _by_position(rows, grouped_floor(curves.of_task(results.floor_positions, task)), task, looks)
        if rows["position"].nunique() == rows["length"].nunique() > 0:
            end = int(rows["train_tokens"].max()) - 1
            return _across_lengths(rows, "position", "position of the answer (one per sequence)", end, task, looks)
        rows = curves.of_task(results.evaluations, task)
        end = int(rows["train_length"].max())
        return _across_lengths(rows, "length", "length (one answer per sequence)", end, task, looks)


def _by_position(rows: pd.DataFrame, floor: pd.DataFrame, task: str, looks: Mapping[str, Style]) -> Figure:
    drawn = set(rows["encoding_label"])
    titles = curves.titles_of(looks, drawn)
    lengths = _panel_lengths(rows)
    rows = rows.assign(middle=(rows["position"] + rows["to"] - 1) / 2)
    figure = Figure(figsize=(PAGE, COLUMN))
    shown: list[tuple[Axes, int, str]]
    if len(titles) == 1:
        columns = len(lengths)
        panels = list(figure.subplots(1, columns, sharey=True, squeeze=False)[0])
        shown = [(panel, length, titles[0]) for panel, length in zip(panels, lengths, strict=True)]
    else:
        panels, columns = curves.panels_of(figure, titles)
        shown = [(panel, lengths[-1], title) for panel, title in zip(panels, titles, strict=True)]
    there = list(dict.fromkeys(length for _, length, _ in shown))
    points = {length: curves.points_of(rows[rows["length"] == length], "middle", "loss") for length in there}
    equal = curves.equal_lines(list(points.values()), "middle", looks, True)
    own = []
    for panel, length, title in shown:
        mine = curves.faded_but(looks, title)
        curves.draw(panel, points[length], "middle", mine)
        own.append(curves.handles_of(rows, "loss", mine, equal))
        ratio = rows.loc[rows["length"] == length, "ratio"].iloc[0]
        if len(titles) == 1:
            panel.set_title(f"length {length} ({ratio:.4g}× the training length)", loc="left")
        panel.set_xlabel("position in the sequence")
        panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        panel.margins(x=0.03)
    shared = curves.others(looks, drawn)
    if len(floor):
        shared.append(_floor([(panel, length) for panel, length, _ in shown], floor))
    shared.append(curves.boundary(panels, rows["train_tokens"].max() - 0.5, "end of the longest training sequence"))
    log_axis(panels, "perplexity", 1.0)
    for panel in panels[::columns]:
        panel.set_ylabel("perplexity")
    caption = curves.caption_of(rows, "geometric mean") + curves.usual_seeds(rows)
    if len(titles) == 1:
        compose(figure, panels, [*own[0], *shared], task, caption, height=1.75)
    else:
        ratio = rows["ratio"].max()
        caption += f"; length {lengths[-1]} ({ratio:.4g}× the training length); grey: those of the other panels"
        compose(figure, panels, shared, task, caption, height=1.4, columns=columns, own=own)
    return figure


def _floor(panels: Sequence[tuple[Axes, int]], floor: pd.DataFrame) -> Line2D:
    """What the ideal predictor loses, above the lines that come down to it. It is that of the examples, which all runs
    of a task share."""
    look: dict[str, Any] = {"color": "#404040", "linestyle": (0, (1, 1.5)), "linewidth": 0.8, "label": "entropy floor"}
    floor = floor.assign(middle=(floor["position"] + floor["to"] - 1) / 2)
    for panel, length in panels:
        ideal = floor[floor["length"] == length].groupby("middle")["loss"].first()
        panel.plot(ideal.index, np.exp(ideal), **look, zorder=3.5)
    return Line2D([], [], **look)


def _across_lengths(
    rows: pd.DataFrame, x: str, x_label: str, end: int, task: str, looks: Mapping[str, Style]
) -> Figure:
    """Perplexity across lengths; end: x in the longest training sequence."""
    lengths = sorted(rows[x].unique())
    caption = curves.caption_of(rows, "geometric mean")
    if len(lengths) == 1:
        figure = Figure(figsize=(COLUMN, COLUMN))
        axes = figure.add_subplot()
        curves.side_by_side(axes, rows, "loss", looks)
        axes.set_xscale("log")
        low, high = axes.get_xlim()
        axes.set_xlim(min(low, 1.0) / 1.02, max(high, 1.5))
        number_log(axes.xaxis, *axes.get_xlim())
        axes.set_xlabel("perplexity")
        height = 0.3 + 0.16 * rows["encoding_label"].nunique()
        compose(figure, [axes], [], task, f"{caption}; {x_label}: {lengths[0]}", height=height)
        return figure

    def finish(panels: Sequence[Axes]) -> Sequence[Artist]:
        trained = curves.boundary(panels, end, "longest training sequence")
        log_axis(panels, labels[1], 1.0)
        return [trained]

    labels = (x_label, "perplexity")
    points = curves.points_of(rows, x, "loss")
    return curves.line_figure(rows, points, x, "loss", task, looks, caption, labels, finish, lengths=lengths, log=True)


def _panel_lengths(rows: pd.DataFrame) -> list[int]:
    """The training length, the length nearest to twice that and the longest one, as far as they were evaluated."""
    lengths = np.array(sorted(rows["length"].unique()))
    trained = rows["train_length"].max()
    wanted = [lengths[np.abs(np.log(lengths / (trained * factor))).argmin()] for factor in (1, 2)]
    return sorted({int(length) for length in (*wanted, lengths[-1])})
