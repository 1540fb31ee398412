"""One run's scores in one picture: accuracy by length, and perplexity by position.

For the W&B mirror, which draws it beside every run; figures that compare runs are those of `rpe_bench.report`, whose
import alone would take longer than this.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, MaxNLocator, NullLocator

Row = Mapping[str, Any]

ACCURACIES = {"token_accuracy": ("#0072B2", "o-"), "exact_match": ("#D55E00", "s-")}
BASELINES = {"chance": "--", "majority": ":"}
GREY = "#707070"
SMALL = 7


def run_figure(run_id: str, tables: Mapping[str, Sequence[Row]], train_length: int) -> Figure:
    """tables: rows by the names of rpe_bench.schema.TABLES; what is absent is left out."""
    figure = Figure(figsize=(6.75, 2.6), dpi=150)
    left, right = figure.subplots(1, 2)
    figure.subplots_adjust(left=0.07, right=0.99, bottom=0.15, top=0.76, wspace=0.2)
    figure.suptitle(run_id, x=0.07, ha="left", fontsize=SMALL + 1)
    _by_length(left, tables, train_length)
    _by_position(right, tables)
    for axes in (left, right):
        axes.tick_params(labelsize=SMALL)
        axes.grid(color="#e6e6e6", linewidth=0.5)
        if axes.get_legend_handles_labels()[1]:
            above = {"loc": "lower left", "bbox_to_anchor": (-0.02, 1.0), "ncols": 3 if axes is left else 7}
            axes.legend(fontsize=SMALL, frameon=False, handlelength=1.5, columnspacing=1, labelspacing=0.2, **above)
    return figure


def _by_length(axes: Axes, tables: Mapping[str, Sequence[Row]], train_length: int) -> None:
    for column, (colour, look) in ACCURACIES.items():
        rows = tables.get("eval", ())
        _line(axes, [(row["length"], row[column]) for row in rows], look, color=colour, label=column.replace("_", " "))
    for column, look in BASELINES.items():
        rows = tables.get("baselines", ())
        _line(axes, [(row["length"], row[column]) for row in rows], look, color="black", linewidth=0.8, label=column)
    axes.axvline(train_length, color=GREY, linewidth=0.8, zorder=1, label="training length")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(-0.03, 1.03)
    axes.set_xlabel("length", fontsize=SMALL)
    axes.set_ylabel("accuracy", fontsize=SMALL)


def _by_position(axes: Axes, tables: Mapping[str, Sequence[Row]]) -> None:
    for table, look in (("positions", "."), ("floor_positions", ":")):
        rows = tables.get(table, ())
        lengths = sorted({row["length"] for row in rows})
        for number, length in enumerate(lengths):
            points = [(row["position"], row["perplexity"]) for row in rows if row["length"] == length]
            colour = colormaps["viridis"](0.9 * number / max(1, len(lengths) - 1))
            label = f"{length}" if table == "positions" else None
            # Of a task with one answer in a sequence there is a single point a length.
            _line(axes, points, f"{look}-" if look == "." else look, color=colour, markersize=3, label=label)
    axes.set_yscale("log")
    low, high = axes.get_ylim()
    axes.yaxis.set_major_locator(LogLocator() if high > 10 * low else MaxNLocator(4))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter("{x:g}")  # powers as matplotlib sets them take half of the time
    axes.set_xlabel("position at each length; dotted: the entropy floor", fontsize=SMALL)
    axes.set_ylabel("perplexity", fontsize=SMALL)


def _line(axes: Axes, points: Sequence[tuple[float, float]], look: str, **options: Any) -> None:
    if points:
        axes.plot(*zip(*sorted(points), strict=True), look, **{"linewidth": 1.1, "markersize": 3.5} | options)
