"""Figures and a table of where the heads of one run look, from the tables of rpe_bench.diagnostics.attention_maps.

Figures are pure functions of these DataFrames, as attention.csv, by_distance.csv and kernel.csv hold them.
"""

import math
import textwrap
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib import colormaps
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, MaxNLocator, NullLocator

from rpe_bench.files import atomic
from rpe_bench.report.figures import CAPTION, COLUMN, GREY, PAGE, TITLE, paper_style, save_figure, styles

TABLES = ("attention", "by_distance", "kernel")
"""The names of the tables, less their ending; attention.csv is the one of heads."""

FAINTEST = 1e-5
"""Weights below this look like none in the heat map."""

STEPS_PER_OCTAVE = 6
"""Of distance in the heat map, where a step of one is less than that."""


def write_attention(frames: Mapping[str, pd.DataFrame], out: Path, title: str) -> list[Path]:
    """Write OUT/NAME.csv of TABLES, to nine digits, and the figures of what was written; returns their paths."""
    out.mkdir(parents=True, exist_ok=True)
    paths = []
    for name in TABLES:
        paths.append(out / f"{name}.csv")
        with atomic(paths[-1]) as temporary:
            frames[name].to_csv(temporary, index=False, lineterminator="\n", float_format="%.9g")
    for name, figure in figures(read_attention(out), title).items():
        paths += save_figure(figure, out / name)
    return paths


def read_attention(out: Path) -> dict[str, pd.DataFrame]:
    """The tables that `write_attention` left in OUT."""
    return {name: pd.read_csv(out / f"{name}.csv") for name in TABLES}


def figures(frames: Mapping[str, pd.DataFrame], title: str) -> dict[str, Figure]:
    """All figures of one run's tables, by name."""
    return {
        "attention": heads_figure(frames["attention"], title),
        "by_distance": by_distance_figure(frames["by_distance"], title),
        "kernel": kernel_figure(frames["kernel"], title),
        "logit": kernel_figure(frames["kernel"], title, "logit"),
    }


def compared(rows: pd.DataFrame) -> list[int]:
    """The lengths that are set against each other: the longest within training, or the shortest where none is; and the
    longest of all. One where these are the same."""
    lengths = sorted(rows["length"].unique())
    if "split" in rows:
        beyond = rows["length"][rows["split"] == "extrapolation"]
    else:
        beyond = rows["length"][rows["unseen"]]
    within = [length for length in lengths if length not in set(beyond)]
    return sorted({int(within[-1] if within else lengths[0]), int(lengths[-1])})


def text_table(heads: pd.DataFrame) -> str:
    """Distance, entropy and unseen share of each head at the lengths of `compared`, for a terminal."""
    columns: dict[str, pd.Series] = {}
    lengths = compared(heads)
    at = {length: heads[heads["length"] == length].set_index(["layer", "head"]) for length in lengths}
    for name, column, digits in (("distance", "distance_mean", 1), ("entropy", "entropy", 2)):
        for length in lengths:
            columns[f"{name} at {length}"] = at[length][column].map(f"{{:.{digits}f}}".format)
    columns[f"unseen at {lengths[-1]}"] = at[lengths[-1]]["unseen_share"].map("{:.3f}".format)
    return pd.DataFrame(columns).reset_index().to_string(index=False)


def heads_figure(heads: pd.DataFrame, title: str) -> Figure:
    """Distance, entropy and unseen share against length: a row a layer, a line a head."""
    measures = {
        "distance_mean": "mean attention distance",
        "entropy_share": "entropy / log(visible keys)",
        "unseen_share": "share on unseen distances",
    }
    layers, lengths = sorted(heads["layer"].unique()), sorted(heads["length"].unique())
    trained = heads["length"][heads["split"] == "train_lengths"]
    with paper_style():
        figure, panels = _grid(len(layers), len(measures), PAGE, 1.15, sharex=True, sharey="col")
        looks = _looks(heads)
        for row, layer in zip(panels, layers, strict=True):
            of_layer = heads[heads["layer"] == layer]
            for panel, column in zip(row, measures, strict=True):
                for head, look in looks.items():
                    line = of_layer[of_layer["head"] == head]
                    panel.plot(line["length"], line[column], **look, markersize=3)
                evenly = of_layer.drop_duplicates("length")
                uniform = {"distance_mean": "distance_uniform", "unseen_share": "unseen_uniform"}.get(column)
                values = np.ones(len(evenly)) if uniform is None else evenly[uniform]
                panel.plot(evenly["length"], values, **_EVENLY)
                if len(trained):
                    panel.axvline(trained.max(), color=GREY, linewidth=0.8, zorder=1)
                if column != "distance_mean":
                    panel.set_ylim(-0.04, 1.04)
        first = panels[0][0]
        first.set_xscale("log", base=2)
        first.xaxis.set_minor_locator(NullLocator())
        _few_ticks(first, lengths)
        first.set_yscale("symlog", base=2, linthresh=1)
        first.set_ylim(0, 1.15 * heads[["distance_mean", "distance_uniform"]].to_numpy().max())
        first.yaxis.set_major_locator(FixedLocator([0, *(4**n for n in range(12))]))
        first.yaxis.set_major_formatter("{x:g}")
        first.yaxis.set_minor_locator(NullLocator())
        handles = [*_handles(looks), Line2D([], [], label="even over the visible keys", **_EVENLY)]
        if len(trained):
            handles.append(Line2D([], [], color=GREY, linewidth=0.8, label="longest length trained on"))
        examples = f"mean over the queries of {heads['examples'].max()} examples of each length"
        _finish(figure, panels, handles, title, examples, list(measures.values()), _layers(layers), "length")
    return figure


