"""Token accuracy against length / training length: the figure that this project is about."""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator

from rpe_bench.report import curves
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
    rows = curves.of_task(results.evaluations, task)
    baselines = curves.of_task(baseline_table(results), task)
    lengths = sorted(rows["ratio"].unique())
    caption = curves.caption_of(rows) + curves.coverage_over(rows) + curves.fit_failures(rows)

    def finish(panels: Sequence[Axes]) -> Sequence[Artist]:
        for panel in panels:
            for name, dashes in _BASELINES:
                panel.plot(baselines["ratio"], baselines[name], **_line(name, dashes))
        panels[0].set(ylim=(-0.03, 1.03))
        panels[0].yaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
        shown = [Line2D([], [], **_line(name, dashes)) for name, dashes in _BASELINES]
        return [*shown, curves.boundary(panels, 1.0, "training length")]

    with paper_style():
        if len(lengths) > 1:
            points = curves.points_of(rows, "ratio", "token_accuracy")
            dots = rows.assign(y=rows["token_accuracy"])
            labels = ("length / training length", "token accuracy")
            return curves.line_figure(
                rows,
                points,
                "ratio",
                "token_accuracy",
                task,
                looks,
                caption,
                labels,
                finish,
                lengths=lengths,
                dots=dots,
            )
        figure = Figure(figsize=(COLUMN, COLUMN))
        axes = figure.add_subplot()
        curves.side_by_side(axes, rows, "token_accuracy", looks)
        handles = [axes.axvline(baselines[name].iloc[0], **_line(name, dashes)) for name, dashes in _BASELINES]
        axes.set(xlim=(-0.03, 1.03), xlabel="token accuracy")
        where = f"; length {rows['length'].iloc[0]} ({lengths[0]:.4g}× the training length)"
        height = 0.3 + 0.16 * rows["encoding_label"].nunique()
        compose(figure, [axes], handles, task, caption + where, height=height)
        return figure


def _line(name: str, dashes: tuple[float, tuple[float, ...]]) -> dict[str, Any]:
    """Above the others: one that does no better than a baseline would hide it."""
    return {"color": "#404040", "linestyle": dashes, "linewidth": 0.8, "zorder": 3.5, "label": name}
