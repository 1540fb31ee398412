"""Where the parts of a figure go. Nothing is drawn over data: legends stand below the axes, captions above them."""

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.ticker import LogLocator, NullFormatter, NullLocator

from rpe_bench.report.figures import CAPTION, TITLE

_GAP = 0.14
"""Inches between panels side by side."""


@dataclass(frozen=True)
class End:
    """Where a line ends at the right of its panel, for a label there; handle: what else stands for it in the legend."""

    axes: Axes
    y: float
    handle: Artist


def compose(
    figure: Figure,
    panels: Sequence[Axes],
    handles: Sequence[Artist],
    title: str,
    caption: str,
    height: float,
    *,
    lengths: Sequence[float] = (),
    columns: int | None = None,
    own: Sequence[Sequence[Artist]] = (),
    ends: Sequence[End] = (),
) -> None:
    """Set title and caption above the axes and the legend below, and let the figure grow to hold them.

    height: of the axes, in inches. lengths: the ticks of a length axis; a single one needs no axis. columns: panels in
    a row, by default all. own: a legend for each panel, below it. ends: lines that are named where they end and not in
    the legend, if all of them have room there.
    """
    FigureCanvasAgg(figure)  # keeps what it measures with, which else is made anew for every text
    width = figure.get_figwidth()
    columns = columns or len(panels)
    rows = math.ceil(len(panels) / columns)
    titles = textwrap.wrap(title, round(width * 16))
    captions = textwrap.wrap(caption, round(width * 18))
    heads = [
        max(_lines(panel.get_title(loc="left")) for panel in panels[row * columns :][:columns]) for row in range(rows)
    ]
    over = [0.12 * head + 0.1 if head else 0.0 for head in heads]
    above = (0.05 if heads[0] else 0.13) + 0.13 * (len(titles) + len(captions))

    def place(left: float, right: float, beneath: float, legends: Sequence[float], bottom: float) -> None:
        """beneath: inches that ticks and labels take; legends: a row's own ones."""
        each = (width - left - right - _GAP * (columns - 1)) / columns
        total = above + bottom + sum(over) + rows * (height + beneath) + sum(legends)
        figure.set_size_inches(width, total)
        y = total - above
        for row in range(rows):
            y -= over[row] + height
            for column, panel in enumerate(panels[row * columns :][:columns]):
                x = left + column * (each + _GAP)
                panel.set_position((x / width, y / total, each / width, height / total))
                if row < len(boxes):
                    boxes[row][column].set_bbox_to_anchor((x / width, (y - beneath - 0.02) / total))
            y -= beneath + legends[row]

    boxes: list[list[Legend]] = []
    none = [0.0] * rows
    # What ticks and labels need beside and below the axes is known only once they have about their size.
    place(0.4, 0.1, 0.4, none, 0.4)
    if ends and _have_room(figure, ends):
        handles = [handle for handle in handles if all(handle is not end.handle for end in ends)]
        for end in ends:
            label = str(end.handle.get_label())
            where: Mapping[str, Any] = {
                "xycoords": ("axes fraction", "data"),
                "textcoords": "offset points",
                "va": "center",
            }
            end.axes.annotate(label, (1, end.y), (3, 0), **where, fontsize=6.5, color=_colour(end.handle))
    left, right, _ = _overhang(panels, figure.dpi)
    left, right = left + 0.03, max(right + 0.03, 0.06)
    place(left, right, 0.4, none, 0.4)
    if len(lengths) > 1:
        for panel in panels:
            length_axis(panel, lengths, figure.dpi)
    beneath = _overhang(panels, figure.dpi)[2]
    each = (width - left - right - _GAP * (columns - 1)) / columns
    for row in range(rows if own else 0):
        boxes.append([_legend(figure, part, each, "upper left") for part in own[row * columns :][:columns]])
    heights = [max(_height(box, figure.dpi) for box in row) for row in boxes] or none
    below = _height(_legend(figure, handles, width, "lower center"), figure.dpi) if handles else 0.0
    place(left, right, beneath, heights, below + 0.06)
    # Captions were wrapped for a margin of about this; names of encodings may take a wider one.
    write_above(figure, min(left, 0.45), titles, captions)


def write_above(figure: Figure, left: float, titles: Sequence[str], captions: Sequence[str]) -> None:
    """Lines of title and caption at the top of a figure of its final size, `left` inches from its edge."""
    width, total = figure.get_size_inches()
    # One by one: the baseline of a block of text depends on the letters in it.
    baseline = total - 0.05
    for text, look in [*((text, TITLE) for text in titles), *((text, CAPTION) for text in captions)]:
        baseline -= 0.13
        figure.text(left / width, (baseline + 0.03) / total, text, look)