def by_distance_figure(rows: pd.DataFrame, title: str) -> Figure:
    """The weight that a key at each distance gets, as colour: a panel a length, a line a head of each layer."""
    lengths = compared(rows)
    heads = sorted(set(zip(rows["layer"], rows["head"], strict=True)))
    weight = rows["weight"][rows["length"].isin(lengths)]
    faintest = max(FAINTEST, min(weight[weight > 0].min(), weight.max() / 100))
    with paper_style():
        norm = LogNorm(faintest, weight.max())
        figure, panels = _grid(1, len(lengths), PAGE if len(lengths) > 1 else COLUMN, 0.5 + 0.13 * len(heads))
        for panel, length in zip(panels[0], lengths, strict=True):
            part = rows[rows["length"] == length]
            weights = part.pivot(index=["layer", "head"], columns="distance", values="weight")
            edges = _edges(int(weights.columns.max()) + 1)
            of_distance = weights.to_numpy()
            # A distance that no query has keys at, as between cells of a grid there may be, leaves the mean to others.
            binned = np.array([of_distance[:, np.isin(weights.columns, range(*pair))].mean(axis=1) for pair in edges])
            ends = np.log2([1, *(after + 1 for _, after in edges)])
            colours = colormaps[_MAP].with_extremes(under="white")
            places = np.arange(len(heads) + 1)
            mesh = panel.pcolormesh(ends, places, binned.T, cmap=colours, norm=norm, linewidth=0)
            for above, (one, other) in enumerate(pairwise(heads), start=1):
                if one[0] != other[0]:
                    panel.axhline(above, color="white", linewidth=1.5)
            panel.invert_yaxis()
            panel.grid(False)
            _distance_ticks(panel, int(weights.columns.max()), of_cells=True)
            if part["unseen"].any():
                seen = part["distance"][~part["unseen"]].max()
                panel.axvline(np.log2(seen + 2), color="black", linewidth=0.9, linestyle=(0, (3, 1.5)))
            names = [f"{layer}.{head}" for layer, head in heads]
            panel.set_yticks(np.arange(len(heads)) + 0.5, names if panel is panels[0][0] else [""] * len(heads))
            panel.tick_params(axis="y", length=0)
        panels[0][0].set_ylabel("layer.head")
        fainter = bool((weight < faintest).any())
        extend = "min" if fainter else "neither"
        bar = figure.colorbar(mesh, ax=panels[0], label="weight", extend=extend, aspect=12, pad=0.01)
        bar.outline.set_linewidth(0.6)
        boundary = Line2D([], [], color="black", linewidth=0.9, linestyle=(0, (3, 1.5)), label="unseen from here on")
        handles = [boundary] if rows["unseen"].any() else []
        caption = "mean weight that queries with a key at that distance put there"
        if fainter:
            caption += f"; white: less than {faintest:.0e}"
        _finish(figure, panels, handles, title, caption, [_named(rows, length) for length in lengths], (), "distance")
    return figure


