"""How far every encoding holds on every task, in one picture."""

import math
import textwrap
from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from rpe_bench.report.figures import COLUMN, PAGE, Style, looks_of, paper_style
from rpe_bench.report.heatmaps import COLOURS
from rpe_bench.report.layout import write_above
from rpe_bench.report.load import Results, in_order
from rpe_bench.report.statistics import HOLDS
from rpe_bench.report.tables import count_seeds, effective_table

_CELL = 0.17
"""Height of a row, in inches."""


def has_overview(results: Results) -> bool:
    """Whether some run of some task holds anywhere."""
    return bool((effective_table(results)["max"] > 0).any())


def overview_figure(results: Results, looks: Mapping[str, Style] | None = None) -> Figure:
    """Encodings by tasks: the mean effective length over the training length, as a colour and a number.

    The effective length is the longest evaluated one up to which exact match stays at or above HOLDS; 0 where it fails
    at the training length. A plus stands behind means with a run in them that held as far as was evaluated. A task that
    no run of any encoding holds at its training length says nothing of encodings, and is named in the caption instead.
    """
    looks = looks or looks_of(results.encoding_labels)
    table = effective_table(results)
    best = table.groupby("task_label")["max"].max()
    tasks = [task for task in in_order(table["task_label"]) if best[task] > 0]
    none = [task for task in in_order(table["task_label"]) if best[task] == 0]
    shown = table[table["task_label"].isin(tasks)]
    there = set(shown["encoding_label"])
    labels = sorted((label for label in looks if label in there), key=lambda label: looks[label].faded)
    values, texts = np.full((len(labels), len(tasks)), np.nan), {}
    row: Any
    for row in shown.itertuples():
        at = labels.index(row.encoding_label), tasks.index(row.task_label)
        values[at] = row.mean / row.train_length
        texts[at] = f"{values[at]:.3g}{'+' if row.at_limit else ''}"
    seeds = count_seeds(results.evaluations[results.evaluations["task_label"].isin(tasks)])
    caption = (
        f"effective length / training length: how far exact match stays at or above {HOLDS:g}; "
        f"{seeds if seeds == '1 seed' else f'mean over {seeds}'}; +: as far as was evaluated for at least one of them"
    )
    if none:
        caption += f"; not shown, as no run holds at the training length: {', '.join(none)}"
    with paper_style():
        names = max(map(len, labels)) * 0.055 + 0.12
        wanted = names + 0.1 + 0.62 * len(tasks)
        width = COLUMN if wanted <= COLUMN else PAGE
        each = min((width - names - 0.1) / len(tasks), 0.9)
        heads = [_wrapped(task, max(6, round(each * 18))) for task in tasks]
        turned = max(map(len, heads)) > 4
        if turned:
            heads = [_wrapped(task, 28) for task in tasks]
        over = max(max(map(len, line)) for line in heads) * 0.055 if turned else 0.11 * max(map(len, heads))
        titles = ["Overview"]
        captions = textwrap.wrap(caption, round(width * 18))
        above = 0.12 + 0.13 * (len(titles) + len(captions)) + over
        height = _CELL * len(labels)
        total = above + height + 0.6
        figure = Figure(figsize=(width, total))
        place = (names / width, 0.6 / total, each * len(tasks) / width, height / total)
        axes = figure.add_axes(place)
        # What fails at the training length is the darkest, whatever else there is.
        top = max(8.0, float(np.nanmax(values)))
        image = axes.imshow(
            np.ma.masked_invalid(np.clip(values, 0.5, None)), aspect="auto", cmap=COLOURS, norm=LogNorm(0.5, top)
        )
        axes.set_facecolor("#dddddd")
        axes.grid(False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        for (row_at, column), text in texts.items():
            bright = math.log(max(values[row_at, column], 0.5) / 0.5) / math.log(top / 0.5) > 0.5
            look: Mapping[str, Any] = {
                "ha": "center",
                "va": "center",
                "fontsize": 6.5,
                "color": "black" if bright else "white",
            }
            axes.text(column, row_at, text, **look)
        groups = [looks[label].group for label in labels]
        for i in range(1, len(labels)):
            axes.axhline(i - 0.5, color="white", linewidth=2.4 if groups[i] != groups[i - 1] else 0.5)
        for i in range(1, len(tasks)):
            axes.axvline(i - 0.5, color="white", linewidth=0.5)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_xticks(range(len(tasks)), ["\n".join(lines) for lines in heads])
        axes.tick_params(length=0, top=False, labeltop=True, bottom=False, labelbottom=False, pad=2)
        if turned:
            axes.tick_params(axis="x", labelrotation=90)
        bar = figure.add_axes((names / width, 0.37 / total, min(each * len(tasks), 1.9) / width, 0.09 / total))
        ticks = [0.5, 1, 2, 4, 8, *(2.0**k for k in range(4, 20) if 2**k <= top)]
        figure.colorbar(image, cax=bar, orientation="horizontal")
        bar.xaxis.set_minor_locator(NullLocator())
        bar.set_xticks(ticks, ["≤ 0.5", *(f"{tick:g}" for tick in ticks[1:])])
        bar.set_xlabel("effective length / training length", labelpad=2)
        write_above(figure, 0.06, titles, captions)
    return figure


def _wrapped(name: str, width: int) -> list[str]:
    """A name in lines that end where its words do."""
    return [line.replace("_ ", "_") for line in textwrap.wrap(name.replace("_", "_ "), width)]