def length_axis(axes: Axes, lengths: Sequence[float], dpi: float) -> None:
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


def log_axis(axes: Sequence[Axes], label: str, least: float | None = None) -> None:
    """A log axis of y with numbers as they are spoken. least: where it begins, by default below the lines.

    An interval that goes beyond 3 times the highest line, as that of two seeds may, is cut: lines come first.
    """
    axes[0].set_yscale("log")
    values = np.concatenate([np.asarray(line.get_ydata(), dtype=float) for panel in axes for line in panel.lines])
    values = values[np.isfinite(values) & (values > (least or 0.0))]
    highest = float(values.max(initial=least or 1e-3))
    top = min(max(panel.dataLim.y1 for panel in axes if np.isfinite(panel.dataLim.y1)), 3 * highest)
    if least is None:
        bottom = min(float(values.min(initial=top)), top / 1.5)
    else:
        bottom, top = least, max(1.5 * least, top)
    room = (top / bottom) ** 0.04
    axes[0].set_ylim(bottom / room, top * room)
    number_log(axes[0].yaxis, bottom, top)
    axes[0].set_ylabel(label)


def number_log(axis: Axis, bottom: float, top: float) -> None:
    """Ticks of a log axis over that range, with as many numbers as there is room for."""
    decades = np.log10(top / bottom)
    numbers: list[tuple[float, tuple[float, ...]]]
    numbers = [(0.5, (1, 1.2, 1.5, 2, 3)), (1, (1, 1.5, 2, 3, 5)), (2.5, (1, 2, 5)), (math.inf, (1,))]
    steps = next(steps for below, steps in numbers if decades < below)
    axis.set_major_locator(LogLocator(subs=steps, numticks=12))
    axis.set_minor_locator(NullLocator() if decades < 0.5 else LogLocator(subs=range(1, 10), numticks=12))
    axis.set_major_formatter(lambda y, _: f"{y:g}" if 1e-4 < y < 1e4 else f"$10^{{{np.log10(y):.0f}}}$")
    axis.set_minor_formatter(NullFormatter())


def _lines(text: str) -> int:
    return text.count("\n") + 1 if text else 0


def _colour(handle: Artist) -> str:
    return str(handle.get_color())  # type: ignore[attr-defined]


def _have_room(figure: Figure, ends: Sequence[End]) -> bool:
    """Whether labels at the ends keep clear of one another, each level with its line."""
    heights = sorted(end.axes.transData.transform((1, end.y))[1] for end in ends)
    apart = 7.0 / 72 * figure.dpi
    shortest = all(len(str(end.handle.get_label())) <= 16 for end in ends)
    inside = all(end.axes.get_ylim()[0] <= end.y <= end.axes.get_ylim()[1] for end in ends)
    return shortest and inside and bool((np.diff(heights) >= apart).all())


def _overhang(axes: Sequence[Axes], dpi: float) -> tuple[float, float, float]:
    """Inches that ticks and labels take left of, right of and below the axes."""
    boxes = [(panel.get_window_extent(), panel.get_tightbbox()) for panel in axes]
    outside = np.array([np.subtract(outer.extents, inner.extents) for inner, outer in boxes if outer is not None]) / dpi
    return float(-outside[:, 0].min()), float(outside[:, 2].max()), float(-outside[:, 1].min())


def _legend(
    figure: Figure, handles: Sequence[Artist], width: float, where: Literal["lower center", "upper left"]
) -> Legend:
    """A legend of as few rows as a width in inches allows, at the bottom of the figure until it is moved."""
    labels = ["\n".join(textwrap.wrap(str(handle.get_label()), round(width * 15))) for handle in handles]
    legends: list[Legend] = []
    # About what the narrowest legend of so many columns takes, so that few have to be measured.
    narrow = figure.get_figwidth() > width
    for rows in range(1, len(handles) + 1):
        for tried in legends:
            tried.remove()
        legends = [
            figure.legend(
                list(handles),
                labels,
                ncols=math.ceil(len(handles) / rows),
                loc=where,
                bbox_to_anchor=(0.5, 0) if where == "lower center" else (0, 0),
                borderaxespad=0,
                borderpad=0.1 if narrow else 0.4,
                handlelength=3.2,
                handletextpad=0.5,
                columnspacing=1.2,
                labelspacing=0.3,
                frameon=False,
            )
        ]
        if legends[0].get_window_extent().width <= width * figure.dpi:
            break
    return legends[0]


def _height(legend: Legend, dpi: float) -> float:
    return float(legend.get_window_extent().height / dpi)
