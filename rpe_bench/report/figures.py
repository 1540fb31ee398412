"""Figures at the size of a paper's column, as `matplotlib.figure.Figure`s that leave pyplot and the rcParams alone.

Nothing is drawn over data: legends stand below the axes, captions above them.
"""

import math
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, LogLocator, MaxNLocator, NullFormatter, NullLocator

from rpe_bench.report.load import Results, in_order
from rpe_bench.report.statistics import over_seeds
from rpe_bench.report.tables import baseline_table, count_seeds, trained_up_to

COLUMN = 3.25
"""Width of one column of a two-column paper, in inches."""

PAGE = 6.75
"""Width of both columns, in inches."""

# Okabe and Ito's palette for colour-blind readers, without its yellow, which is too faint for a thin line on white.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00")
_DASHES: tuple[tuple[float, tuple[float, ...]], ...] = (
    (0, ()),
    (0, (5, 1.5)),
    (0, (1, 1)),
    (0, (5, 1, 1, 1)),
    (0, (2.2, 1.1)),
    (0, (5, 1, 1, 1, 1, 1)),
)
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "d")

_RC = {
    "font.size": 7,
    "axes.titlesize": 7,
    "axes.labelsize": 7,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.6,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e6e6e6",
    "grid.linewidth": 0.5,
    "pdf.fonttype": 42,  # TrueType: conferences refuse the default, Type 3
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "rpe_bench",  # else the ids in an SVG are random
    "figure.dpi": 300,  # what is measured is what a PNG shows: hinted text is wider at a coarser one
    "savefig.dpi": 300,
}

GREY = "#707070"
TITLE = {"fontsize": 7.5, "fontweight": "bold"}
CAPTION = {"fontsize": 6.5, "color": "#404040"}


@dataclass(frozen=True)
class Style:
    """How one encoding is drawn, everywhere in a report."""

    colour: str
    dashes: tuple[float, tuple[float, ...]]
    marker: str

    def line(self) -> dict[str, Any]:
        """Keywords of a matplotlib line."""
        return {
            "color": self.colour,
            "linestyle": self.dashes,
            "linewidth": 1.1,
            "marker": self.marker,
            "markeredgewidth": 0.3,
            "markeredgecolor": "white",
        }


def styles(labels: Sequence[str]) -> dict[str, Style]:
    """A style for each label by its place among all of them, in the order in which they are shown.

    Neighbours differ in colour, dashes and marker at once, so that they can be told apart in grey; the first 42 labels
    differ in colour or dashes, the first 462 in one of the three.
    """
    looks = zip(cycle(_COLOURS), cycle(_DASHES), cycle(_MARKERS), strict=False)
    return {label: Style(*look) for label, look in zip(in_order(labels), looks, strict=False)}