def kernel_figure(rows: pd.DataFrame, title: str, column: str = "kernel") -> Figure:
    """What an offset does to a logit (kernel), or the mean logit at each offset (logit), less that at offset 0.

    In text a row a layer, a line a head, and the lengths of `compared` side by side. On a grid a map a head, at the
    longest length.
    """
    if "offset" not in rows:
        return _grid_kernel_figure(rows, title, column)
    lengths, layers = compared(rows), sorted(rows["layer"].unique())
    two_sided = bool((rows["offset"] > 0).any())
    with paper_style():
        width = PAGE if len(lengths) > 1 else COLUMN
        figure, panels = _grid(len(layers), len(lengths), width, 1.3, sharex="col")
        looks = _looks(rows, markers=False)
        for row, layer in zip(panels, layers, strict=True):
            for panel, length in zip(row, lengths, strict=True):
                part = rows[(rows["length"] == length) & (rows["layer"] == layer)]
                for head, look in looks.items():
                    line = part[part["head"] == head].sort_values("offset")
                    x = line["offset"] if two_sided else -line["offset"]
                    y = line[column] - line[column][line["offset"] == 0].iloc[0]
                    # The place on a logarithmic axis is drawn, its numbers are written: a symmetric logarithm of
                    # matplotlib's own gives the step from 0 to 1 another width than it gives a doubling.
                    panel.plot(_place(x), y.where(np.isfinite(y)), **look)
                reach = int(part["offset"].abs().max())
                _distance_ticks(panel, reach, two_sided)
                panel.yaxis.set_major_locator(MaxNLocator(4))
                if part["unseen"].any():
                    seen = int(part["offset"].abs()[~part["unseen"]].max())
                    for side in (-1, 1) if two_sided else (1,):
                        panel.axvline(side * np.log2(seen + 2), color=GREY, linewidth=0.8, zorder=1)
        handles = _handles(looks)
        if rows["unseen"].any():
            handles.append(Line2D([], [], color=GREY, linewidth=0.8, label="unseen from here on"))
        columns = [_named(rows, length) for length in lengths]
        x_label = "offset of the key from the query" if two_sided else "distance of the key before the query"
        _finish(figure, panels, handles, title, _KERNELS[column], columns, _layers(layers), x_label)
    return figure


def _grid_kernel_figure(rows: pd.DataFrame, title: str, column: str) -> Figure:
    length = max(rows["length"])
    rows = rows[rows["length"] == length]
    layers, heads = sorted(rows["layer"].unique()), sorted(rows["head"].unique())
    with paper_style():
        each = PAGE / max(4, len(heads) + 0.5)
        figure, panels = _grid(len(layers), len(heads), (len(heads) + 0.5) * each, each, sharex=True, sharey=True)
        for row, layer in zip(panels, layers, strict=True):
            of_layer = rows[rows["layer"] == layer].pivot(index=["head", "offset_y"], columns="offset_x", values=column)
            finite = of_layer.where(np.isfinite(of_layer))
            drawn = {head: finite.loc[head] - finite.loc[(head, 0), 0] for head in heads}
            low = min(values.min().min() for values in drawn.values())
            high = max(values.max().max() for values in drawn.values())
            for panel, head in zip(row, heads, strict=True):
                part = rows[(rows["layer"] == layer) & (rows["head"] == head)]
                values = drawn[head]
                (top, bottom), (left, right) = ((ends.min(), ends.max()) for ends in (values.index, values.columns))
                extent = (left - 0.5, right + 0.5, bottom + 0.5, top - 0.5)
                look: dict[str, Any] = {"cmap": _MAP, "vmin": low, "vmax": max(high, low + 1e-6)}
                image = panel.imshow(values.to_numpy(), extent=extent, interpolation="none", **look)
                panel.grid(False)
                for axis in (panel.xaxis, panel.yaxis):
                    axis.set_major_locator(MaxNLocator(4, integer=True, symmetric=True))
                if part["unseen"].any():
                    seen = part[~part["unseen"]]
                    y, x = seen["offset_y"].max() + 0.5, seen["offset_x"].max() + 0.5
                    frame: dict[str, Any] = {"fill": False, "linewidth": 0.9, "linestyle": (0, (3, 1.5))}
                    panel.add_patch(Rectangle((-x, -y), 2 * x, 2 * y, **frame))
            bar = figure.colorbar(image, ax=row, aspect=12, pad=0.01, shrink=0.8)
            bar.outline.set_linewidth(0.6)
        caption = f"{_KERNELS[column]}; length {length}"
        if rows["unseen"].any():
            caption += "; unseen outside the dashed frame"
        names = [f"head {head}" for head in heads]
        _finish(
            figure, panels, [], title, caption, names, [f"layer {n}\nrows down" for n in layers], "columns to the right"
        )
    return figure


def _named(rows: pd.DataFrame, length: int) -> str:
    """Of a length, beside another: whether all its distances were seen in training."""
    unseen = rows["unseen"][rows["length"] == length].any()
    return f"length {length}, {'beyond' if unseen else 'within'} training"


_KERNELS = {
    "kernel": "what an offset adds to a logit beside a multiple of q·k, whatever the content; less that at offset 0",
    "logit": "mean logit of the pairs at each offset, content and all; less that at offset 0",
}
_MAP = "YlGnBu"
"""Darker is more, also in grey."""
_EVENLY: dict[str, Any] = {"color": "#404040", "linestyle": (0, (1, 1.5)), "linewidth": 0.9, "zorder": 1.5}


