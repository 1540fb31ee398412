"""Tables for a page: Markdown, and LaTeX with booktabs. Means with their intervals; the best, and what is not
significantly worse, are marked."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from rpe_bench.report.comparison import against_best
from rpe_bench.report.coverage import coverage_range
from rpe_bench.report.load import Results, in_order
from rpe_bench.report.seeds import HEADING, seeds_lines
from rpe_bench.report.statistics import HOLDS, LINE, over_seeds
from rpe_bench.report.tables import (
    THRESHOLD,
    accuracy_table,
    effective_table,
    leaderboard,
    leaderboard_scores,
    notes,
    task_caption,
)
from rpe_bench.seeds import stream

BEST, AS_GOOD = "best", "as good"

MARKS = (
    "the best mean of a column, and those not significantly worse than it: paired by seed, sign-flip test with Holm's "
    "correction over the encodings, 5 %"
)

UNTOLD = "with so few seeds no difference could be significant, so that the best alone is marked"

NOT_TOLD = "too few seeds for a difference to be significant, and so no mark unless the best"
"""Of some rows among others: there, having no mark does not mean to be worse."""


@dataclass(frozen=True)
class Cell:
    """A mean, the interval around it if there is one, and BEST, AS_GOOD or ""."""

    mean: float
    low: float = np.nan
    high: float = np.nan
    mark: str = ""


@dataclass(frozen=True)
class Page:
    """A table before it is typeset: rows of a name and what stands in each column, "" for nothing."""

    title: str
    caption: str
    columns: list[str]
    rows: list[tuple[str, list[Cell | str]]]
    baselines: list[tuple[str, list[Cell | str]]]


def task_pages(results: Results) -> list[Page]:
    """Token accuracy of each task: encodings by length / training length."""
    table = accuracy_table(results)
    judged = against_best(results.evaluations, "token_accuracy", stream("tables", "token_accuracy"))
    judged = judged.set_index([*LINE, "length"])
    effective = effective_table(results).set_index(list(LINE))
    pages = []
    for task in results.task_labels:
        rows = table[table["task_label"] == task]
        lengths = rows[["ratio", "length"]].drop_duplicates().sort_values("ratio")
        by_point = rows.set_index(["encoding_label", "length", "ratio"]).sort_index()
        trained = results.training_set[results.training_set["task_label"] == task]
        extra = over_seeds(trained, "token_accuracy", LINE, np.random.default_rng(0)) if len(trained) else None
        of_task: Any = judged.loc[task]
        several = rows["encoding_label"].nunique() > 1
        body: list[tuple[str, list[Cell | str]]] = []
        for label in in_order(rows["encoding_label"]):
            cells: list[Cell | str] = []
            for ratio, length in lengths.itertuples(index=False):
                if (label, length, ratio) not in by_point.index:
                    cells.append("")
                    continue
                at: Any = (label, length, ratio)
                point: Any = by_point.loc[at]
                against: Any = of_task.loc[(label, length)]
                as_good = bool(against["could_tell"]) and not bool(against["worse"])
                mark = (BEST if against["best"] else AS_GOOD if as_good else "") if several else ""
                mean, low, high = (float(point[f"token_accuracy_{part}"]) for part in ("mean", "low", "high"))
                cells.append(Cell(mean, low, high, mark))
            if extra is not None:
                found = extra[extra["encoding_label"] == label]
                ends = [float(found[part].iloc[0]) for part in ("mean", "low", "high")] if len(found) else []
                cells.append(Cell(ends[0], ends[1], ends[2]) if ends else "")
            reach: Any = effective.loc[(task, label)] if (task, label) in effective.index else None
            cells.append("" if reach is None else _holds_up_to(reach))
            cells.append(str(rows.loc[rows["encoding_label"] == label, "n"].max()))
            body.append((label, cells))
        behind: list[Cell | str] = [""] * (2 + (extra is not None))
        first = rows.drop_duplicates(["ratio", "length"]).set_index(["ratio", "length"])
        points = list(lengths.itertuples(index=False, name=None))
        baselines = [
            (name, [*(Cell(float(first.loc[point, name])) for point in points), *behind])
            for name in ("chance", "majority")
        ]
        columns = [f"{ratio:.4g}×" for ratio in lengths["ratio"]]
        columns += [*(["training set"] if extra is not None else []), "holds up to", "seeds"]
        caption = f"Token accuracy, {task_caption(results, task)}"
        if rows["n"].max() > 1:
            none = " (none of a single seed)" if rows["n"].min() == 1 else ""
            fewest = int(rows.loc[rows["n"] > 1, "n"].min())
            caption += f", with the 95 % interval of the mean{none}; {coverage_range('mean', fewest)}"
        else:
            caption += ", no interval"
        caption += "."
        if several:
            caption += _on_marks(of_task.reset_index("length", drop=True))
        pages.append(Page(task, caption, columns, body, baselines))
    return pages


def _holds_up_to(row: pd.Series) -> str:
    return f"{'≥ ' if row['at_limit'] else ''}{row['mean']:.4g}"


HOLDS_UP_TO = (
    "Holds up to: the longest evaluated length up to which exact match stays at or above "
    f"{THRESHOLD:g}, mean over seeds; ≥ where at least one seed held as far as was evaluated; 0 where it fails at the "
    "training length."
)


def _judged_over_tasks(scores: pd.DataFrame, name: str) -> pd.DataFrame:
    """`against_best` of the means over tasks, by the seeds that an encoding has of all tasks; others are not in it."""
    by_seed = scores.groupby(["encoding_label", "seed"])[name].agg(["mean", "size"]).reset_index()
    whole = by_seed[by_seed["size"] == scores["task_label"].nunique()]
    points = whole.rename(columns={"mean": "exact_match"}).assign(task_label="", length=0, ratio=0.0)
    return against_best(points, "exact_match", stream("tables", "leaderboard", name))


def _marks(judged: pd.DataFrame) -> list[str]:
    """BEST, AS_GOOD or "" of each row; none where there is nothing to choose from."""
    if judged["encoding_label"].nunique() < 2:
        return [""] * len(judged)
    as_good = judged["could_tell"] & ~judged["worse"]
    return [BEST if best else AS_GOOD if good else "" for best, good in zip(judged["best"], as_good, strict=True)]


def _on_marks(judged: pd.DataFrame) -> str:
    """What marks mean, for a caption; judged: by encoding_label."""
    # One pair against another says nothing: the mark would be on all of them.
    if not judged["could_tell"].any():
        return f" {UNTOLD.capitalize()}."
    unmarked = judged[~judged["could_tell"] & ~judged["best"] & ~judged["worse"]]
    about = f" {', '.join(in_order(unmarked.index))}: {NOT_TOLD}." if len(unmarked) else ""
    return f" Marked: {MARKS}.{about}"


def leaderboard_page(results: Results) -> Page:
    """The encodings over the tasks, the best first."""
    table = leaderboard(results)
    judged = {name: _judged_over_tasks(scores, name) for name, scores in leaderboard_scores(results).items()}
    marks = {name: dict(zip(found["encoding_label"], _marks(found), strict=True)) for name, found in judged.items()}
    rows: list[tuple[str, list[Cell | str]]] = []
    row: Any
    for row in table.itertuples():
        label = row.encoding_label
        area = Cell(row.area_mean, row.area_low, row.area_high, marks["area"].get(label, ""))
        ends = row.effective_ratio_mean, row.effective_ratio_low, row.effective_ratio_high
        reach = Cell(*ends, marks["effective_ratio"].get(label, ""))
        rows.append((row.encoding_label, [area, reach, str(row.tasks), str(row.runs)]))
    caption = (
        "Encodings over the tasks that some run holds at its training length, each task weighing the same: mean over "
        "seeds with its 95 % interval. Area: under exact match over log length, from the training length to the "
        f"longest evaluated one. Reach: how far exact match stays at or above {HOLDS:g}, in training lengths."
    )
    if table["tasks"].nunique() > 1:
        caption += " Encodings with fewer tasks than others are not to be compared with them, and stand below."
    both = pd.concat(judged.values())
    if both["encoding_label"].nunique() > 1:
        caption += _on_marks(both.set_index("encoding_label"))
    return Page("Leaderboard", caption, ["area", "reach", "tasks", "runs"], rows, [])


def markdown(pages: Sequence[Page], heading: str, footer: Sequence[str]) -> str:
    """A Markdown page: best means in bold, those as good in italics."""
    blocks = [f"# {heading}"]
    for page in pages:
        body = [[name, *map(_markdown_cell, cells)] for name, cells in [*page.rows, *page.baselines]]
        frame = pd.DataFrame(body, columns=["", *page.columns]).set_index("")
        table = frame.to_markdown(colalign=("left", *["right"] * len(page.columns)), disable_numparse=True)
        blocks += [f"## {page.title}", page.caption.replace("Marked:", "In bold and in italics:"), table]
    return "\n\n".join([*blocks, *footer]) + "\n"


def _markdown_cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return cell
    around = {BEST: "**", AS_GOOD: "*", "": ""}[cell.mark]
    text = f"{around}{cell.mean:.3f}{around}"
    return f"{text} ({cell.low:.3f}–{cell.high:.3f})" if np.isfinite(cell.low) else text


MOST_ROWS = 26
"""Of a table in LaTeX; with more it would be longer than a page, and is cut into several."""


def latex(pages: Sequence[Page]) -> str:
    """LaTeX for \\input, one table a page; needs the packages booktabs and graphicx. Best means in bold, those as good
    underlined; intervals in a line below. A table that is wider than the page is made smaller."""
    blocks = [r"% Needs \usepackage{booktabs,graphicx}."]
    for page in pages:
        parts = -(-len(page.rows) // MOST_ROWS)
        for part in range(parts):
            start, stop = (len(page.rows) * edge // parts for edge in (part, part + 1))
            which = "" if parts == 1 else f" ({part + 1} of {parts})"
            blocks.append(_latex_table(page, page.rows[start:stop], which))
    return "\n\n".join(blocks) + "\n"


def _latex_table(page: Page, rows: Sequence[tuple[str, list[Cell | str]]], which: str) -> str:
    caption = page.caption.replace("Marked:", "In bold and underlined:")
    lines = [
        r"\begin{table*}",
        r"\centering\small",
        r"\setlength{\abovecaptionskip}{0pt}\setlength{\belowcaptionskip}{6pt}",
        rf"\caption{{{_escaped(page.title + which)}. {_escaped(caption)}}}",
        r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{",
        rf"\begin{{tabular}}{{l{'c' * len(page.columns)}}}",
        r"\toprule",
        " & ".join(["", *map(_escaped, page.columns)]) + r" \\",
        r"\midrule",
        *(line for name, cells in rows for line in _latex_rows(name, cells)),
    ]
    if page.baselines:
        lines += [r"\midrule", *(line for name, cells in page.baselines for line in _latex_rows(name, cells))]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}}", r"\end{table*}"])


def _latex_rows(name: str, cells: Sequence[Cell | str]) -> list[str]:
    """A row of means and, if any has one, a row of their intervals."""
    rows = [" & ".join([_escaped(name), *map(_latex_cell, cells)]) + r" \\"]
    intervals = [_latex_interval(cell) for cell in cells]
    if any(intervals):
        rows += [r"\addlinespace[-2.5pt]", " & ".join(["", *intervals]) + r" \\", r"\addlinespace[2pt]"]
    return rows


def _latex_cell(cell: Cell | str) -> str:
    if isinstance(cell, str):
        return _escaped(cell)
    text = f"{cell.mean:.3f}"
    return {BEST: rf"\textbf{{{text}}}", AS_GOOD: rf"\underline{{{text}}}", "": text}[cell.mark]


def _latex_interval(cell: Cell | str) -> str:
    if isinstance(cell, str) or not np.isfinite(cell.low):
        return ""
    return rf"{{\tiny {cell.low:.3f}--{cell.high:.3f}}}"


_SPECIAL = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "≥": r"$\geq$",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}


def _escaped(text: str) -> str:
    return re.sub(r"[\\~^×≥&%$#_{}]", lambda found: _SPECIAL[found.group()], text)


def accuracy_markdown(results: Results) -> str:
    """All tasks, and what was left out of them."""
    return _accuracy_markdown(results, task_pages(results))


def _accuracy_markdown(results: Results, pages: Sequence[Page]) -> str:
    footer = [HOLDS_UP_TO, "\n".join(f"- {note}" for note in notes(results))]
    if seeds := seeds_lines(results):
        footer[1:1] = [HEADING, "\n".join(f"- {line}" for line in seeds)]
    return markdown(pages, "Token accuracy by length / training length", footer)


def rendered(results: Results) -> dict[str, str]:
    """File -> its text."""
    pages, board = task_pages(results), [leaderboard_page(results)]
    return {
        "accuracy.md": _accuracy_markdown(results, pages),
        "accuracy.tex": latex(pages),
        "leaderboard.md": markdown(board, "Encodings over tasks", []),
        "leaderboard.tex": latex(board),
    }