@contextmanager
def paper_style() -> Iterator[None]:
    """The style of every figure, whatever the user's own; back to that at the end."""
    with matplotlib.style.context(["default", _RC]):
        yield


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.pdf, STEM.svg and STEM.png; the same figure gives the same bytes."""
    undated: dict[str, dict[str, None]] = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {}}
    paths = [stem.with_name(f"{stem.name}.{kind}") for kind in undated]
    with paper_style():
        for path, metadata in zip(paths, undated.values(), strict=True):
            figure.savefig(path, metadata=metadata)
    return paths


def extrapolation_figure(results: Results, task: str, looks: Mapping[str, Style] | None = None) -> Figure:
    """Token accuracy against length / training length for one task label, one line an encoding.

    Lines are means over seeds, bands their range, dots the single seeds. Of a single evaluated length, encodings stand
    side by side instead. looks: styles, by default of all encodings in the results.
    """
    looks = looks or styles(results.encoding_labels)
    rows = _of_task(results.evaluations, task)
    baselines = _of_task(baseline_table(results), task)
    with paper_style():
        figure = Figure(figsize=(COLUMN, COLUMN))
        axes = figure.add_subplot()
        lengths = sorted(rows["ratio"].unique())
        if len(lengths) == 1:
            _side_by_side(axes, rows, "token_accuracy", looks)
        else:
            _draw(axes, rows, "ratio", "token_accuracy", looks)
        handles = _encodings(rows, "token_accuracy", looks)
        # Above the lines: one that does no better than a baseline would hide it.
        for name, dashes in (("chance", (0, (4, 2))), ("majority", (0, (1, 1.5)))):
            look: dict[str, Any] = {
                "color": "#404040",
                "linestyle": dashes,
                "linewidth": 0.8,
                "zorder": 3.5,
                "label": name,
            }
            if len(lengths) == 1:
                handles.append(axes.axhline(baselines[name].iloc[0], **look))
            else:
                handles += axes.plot(baselines["ratio"], baselines[name], **look)
        axes.set(ylim=(-0.03, 1.03), ylabel="token accuracy")
        axes.yaxis.set_major_locator(FixedLocator([0, 0.2, 0.4, 0.6, 0.8, 1]))
        if len(lengths) == 1:
            axes.set_xlabel(f"length {rows['length'].iloc[0]} ({lengths[0]:.4g}× the training length)")
        else:
            axes.set_xlabel("length / training length")
            handles.append(_boundary([axes], 1.0, "training length"))
        _compose(figure, [axes], handles, task, _caption(rows, "mean"), height=1.95, lengths=lengths)
    return figure


def perplexity_figure(results: Results, task: str, looks: Mapping[str, Style] | None = None) -> Figure:
    """Perplexity by position for one task label, one line an encoding, on a logarithmic axis.

    One panel for the training length, one for twice that and one for the longest length. A task with a single answer in
    a sequence has one panel across lengths instead, of the position where the answer is read, or of the length where it
    is read from no single position. Means over seeds are taken of the loss, so that they are geometric means of the
    perplexity: one seed that is certain and wrong doesn't hide the others.
    """
    looks = looks or styles(results.encoding_labels)
    rows = _of_task(results.positions, task)
    with paper_style():
        if rows.groupby("length")["position"].nunique().max() > 1:
            return _by_position(rows, _of_task(results.floor_positions, task), task, looks)
        if rows["position"].nunique() == rows["length"].nunique() > 0:
            end = int(rows["train_tokens"].max()) - 1
            return _across_lengths(rows, "position", "position of the answer (one per sequence)", end, task, looks)
        rows = _of_task(results.evaluations, task)
        end = int(rows["train_length"].max())
        return _across_lengths(rows, "length", "length (one answer per sequence)", end, task, looks)


def _by_position(rows: pd.DataFrame, floor: pd.DataFrame, task: str, looks: Mapping[str, Style]) -> Figure:
    lengths = _panel_lengths(rows)
    figure = Figure(figsize=(PAGE, COLUMN))
    panels = list(figure.subplots(1, len(lengths), sharey=True, squeeze=False)[0])
    for panel, length in zip(panels, lengths, strict=True):
        part = rows[rows["length"] == length]
        _draw(panel, part, "position", "loss", looks)
        panel.set_title(f"length {length} ({part['ratio'].iloc[0]:.4g}× the training length)", loc="left")
        panel.set_xlabel("position in the sequence")
        panel.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        panel.margins(x=0.03)
    handles = _encodings(rows, "loss", looks)
    if len(floor):
        handles.append(_floor(panels, lengths, floor))
    handles.append(_boundary(panels, rows["train_tokens"].max() - 0.5, "end of the longest training sequence"))
    _perplexity_axis(panels)
    _compose(figure, panels, handles, task, _caption(rows, "geometric mean"), height=1.75)
    return figure


def _floor(panels: Sequence[Axes], lengths: Sequence[int], floor: pd.DataFrame) -> Line2D:
    """What the ideal predictor loses, above the lines that come down to it. It is that of the examples, which all runs
    of a task share."""
    look: dict[str, Any] = {"color": "#404040", "linestyle": (0, (1, 1.5)), "linewidth": 0.8, "label": "entropy floor"}
    for panel, length in zip(panels, lengths, strict=True):
        ideal = floor[floor["length"] == length].groupby("position")["loss"].first()
        panel.plot(ideal.index, np.exp(ideal), **look, zorder=3.5)
    return Line2D([], [], **look)


def _across_lengths(
    rows: pd.DataFrame, x: str, x_label: str, end: int, task: str, looks: Mapping[str, Style]
) -> Figure:
    """One panel of perplexity; end: x in the longest training sequence."""
    figure = Figure(figsize=(COLUMN, COLUMN))
    axes = figure.add_subplot()
    lengths = sorted(rows[x].unique())
    handles = _encodings(rows, "loss", looks)
    if len(lengths) == 1:
        _side_by_side(axes, rows, "loss", looks)
        axes.set_xlabel(f"{x_label}: {lengths[0]}")
    else:
        _draw(axes, rows, x, "loss", looks)
        handles.append(_boundary([axes], end, "longest training sequence"))
        axes.set_xlabel(x_label)
    _perplexity_axis([axes])
    _compose(figure, [axes], handles, task, _caption(rows, "geometric mean"), height=1.95, lengths=lengths)
    return figure


def _of_task(rows: pd.DataFrame, task: str) -> pd.DataFrame:
    return rows[rows["task_label"] == task]


def _panel_lengths(rows: pd.DataFrame) -> list[int]:
    """The training length, the length nearest to twice that and the longest one, as far as they were evaluated."""
    lengths = np.array(sorted(rows["length"].unique()))
    trained = rows["train_length"].max()
    wanted = [lengths[np.abs(np.log(lengths / (trained * factor))).argmin()] for factor in (1, 2)]
    return sorted({int(length) for length in (*wanted, lengths[-1])})


def _draw(axes: Axes, rows: pd.DataFrame, x: str, y: str, looks: Mapping[str, Style]) -> None:
    """Draw mean, range and seeds of y over x for each encoding; y = "loss" is drawn as perplexity."""
    # Bands of many lines on top of one another would add up to mud.
    opacity = min(0.13, 0.5 / max(1, rows["encoding_label"].nunique()))
    for place, (label, look) in enumerate(looks.items()):
        line = rows[rows["encoding_label"] == label]
        if line.empty:
            continue
        points = over_seeds(line, y, (x,))
        mean, low, high = (np.exp(points[name]) if y == "loss" else points[name] for name in ("mean", "min", "max"))
        # About eight markers, each line's at places of its own, so that lines on top of one another can be told apart.
        step = max(1, round(len(points) / 8))
        axes.plot(points[x], mean, **look.line(), markersize=3.5, markevery=(place % step, step), zorder=3)
        if points["n"].max() > 1:
            axes.fill_between(points[x], low, high, color=look.colour, alpha=opacity, linewidth=0, zorder=2)
            # By position there would be hundreds of them.
            if y != "loss":
                axes.scatter(line[x], line[y], s=3, color=look.colour, alpha=0.4, linewidth=0, zorder=2.5)


def _side_by_side(axes: Axes, rows: pd.DataFrame, y: str, looks: Mapping[str, Style]) -> None:
    """`_draw` for a single x, where lines would be points on top of one another: left to right as in the legend."""
    points = over_seeds(rows, y, ("encoding_label",)).set_index("encoding_label")
    labels = in_order(rows["encoding_label"])
    for place, label in enumerate(labels):
        seeds = rows.loc[rows["encoding_label"] == label, y].to_numpy()
        extent = points.loc[[label], ["min", "max"]].to_numpy()[0]
        mean = points.loc[[label], "mean"].to_numpy()
        if y == "loss":
            seeds, extent, mean = np.exp(seeds), np.exp(extent), np.exp(mean)
        if len(seeds) > 1:
            look: dict[str, Any] = {"color": looks[label].colour, "zorder": 2}
            axes.plot([place, place], extent, **look, alpha=0.3, linewidth=3, solid_capstyle="butt")
            beside = np.full(len(seeds), place + 0.25)
            axes.plot(beside, seeds, **look, marker=".", markersize=3, markeredgewidth=0, linewidth=0, alpha=0.6)
        axes.plot([place], mean, **looks[label].line(), markersize=4, zorder=4)
    axes.set_xlim(-0.75, len(labels) - 0.25)
    axes.xaxis.set_major_locator(NullLocator())


def _encodings(rows: pd.DataFrame, y: str, looks: Mapping[str, Style]) -> list[Line2D]:
    """What stands for each encoding in the legend; its number of seeds too where they differ."""
    seeds = rows.groupby("encoding_label")["seed"].nunique()
    finite = rows[y].map(np.isfinite).groupby(rows["encoding_label"]).all()
    handles = []
    for label in in_order(rows["encoding_label"]):
        text = label
        if seeds.min() < seeds.max():
            text += f", {seeds[label]} seed{'s' if seeds[label] > 1 else ''}"
        if not finite[label]:
            text += ", not finite in places"
        handles.append(Line2D([], [], **looks[label].line(), markersize=3.6, label=text))
    return handles


def _boundary(axes: Sequence[Axes], x: float, label: str) -> Line2D:
    for panel in axes:
        panel.axvline(x, color=GREY, linewidth=0.8, zorder=1)
    return Line2D([], [], color=GREY, linewidth=0.8, label=label)


def _caption(rows: pd.DataFrame, mean: str) -> str:
    seeds = count_seeds(rows)
    return f"{trained_up_to(rows)}; {'1 seed, no interval' if seeds == '1 seed' else f'{mean} and range of {seeds}'}"


def _length_axis(axes: Axes, lengths: Sequence[float], dpi: float) -> None:
    """A log2 axis with a tick at every length, numbered on two rows where one has no room, powers of two first."""
    axes.set_xscale("log", base=2)
    axes.margins(x=0.04)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xticks(lengths, [f"{length:.4g}" for length in lengths])
    extents = [label.get_window_extent().padded(0.015 * dpi) for label in axes.get_xticklabels()]
    rows: tuple[list[int], list[int]] = [], []
    numbers = [""] * len(lengths)
    for i in sorted(range(len(lengths)), key=lambda i: (np.log2(lengths[i] / lengths[-1]) % 1 != 0, i)):
        for row, indent in zip(rows, ("", "\n"), strict=True):
            if all(extents[i].x1 < extents[j].x0 or extents[j].x1 < extents[i].x0 for j in row):
                row.append(i)
                numbers[i] = f"{indent}{lengths[i]:.4g}"
                break
    axes.set_xticks(lengths, numbers)


def _perplexity_axis(axes: Sequence[Axes]) -> None:
    """A log axis from 1, that of a certain and right answer, with numbers as they are spoken."""
    axes[0].set_yscale("log")
    top = max(1.5, *(panel.dataLim.y1 for panel in axes))
    room = top**0.04
    axes[0].set_ylim(1 / room, top * room)
    decades = np.log10(top)
    numbers: list[tuple[float, tuple[float, ...]]]
    numbers = [(0.5, (1, 1.2, 1.5, 2, 3)), (1, (1, 1.5, 2, 3, 5)), (2.5, (1, 2, 5)), (math.inf, (1,))]
    steps = next(steps for below, steps in numbers if decades < below)
    axes[0].yaxis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axes[0].yaxis.set_minor_locator(NullLocator() if decades < 0.5 else LogLocator(subs=range(1, 10), numticks=12))
    axes[0].yaxis.set_major_formatter(lambda y, _: f"{y:g}" if y < 1e4 else f"$10^{{{np.log10(y):.0f}}}$")
    axes[0].yaxis.set_minor_formatter(NullFormatter())
    axes[0].set_ylabel("perplexity")


def _compose(
    figure: Figure,
    axes: Sequence[Axes],
    handles: Sequence[Artist],
    title: str,
    caption: str,
    height: float,
    lengths: Sequence[float] = (),
) -> None:
    """Set title and caption above the axes and the legend below, and let the figure grow to hold them.

    height: of the axes, in inches. lengths: the ticks of a `_length_axis`; a single one needs no axis.
    """
    width = figure.get_figwidth()
    titles = textwrap.wrap(title, round(width * 16))
    captions = textwrap.wrap(caption, round(width * 18))
    above = 0.05 + 0.13 * (len(titles) + len(captions)) + (0.22 if axes[0].get_title(loc="left") else 0.08)
    below = _legend(figure, handles)

    def place(left: float, right: float, bottom: float) -> float:
        gap = 0.14
        each = (width - left - right - gap * (len(axes) - 1)) / len(axes)
        total = above + height + bottom
        figure.set_size_inches(width, total)
        for i, panel in enumerate(axes):
            x = left + i * (each + gap)
            panel.set_position((x / width, bottom / total, each / width, height / total))
        return total

    # What ticks and labels need beside and below the axes is known only once they have about their size.
    place(0.4, 0.1, below + 0.4)
    left, right, _ = _overhang(axes, figure.dpi)
    place(left + 0.03, max(right + 0.03, 0.06), below + 0.4)
    if len(lengths) > 1:
        _length_axis(axes[0], lengths, figure.dpi)
    place(left + 0.03, max(right + 0.03, 0.06), below + _overhang(axes, figure.dpi)[2] + 0.06)
    write_above(figure, left + 0.03, titles, captions)


def write_above(figure: Figure, left: float, titles: Sequence[str], captions: Sequence[str]) -> None:
    """Lines of title and caption at the top of a figure of its final size, `left` inches from its edge."""
    width, total = figure.get_size_inches()
    # One by one: the baseline of a block of text depends on the letters in it.
    baseline = total - 0.05
    for text, look in [*((text, TITLE) for text in titles), *((text, CAPTION) for text in captions)]:
        baseline -= 0.13
        figure.text(left / width, (baseline + 0.03) / total, text, look)


def _overhang(axes: Sequence[Axes], dpi: float) -> tuple[float, float, float]:
    """Inches that ticks and labels take left of, right of and below the axes."""
    boxes = [(panel.get_window_extent(), panel.get_tightbbox()) for panel in axes]
    outside = np.array([np.subtract(outer.extents, inner.extents) for inner, outer in boxes if outer is not None]) / dpi
    return float(-outside[0, 0]), float(outside[-1, 2]), float(-outside[:, 1].min())


def _legend(figure: Figure, handles: Sequence[Artist]) -> float:
    """Put a legend of as few rows as its width allows at the bottom of the figure; returns its height in inches."""
    width = figure.get_figwidth()
    labels = ["\n".join(textwrap.wrap(str(handle.get_label()), round(width * 15))) for handle in handles]
    for rows in range(1, len(handles) + 1):
        legend = figure.legend(
            list(handles),
            labels,
            ncols=math.ceil(len(handles) / rows),
            loc="lower center",
            bbox_to_anchor=(0.5, 0),
            borderaxespad=0,
            borderpad=0.4,
            handlelength=3.2,
            handletextpad=0.5,
            columnspacing=1.2,
            labelspacing=0.35,
            frameon=False,
        )
        extent = legend.get_window_extent()
        if extent.width <= width * figure.dpi or rows == len(handles):
            break
        legend.remove()
    return float(extent.height / figure.dpi)