def _grid(rows: int, columns: int, width: float, height: float, **sharing: Any) -> tuple[Figure, list[list[Axes]]]:
    """A figure of panels, each about so many inches high, laid out by matplotlib."""
    figure = Figure(figsize=(width, rows * height), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, **sharing)
    return figure, [list(row) for row in panels]


def _finish(
    figure: Figure,
    panels: Sequence[Sequence[Axes]],
    handles: Sequence[Artist],
    title: str,
    caption: str,
    columns: Sequence[str],
    rows: Sequence[str] = (),
    x_label: str = "",
) -> None:
    """Name columns and rows, and let the figure grow by a title and a caption above and a legend below."""
    for panel, name in zip(panels[0], columns, strict=True):
        panel.set_title(name, loc="left")
    for row, name in zip(panels, rows, strict=bool(rows)):
        row[0].set_ylabel(name)
    for panel in panels[-1]:
        panel.set_xlabel(x_label)
    width, height = figure.get_size_inches()
    legend_rows = 0
    if handles:
        legend_rows, ncols = _rows_and_columns([str(handle.get_label()) for handle in handles], width)
        figure.legend(handles=list(handles), loc="outside lower center", ncols=ncols, frameon=False, handlelength=3.2)
    lines = [(line, TITLE) for line in textwrap.wrap(title, round(width * 16))]
    lines += [(line, CAPTION) for line in textwrap.wrap(caption, round(width * 18))]
    above = 0.08 + 0.13 * len(lines)
    total = height + above + 0.14 * legend_rows + 0.55
    figure.set_size_inches(width, total)
    engine = figure.get_layout_engine()
    assert isinstance(engine, ConstrainedLayoutEngine)
    engine.set(rect=(0, 0, 1, 1 - above / total))
    for place, (line, look) in enumerate(lines, start=1):
        figure.text(0.06 / width, (total - 0.04 - 0.13 * place) / total, line, look)
    # Once for all formats: the layout takes most of the time that a drawing does.
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def _layers(layers: Sequence[int]) -> list[str]:
    return [f"layer {layer}" for layer in layers]


def _rows_and_columns(labels: Sequence[str], width: float) -> tuple[int, int]:
    """Of a legend, of as few rows as about fit a width in inches."""
    for rows in range(1, len(labels) + 1):
        columns = math.ceil(len(labels) / rows)
        texts = sum(max(map(len, labels[first : first + rows])) for first in range(0, len(labels), rows))
        if 0.055 * texts + 0.5 * columns <= width:
            break
    return rows, columns


def _looks(rows: pd.DataFrame, markers: bool = True) -> dict[int, dict[str, Any]]:
    """How each head is drawn."""
    heads = sorted(rows["head"].unique())
    of_label = styles([str(head) for head in heads])
    return {
        head: of_label[str(head)].line() | ({} if markers else {"marker": "None", "linewidth": 0.9}) for head in heads
    }


def _handles(looks: dict[int, dict[str, Any]]) -> list[Artist]:
    return [Line2D([], [], **look, markersize=3.6, label=f"head {head}") for head, look in looks.items()]


def _few_ticks(panel: Axes, lengths: Sequence[int]) -> None:
    """Number lengths on a logarithmic axis, from the longest down, at least half an octave apart."""
    kept: list[int] = []
    for length in sorted(lengths, reverse=True):
        if not kept or kept[-1] / length >= 1.9:
            kept.append(length)
    panel.set_xticks(kept, [str(length) for length in kept])


def _edges(distances: int) -> list[tuple[int, int]]:
    """0..distances-1 in intervals (first, after): single ones, and then steps of a share of an octave."""
    edges, first = [], 0
    while first < distances:
        after = min(max(first + 1, round((first + 1) * 2 ** (1 / STEPS_PER_OCTAVE)) - 1), distances)
        edges.append((first, after))
        first = after
    return edges


def _place(x: pd.Series) -> np.ndarray:
    """Where a distance or an offset is drawn: log2 of the distance and 1, on either side."""
    values = x.to_numpy()
    return np.sign(values) * np.log2(np.abs(values) + 1)


def _distance_ticks(panel: Axes, reach: int, two_sided: bool = False, of_cells: bool = False) -> None:
    """Number distances where `_place` puts them, or in the middle of the cells that begin there."""
    every = 2 if reach < 64 and not two_sided else 4
    numbers = [0, 1, *(every**n for n in range(1, 24) if every**n <= reach)]
    if two_sided:
        numbers = [*(-number for number in reversed(numbers[1:])), *numbers]
    places = _place(pd.Series(numbers))
    if of_cells:
        places = (places + _place(pd.Series(numbers) + 1)) / 2
    panel.set_xticks(places.tolist(), [f"{number}".replace("-", "−") for number in numbers])
