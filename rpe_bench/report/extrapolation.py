"""Token accuracy against length / training length: the figure that this project is about."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from rpe_bench.report.curves import (
    boundary,
    caption_of,
    draw,
    ends_of,
    equal_lines,
    faded_but,
    fit_failures,
    handles_of,
    of_task,
    others,
    panels_of,
    points_of,
    side_by_side,
    titles_of,
)
from rpe_bench.report.figures import COLUMN, Style, looks_of, paper_style
from rpe_bench.report.layout import compose
from rpe_bench.report.load import Results
from rpe_bench.report.tables import baseline_table

_BASELINES: Sequence[tuple[str, tuple[float, tuple[float, ...]]]] = (
    ("chance", (0, (4, 2))),
    ("majority", (0, (1, 1.5))),
)


def extrapolation_figure(results: Results, task: str, looks: Mapping[str, Style] | None = None) -> Figure:
    """Token accuracy against length / training length for one task label, one line an encoding.

    Lines are means over seeds, bands their 95 % intervals, dots the single seeds. Many encodings have a panel a family,
    with all others faded behind it. Of a single evaluated length, encodings stand below one another instead. looks: by
    default of all encodings in the results.
    """
    looks = looks or looks_of(results.encoding_labels)
    rows = of_task(results.evaluations, task)
    baselines = of_task(baseline_table(results), task)
    drawn = set(rows["encoding_label"])
    lengths = sorted(rows["ratio"].unique())
    caption = caption_of(rows) + fit_failures(rows)
    with paper_style():
        figure = Figure(figsize=(COLUMN, COLUMN))
        if len(lengths) == 1:
            axes = figure.add_subplot()
            side_by_side(axes, rows, "token_accuracy", looks)
            handles = [axes.axvline(baselines[name].iloc[0], **_line(name, dashes)) for name, dashes in _BASELINES]
            axes.set(xlim=(-0.03, 1.03), xlabel="token accuracy")
            where = f"; length {rows['length'].iloc[0]} ({lengths[0]:.4g}× the training length)"
            compose(figure, [axes], handles, task, caption + where, height=0.3 + 0.16 * len(drawn))
            return figure
        titles = titles_of(looks, drawn)
        panels, columns = panels_of(figure, titles)
        points = points_of(rows, "ratio", "token_accuracy")
        equal = equal_lines([points], "ratio", looks)
        own = []
        for panel, title in zip(panels, titles, strict=True):
            mine = faded_but(looks, title)
            draw(panel, points, "ratio", mine, rows.assign(y=rows["token_accuracy"]))
            own.append(handles_of(rows, "token_accuracy", mine, equal))
            for name, dashes in _BASELINES:
                panel.plot(baselines["ratio"], baselines[name], **_line(name, dashes))
            panel.set_xlabel("length / training length")
        panels[0].set(ylim=(-0.03, 1.03))
        panels[0].yaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
        for panel in panels[::columns]:
            panel.set_ylabel("token accuracy")
        shared = [Line2D([], [], **_line(name, dashes)) for name, dashes in _BASELINES]
        shared.append(boundary(panels, 1.0, "training length"))
        shared = [*others(looks, drawn), *shared]
        if len(panels) == 1:
            ends = ends_of(panels[0], own[0], points, "ratio")
            compose(figure, panels, [*own[0], *shared], task, caption, height=1.95, lengths=lengths, ends=ends)
        else:
            caption += "; grey: those of the other panels"
            compose(figure, panels, shared, task, caption, height=1.4, lengths=lengths, columns=columns, own=own)
    return figure


def _line(name: str, dashes: tuple[float, tuple[float, ...]]) -> dict[str, Any]:
    """Above the others: one that does no better than a baseline would hide it."""
    return {"color": "#404040", "linestyle": dashes, "linewidth": 0.8, "zorder": 3.5, "label": name}
