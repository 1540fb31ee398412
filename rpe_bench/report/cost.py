"""What accuracy costs: time of training and parameters against how well the longest sequences are done."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from rpe_bench.report.curves import coverage_over, fit_failures, intervals_over, of_task, others
from rpe_bench.report.figures import PAGE, Style, looks_of, paper_style
from rpe_bench.report.layout import compose
from rpe_bench.report.load import Results
from rpe_bench.report.statistics import over_seeds
from rpe_bench.report.tables import baseline_table

COSTS = {
    "milliseconds": "training time / ms per 1,000 tokens",
    "more_parameters": "parameters beyond the smallest model",
}

_FRONT: dict[str, Any] = {"color": "#bdbdbd", "linewidth": 2.5, "drawstyle": "steps-post"}
"""Broad and faint, so that it is none of the bars."""


def has_costs(results: Results, task: str) -> bool:
    """Whether there are two encodings whose runs recorded how fast they trained."""
    return costs(results, task)["encoding_label"].nunique() > 1


def costs(results: Results, task: str) -> pd.DataFrame:
    """One row an encoding: encoding_label, n, milliseconds (median over seeds, of training on 1,000 tokens),
    milliseconds_min, milliseconds_max, more_parameters (than the smallest model of the task has), and mean, low, high
    of token accuracy at the longest length, with its length and ratio; front_milliseconds and front_more_parameters: no
    other encoding has a mean as high for less.

    An encoding whose runs did not record their speed has no row.
    """
    runs = of_task(results.runs[results.runs["status"] == "finished"], task)
    speed = pd.to_numeric(runs["tokens_per_second"], errors="coerce").astype(float)
    numbers = pd.to_numeric(runs["parameters"], errors="coerce").astype(float)
    spent = runs.assign(milliseconds=1e6 / speed.where(speed > 0), parameters=numbers)
    times = spent.groupby("encoding_label")["milliseconds"].agg(["median", "min", "max"])
    times = times.set_axis(["milliseconds", "milliseconds_min", "milliseconds_max"], axis="columns")
    times["parameters"] = spent.groupby("encoding_label")["parameters"].median()
    rows = of_task(results.evaluations, task)
    longest = rows[rows["length"] == rows["length"].max()]
    by = ("encoding_label", "length", "ratio")
    scores = over_seeds(longest, "token_accuracy", by, np.random.default_rng(0), middle=False)
    found = scores[["encoding_label", "length", "ratio", "n", "mean", "low", "high"]].join(times, on="encoding_label")
    found = found.dropna(subset=["milliseconds", "parameters"]).reset_index(drop=True)
    found["more_parameters"] = found["parameters"] - found["parameters"].min()
    for cost in COSTS:
        found[f"front_{cost}"] = _front(found[cost].to_numpy(dtype=float), found["mean"].to_numpy())
    return found


def _front(cost: np.ndarray, score: np.ndarray) -> np.ndarray:
    """Where no other is at least as good in both, and better in one."""
    cheaper, better = cost[None] <= cost[:, None], score[None] >= score[:, None]
    strictly = (cost[None] < cost[:, None]) | (score[None] > score[:, None])
    beaten: np.ndarray = np.any(cheaper & better & strictly, axis=1)
    return ~beaten


def cost_figure(results: Results, task: str, looks: Mapping[str, Style] | None = None) -> Figure:
    """Token accuracy at the longest evaluated length against each of COSTS, a mark an encoding.

    Vertical bars are 95 % intervals over seeds, horizontal ones go from the fastest to the slowest seed. The step line
    is the Pareto front of the means. ValueError where `has_costs` is false.
    """
    looks = looks or looks_of(results.encoding_labels)
    rows = of_task(results.evaluations, task)
    table = costs(results, task).set_index("encoding_label")
    if table.empty:
        raise ValueError(f"no run of {task} recorded its speed")
    labels = [label for label in looks if label in table.index]
    chance = of_task(baseline_table(results), task).set_index("length").loc[table["length"].iloc[0], "chance"]
    with paper_style():
        figure = Figure(figsize=(PAGE, PAGE))
        panels = list(figure.subplots(1, len(COSTS), sharey=True))
        for panel, (cost, name) in zip(panels, COSTS.items(), strict=True):
            for label in labels:
                point: Any = table.loc[label]
                _mark(panel, point, cost, looks[label])
            front = table[table[f"front_{cost}"]].sort_values(cost)
            # On to the right edge: whatever costs more is still no worse than that.
            panel.plot(front[cost], front["mean"], **_FRONT, zorder=1.2)
            panel.axhline(chance, color="#404040", linestyle=(0, (4, 2)), linewidth=0.8, zorder=1.4)
            panel.set_xlabel(name)
            if cost == "milliseconds":
                panel.xaxis.set_major_locator(MaxNLocator(5))
                panel.margins(x=0.06)
            else:
                _from_none(panel, float(table[cost].max()))
        panels[0].set(ylim=(-0.03, 1.03), ylabel=f"accuracy at length {table['length'].iloc[0]}")
        panels[0].yaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
        handles = [
            Line2D([], [], **{**looks[label].line(), "linewidth": 0}, markersize=4, label=label)
            for label in labels
            if not looks[label].faded
        ]
        handles += others(looks, set(labels))
        handles.append(Line2D([], [], **_FRONT, label="Pareto front of means"))
        handles.append(Line2D([], [], color="#404040", linestyle=(0, (4, 2)), linewidth=0.8, label="chance"))
        compose(figure, panels, handles, task, _caption(results, task, rows, table), height=1.75)
    return figure


def _from_none(axes: Axes, most: float) -> None:
    """A log axis that begins with 0, which is what most encodings add."""
    axes.set_xscale("symlog", linthresh=10, linscale=0.5)
    axes.set_xlim(-3, max(most, 10) * 2)
    ticks = [0, *(10**k for k in range(1, 12) if 10**k <= max(most, 10) * 2)]
    axes.set_xticks(
        ticks,
        [f"{tick / 1e6:g}M" if tick >= 1e6 else f"{tick / 1e3:g}k" if tick >= 1e3 else f"{tick}" for tick in ticks],
    )
    axes.xaxis.set_minor_locator(NullLocator())


def _mark(axes: Axes, point: pd.Series, cost: str, look: Style) -> None:
    bar: Mapping[str, Any] = {"color": look.colour, "linewidth": 0.8, "alpha": 0.6, "zorder": 2}
    if np.isfinite(point["low"]) and not look.faded:
        axes.plot([point[cost]] * 2, [point["low"], point["high"]], **bar)
    if cost == "milliseconds" and point["n"] > 1 and not look.faded:
        axes.plot([point["milliseconds_min"], point["milliseconds_max"]], [point["mean"]] * 2, **bar)
    drawn = {**look.line(), "linewidth": 0, "marker": look.marker or "o"}
    axes.plot([point[cost]], [point["mean"]], **drawn, markersize=5 if point[f"front_{cost}"] else 4, zorder=3)


def _caption(results: Results, task: str, rows: pd.DataFrame, table: pd.DataFrame) -> str:
    rows = rows[rows["encoding_label"].isin(table.index)]
    text = f"at {table['ratio'].iloc[0]:.4g}× the training length; {intervals_over(rows)}"
    if rows.groupby("encoding_label")["seed"].nunique().max() > 1:
        text += f", median and range of their times{coverage_over(rows)}"
    finished = of_task(results.runs[results.runs["status"] == "finished"], task)
    where = finished[["device", "threads"]].drop_duplicates()
    if len(where) > 1:
        text += "; on several devices or numbers of threads, whose times are not to be compared"
    return text + fit_failures(rows)
