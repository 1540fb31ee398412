"""Lines of encodings with their intervals over seeds, and what legends and captions say of them."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from rpe_bench.report.coverage import coverage_range
from rpe_bench.report.families import MOST
from rpe_bench.report.figures import COLUMN, FADED, GREY, PAGE, Style
from rpe_bench.report.layout import End, compose
from rpe_bench.report.load import in_order
from rpe_bench.report.statistics import FITTED, fits, over_seeds
from rpe_bench.report.tables import count_seeds, trained_up_to

SAME = 0.002
"""Lines whose points differ by no more than this share of the axis are drawn as one, and said to be."""

MOST_DOTS = 50
"""Seeds of an encoding up to which each is a dot; more are a smear, in files of megabytes."""

_NAMED = 6
"""Encodings that a caption names."""


def of_task(rows: pd.DataFrame, task: str) -> pd.DataFrame:
    return rows[rows["task_label"] == task]


def points_of(rows: pd.DataFrame, x: str, y: str) -> pd.DataFrame:
    """`over_seeds` with intervals by encoding_label and x; y = "loss" comes as perplexity, of the mean of the loss.

    The interval of a geometric mean is that of the mean loss.
    """
    points = over_seeds(rows, y, ("encoding_label", x), np.random.default_rng(0), middle=False)
    if y != "loss":
        return points
    with np.errstate(over="ignore"):  # of a model that is certain and wrong
        return points.assign(**{name: np.exp(points[name]) for name in ("mean", "low", "high")})


def draw(
    axes: Axes, points: pd.DataFrame, x: str, looks: Mapping[str, Style], dots: pd.DataFrame | None = None
) -> None:
    """Draw mean and interval over x for each encoding; dots: single seeds, with columns encoding_label, x and y."""
    drawn = [label for label in looks if (points["encoding_label"] == label).any()]
    # Bands of many lines on top of one another would add up to mud.
    opacity = min(0.16, 0.6 / max(1, sum(not looks[label].faded for label in drawn)))
    for place, label in enumerate(drawn):
        look, line = looks[label], points[points["encoding_label"] == label]
        # About eight markers, each line's at places of its own, so that lines on top of one another can be told apart.
        step = max(1, round(len(line) / 8))
        depth = 1.5 if look.faded else 3 + 0.01 * place
        axes.plot(
            line[x],
            line["mean"],
            **look.line(),
            markersize=3.5,
            markevery=(place % step, step),
            zorder=depth,
            label=label,
        )
        if look.faded:
            continue
        if line["low"].notna().any():
            band: Mapping[str, Any] = {"color": look.colour, "alpha": opacity, "linewidth": 0, "zorder": 2}
            axes.fill_between(line[x], line["low"], line["high"], **band)
        if dots is not None and 1 < line["n"].max() <= MOST_DOTS:
            seeds = dots[dots["encoding_label"] == label]
            axes.scatter(seeds[x], seeds["y"], s=3, color=look.colour, alpha=0.4, linewidth=0, zorder=2.5)


def side_by_side(axes: Axes, rows: pd.DataFrame, y: str, looks: Mapping[str, Style]) -> None:
    """`draw` for a single x, where lines would be points on top of one another: a row for each encoding, which is named
    beside it."""
    points = points_of(rows.assign(at=0), "at", y).set_index("encoding_label")
    labels = sorted((label for label in looks if label in points.index), key=lambda label: looks[label].faded)
    for place, label in enumerate(labels):
        look, point = looks[label], points.loc[label]
        seeds = rows.loc[rows["encoding_label"] == label, y].to_numpy()
        seeds = np.exp(seeds) if y == "loss" else seeds
        axes.plot([point["mean"]], [place], **{**look.line(), "marker": look.marker or "o"}, markersize=4, zorder=4)
        if point["n"] > 1:
            bar: dict[str, Any] = {"color": look.colour, "zorder": 2}
            axes.plot(
                [point["low"], point["high"]], [place, place], **bar, alpha=0.3, linewidth=3, solid_capstyle="butt"
            )
            beside = np.full(len(seeds), place + 0.28)
            axes.plot(seeds, beside, **bar, marker=".", markersize=3, markeredgewidth=0, linewidth=0, alpha=0.6)
    axes.set_yticks(range(len(labels)), labels)
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.yaxis.grid(False)


def handles_of(rows: pd.DataFrame, y: str, looks: Mapping[str, Style], equal: Mapping[str, str]) -> list[Line2D]:
    """What stands for each encoding in the legend; its number of seeds too where they differ, of many encodings where
    it is not the usual one, and which line it hides or is hidden by."""
    seeds, usual = _seeds(rows)
    finite = pd.Series(np.isfinite(rows[y].to_numpy(dtype=float))).groupby(rows["encoding_label"].to_numpy()).all()
    handles = []
    for label in [label for label in looks if label in seeds.index and not looks[label].faded]:
        text = f"{label} = {equal[label]}" if label in equal else label
        if seeds.min() < seeds.max() and seeds[label] != usual:
            text += f", {seeds[label]} seed{'s' if seeds[label] > 1 else ''}"
        if not finite[label]:
            text += ", not finite in places"
        handles.append(Line2D([], [], **looks[label].line(), markersize=3.6, label=text))
    return handles


def _seeds(rows: pd.DataFrame) -> tuple[pd.Series, int | None]:
    """How many seeds each encoding has, and what most of them have, where these are too many to say it of each."""
    seeds = rows.groupby("encoding_label")["seed"].nunique()
    return seeds, int(seeds.mode().max()) if len(seeds) > MOST else None


def usual_seeds(rows: pd.DataFrame) -> str:
    """How many seeds those have of which `handles_of` doesn't say it, for a caption; "" where all have as many."""
    seeds, usual = _seeds(rows)
    differ = usual is not None and seeds.min() < seeds.max()
    return f"; {usual} seed{'s' if usual != 1 else ''} where the legend has no number" if differ else ""


