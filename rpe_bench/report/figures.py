"""What all figures share: sizes of a paper's columns, looks of the encodings, and files that come out the same twice.

Figures are `matplotlib.figure.Figure`s that leave pyplot and the rcParams alone, one kind a file beside this one.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.style
import numpy as np
from matplotlib.collections import Collection, PathCollection
from matplotlib.figure import Figure

from rpe_bench.errors import nearest
from rpe_bench.report.families import groups
from rpe_bench.report.load import ReportError, in_order

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
FADED = "#cfcfcf"
TITLE = {"fontsize": 7.5, "fontweight": "bold"}
CAPTION = {"fontsize": 6.5, "color": "#404040"}


@dataclass(frozen=True)
class Style:
    """How one encoding is drawn, everywhere in a report."""

    colour: str
    dashes: tuple[float, tuple[float, ...]]
    marker: str
    group: str = ""
    """The panel that it is in where there is one a family; see `families.groups`."""
    faded: bool = False
    """Whether it is one of the others, behind those that were chosen."""

    def line(self) -> dict[str, Any]:
        """Keywords of a matplotlib line."""
        if self.faded:
            return {"color": FADED, "linestyle": "-", "linewidth": 0.7, "marker": ""}
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


def looks_of(labels: Sequence[str], highlight: Sequence[str] = ()) -> dict[str, Style]:
    """The looks of a report's encodings: `styles`, in groups where there are many.

    highlight: labels, or names that stand for all labels with it before their brackets; the others are then faded.
    ReportError, which lists what there is, where one stands for none.
    """
    chosen = in_order(labels)
    for name in highlight:
        if not any(_stands_for(name, label) for label in labels):
            there = ", ".join(chosen)
            raise ReportError(
                f"--highlight={name}: no encoding here is called so{nearest(name, chosen)} (there are: {there})"
            )
    if highlight:
        chosen = [label for label in chosen if any(_stands_for(name, label) for name in highlight)]
    in_groups = groups(chosen)
    order = [(label, title) for title, members in in_groups.items() for label in members]
    of_place = styles([str(place) for place in range(len(order))])
    found = {label: replace(of_place[str(place)], group=title) for place, (label, title) in enumerate(order)}
    behind = {label: Style(FADED, (0, ()), "", faded=True) for label in in_order(labels) if label not in found}
    return {**behind, **found}


def _stands_for(name: str, label: str) -> bool:
    return name in (label, label.partition(" (")[0])


@contextmanager
def paper_style() -> Iterator[None]:
    """The style of every figure, whatever the user's own; back to that at the end."""
    with matplotlib.style.context(["default", _RC]):
        yield


def save_figure(figure: Figure, stem: Path) -> list[Path]:
    """Write STEM.pdf, STEM.svg and STEM.png; the same figure gives the same bytes.

    Each holds the `digest` of what is drawn, so that a file can be told from one of other data without drawing it anew
    with the same releases of matplotlib and its fonts.
    """
    about = f"data {digest(figure)}"
    metadata: dict[str, dict[str, str | None]] = {
        "pdf": {"CreationDate": None, "Keywords": about},
        "svg": {"Date": None, "Description": about},
        "png": {"Description": about},
    }
    paths = figure_paths(stem)
    with paper_style():
        for path in paths:
            figure.savefig(path, metadata=metadata[path.suffix[1:]])
    return paths


def figure_paths(stem: Path) -> list[Path]:
    """The files that `save_figure` writes."""
    return [stem.with_name(f"{stem.name}.{kind}") for kind in ("pdf", "svg", "png")]


def digest(figure: Figure) -> str:
    """SHA-256 of the data that a figure shows: its texts, and the numbers behind lines, bands, dots and images.

    Numbers count to 4 digits: what lies below is rounding of the machine, and can't be seen.
    """
    shown: list[Any] = [[_words(text.get_text()) for text in figure.texts]]
    shown += [[_words(text.get_text()) for text in legend.get_texts()] for legend in figure.legends]
    for axes in figure.axes:
        shown.append([_words(text) for text in (axes.get_title(loc="left"), axes.get_xlabel(), axes.get_ylabel())])
        shown.append([_words(text.get_text()) for text in axes.texts])
        shown += [[_digits(line.get_xdata()), _digits(line.get_ydata())] for line in axes.lines]
        shown += [_digits(vertices) for part in axes.collections for vertices in _vertices(part)]
        shown += [_digits(image.get_array()) for image in axes.images]
    return hashlib.sha256(json.dumps(shown).encode()).hexdigest()


def _words(text: str) -> str:
    return " ".join(text.split())


def _vertices(part: Collection) -> list[Any]:
    if isinstance(part, PathCollection):
        return [part.get_offsets()]
    return [path.vertices for path in part.get_paths()]


def _digits(values: Any) -> list[str]:
    numbers: np.ndarray = np.ma.filled(np.ma.asarray(values, dtype=float), np.nan).ravel()
    return [f"{number + 0.0:.4g}" for number in numbers]