def equal_lines(parts: Sequence[pd.DataFrame], x: str, looks: Mapping[str, Style], log: bool = False) -> dict[str, str]:
    """Label -> the earlier label whose line it lies on in all panels; parts: the points of each panel."""

    def shown(part: pd.DataFrame) -> np.ndarray:
        with np.errstate(divide="ignore"):  # of a loss that is 0
            return np.log(part["mean"].to_numpy()) if log else part["mean"].to_numpy()

    lines: dict[str, list[np.ndarray]] = {}
    every = np.concatenate([shown(part) for part in parts])
    every = every[np.isfinite(every)]
    apart = SAME * (float(np.ptp(every)) if log and len(every) else 1.0)
    found: dict[str, str] = {}
    for label, look in looks.items():
        if look.faded:
            continue
        mine = []
        for part in parts:
            line = part[part["encoding_label"] == label]
            mine += [line[x].to_numpy(dtype=float), shown(line)]
        if not any(len(values) for values in mine):
            continue
        for other, its in lines.items():
            pairs = list(zip(mine, its, strict=True))
            if looks[other].group == look.group and all(
                len(one) == len(two) and np.allclose(one, two, rtol=0, atol=apart) for one, two in pairs
            ):
                found[label] = other
                break
        else:
            lines[label] = mine
    return found


def ends_of(axes: Axes, handles: Sequence[Line2D], points: pd.DataFrame, x: str) -> list[End]:
    """Where the lines of some handles end, in a panel of those points; none where a line ends early."""
    ends = []
    for handle in handles:
        label = str(handle.get_label()).partition(" = ")[0].partition(", ")[0]
        line = points[points["encoding_label"] == label]
        if line.empty or line[x].max() < points[x].max() or not np.isfinite(line["mean"].iloc[-1]):
            return []
        ends.append(End(axes, float(line["mean"].iloc[-1]), handle))
    return ends


def boundary(axes: Sequence[Axes], x: float, label: str) -> Line2D:
    for panel in axes:
        panel.axvline(x, color=GREY, linewidth=0.8, zorder=1)
    return Line2D([], [], color=GREY, linewidth=0.8, label=label)


def others(looks: Mapping[str, Style], drawn: set[str]) -> list[Line2D]:
    """What stands in the legend for those that are faded."""
    count = sum(look.faded for label, look in looks.items() if label in drawn)
    return (
        [Line2D([], [], color=FADED, linewidth=0.7, label=f"{count} other{'s' if count > 1 else ''}")] if count else []
    )


def caption_of(rows: pd.DataFrame, mean: str = "mean") -> str:
    """`trained up to 16; mean and 95 % interval over 3 seeds`."""
    return f"{trained_up_to(rows)}; {intervals_over(rows, mean)}"


def intervals_over(rows: pd.DataFrame, mean: str = "mean") -> str:
    """`mean and 95 % interval over 3 seeds`, and which encodings have none, being of a single seed."""
    counts = rows.groupby("encoding_label")["seed"].nunique()
    if counts.max() == 1:
        return "1 seed, no interval"
    single = counts[counts == 1]
    text = f"{mean} and 95 % interval over {count_seeds(rows)}"
    return text + (f" (none for {_named([str(label) for label in single.index])} with 1)" if len(single) else "")


def coverage_over(rows: pd.DataFrame) -> str:
    """How often intervals of an accuracy, of as few seeds as some encoding here has, hold it; for its caption."""
    counts = rows.groupby("encoding_label")["seed"].nunique()
    return f"; {coverage_range('mean', int(counts[counts > 1].min()))}" if counts.max() > 1 else ""


def fit_failures(evaluations: pd.DataFrame) -> str:
    """Which seeds did not learn a task, for its caption; "" where none is known to have failed."""
    found = fits(evaluations)
    missed = found[(~found["fitted"].fillna(True).astype(bool)) | (found["token_accuracy"].isna())]
    if missed.empty:
        return ""
    failed, seeds = (part.groupby("encoding_label")["seed"].nunique() for part in (missed, found))
    parts = [f"{label} {failed[label]} of {seeds[label]}" for label in in_order(failed.index)]
    return f"; seeds that do not fit (accuracy below {FITTED:g} at the training length): {_named(parts)}"


def _named(parts: Sequence[str]) -> str:
    shown = list(parts) if len(parts) <= _NAMED + 1 else [*parts[:_NAMED], f"{len(parts) - _NAMED} more encodings"]
    return ", ".join(shown)


def faded_but(looks: Mapping[str, Style], title: str) -> dict[str, Style]:
    """The looks in the panel of a group: those of other groups are behind it."""
    behind = {label: Style(FADED, (0, ()), "", faded=True) for label, look in looks.items() if look.group != title}
    return {**behind, **{label: look for label, look in looks.items() if look.group == title}}


def titles_of(looks: Mapping[str, Style], drawn: set[str]) -> list[str]:
    """The groups that some drawn encodings are in, in order; [""] where there is but one panel."""
    return list(dict.fromkeys(look.group for label, look in looks.items() if label in drawn and not look.faded)) or [""]


def panels_of(figure: Figure, titles: Sequence[str]) -> tuple[list[Axes], int]:
    """Panels for the groups, and how many of them are in a row: one a column wide, or three across a page."""
    columns = min(3, len(titles))
    figure.set_figwidth(COLUMN if len(titles) == 1 else PAGE)
    rows = -(-len(titles) // columns)
    panels = list(figure.subplots(rows, columns, sharex=True, sharey=True, squeeze=False).flat)
    for spare in panels[len(titles) :]:
        spare.remove()
    for i, (panel, title) in enumerate(zip(panels, titles, strict=False)):
        panel.set_title(title, loc="left")
        # The last of a column shows its ticks, whether or not there is one below it.
        panel.tick_params(labelbottom=True, labelleft=i % columns == 0)
    return panels[: len(titles)], columns


def line_figure(
    rows: pd.DataFrame,
    points: pd.DataFrame,
    x: str,
    y: str,
    task: str,
    looks: Mapping[str, Style],
    caption: str,
    labels: tuple[str, str],
    finish: Callable[[Sequence[Axes]], Sequence[Artist]],
    *,
    lengths: Sequence[float] = (),
    dots: pd.DataFrame | None = None,
    log: bool = False,
) -> Figure:
    """One line an encoding: a column wide, with the lines named where they end if there is room, or with a panel a
    family, where the others stand behind in grey.

    points: what `points_of` makes of the rows. labels: of the axes. finish: draws what else all panels share, sets
    their vertical axis, and returns what stands for that in the legend. lengths, dots: as in `compose` and `draw`. log:
    the vertical axis is.
    """
    drawn = set(rows["encoding_label"])
    figure = Figure(figsize=(COLUMN, COLUMN))
    titles = titles_of(looks, drawn)
    panels, columns = panels_of(figure, titles)
    equal = equal_lines([points], x, looks, log)
    own = []
    for panel, title in zip(panels, titles, strict=True):
        mine = faded_but(looks, title)
        draw(panel, points, x, mine, dots)
        own.append(handles_of(rows, y, mine, equal))
        panel.set_xlabel(labels[0])
    shared = [*others(looks, drawn), *finish(panels)]
    for panel in panels[::columns]:
        panel.set_ylabel(labels[1])
    if len(panels) == 1:
        ends = ends_of(panels[0], own[0], points, x)
        caption += usual_seeds(rows)
        compose(figure, panels, [*own[0], *shared], task, caption, height=1.95, lengths=lengths, ends=ends)
    else:
        caption += f"{usual_seeds(rows)}; grey: those of the other panels"
        compose(figure, panels, shared, task, caption, height=1.4, lengths=lengths, columns=columns, own=own)
    return figure
