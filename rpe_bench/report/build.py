"""The report of a results directory: figures, tables and a page as files, and the text that a terminal shows."""

import json
import re
from dataclasses import dataclass
from pathlib import Path

from rpe_bench.report.dashboard import write_dashboard
from rpe_bench.report.figures import extrapolation_figure, perplexity_figure, save_figure, styles
from rpe_bench.report.heatmaps import distance_figure, has_distances
from rpe_bench.report.load import ReportError, Results, load_results
from rpe_bench.report.tables import (
    accuracy_table,
    effective_table,
    markdown_tables,
    notes,
    position_bins,
    seed_by_seed,
    text_tables,
)

MANIFEST = "report.json"
"""Lists the figures and tables of a report, and its page, beside them."""

PAGE = "dashboard.html"
"""All runs to explore in a browser."""


@dataclass(frozen=True)
class Report:
    """What was written.

    text             tables and notes for a terminal, without a newline at the end
    figures, tables  the files, in order
    dashboard        the page
    """

    text: str
    figures: list[Path]
    tables: list[Path]
    dashboard: Path

    @property
    def paths(self) -> list[Path]:
        return [*self.figures, *self.tables, self.dashboard]


def write_report(results_dir: str | Path, out: str | Path) -> Report:
    """Write OUT/figures, OUT/tables and OUT/dashboard.html from RESULTS_DIR, and their names to OUT/report.json.

    ReportError where no run is finished. The same runs give the same bytes; the files of an earlier report are
    replaced, and those that this one does not have are removed.
    """
    results = load_results(results_dir)
    if results.evaluations.empty:
        raise ReportError(f"no finished run in {results_dir} to report on ({notes(results)[0]})")
    out = Path(out)
    earlier = _listed(out)
    report = Report(
        text_tables(results),
        _figures(results, out / "figures"),
        _tables(results, out / "tables"),
        write_dashboard(results, results_dir, out / PAGE),
    )
    for stale in set(earlier) - set(report.paths):
        stale.unlink(missing_ok=True)
    names = [path.relative_to(out).as_posix() for path in report.paths]
    (out / MANIFEST).write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8", newline="\n")
    return report


def _listed(out: Path) -> list[Path]:
    """The files that an earlier report wrote to OUT: what else is there, under whatever name, is not ours to remove.

    ReportError where the list is not one that a report wrote.
    """
    path = out / MANIFEST
    if not path.exists():
        return []
    try:
        names = json.loads(path.read_text(encoding="utf-8"))
    except ValueError:
        names = None
    plain = rf"(figures|tables)/[^/\\]*\.[a-z]+|{re.escape(PAGE)}"  # and so never a file elsewhere
    if not isinstance(names, list) or not all(isinstance(name, str) and re.fullmatch(plain, name) for name in names):
        raise ReportError(f"{path} is not the list of files that an earlier report left there; move it away")
    return [out / name for name in names]


def _figures(results: Results, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    looks = styles(results.encoding_labels)
    paths = []
    for task, stem in file_stems(results.task_labels).items():
        paths += save_figure(extrapolation_figure(results, task, looks), out / f"{stem}-extrapolation")
        paths += save_figure(perplexity_figure(results, task, looks), out / f"{stem}-perplexity")
        if has_distances(results, task):
            paths += save_figure(distance_figure(results, task), out / f"{stem}-distance")
    return paths


def _tables(results: Results, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    frames = {
        "accuracy": accuracy_table(results),
        "effective_length": effective_table(results),
        "evaluations": seed_by_seed(results.evaluations),
        **({} if results.training_set.empty else {"training_set": seed_by_seed(results.training_set)}),
        "positions": seed_by_seed(results.positions),
        "position_bins": position_bins(results),
        "runs": results.runs,
    }
    paths = []
    for name, frame in frames.items():
        paths.append(out / f"{name}.csv")
        frame.to_csv(paths[-1], index=False, lineterminator="\n")
    paths.append(out / "accuracy.md")
    paths[-1].write_text(markdown_tables(results), encoding="utf-8", newline="\n")
    return paths


def file_stems(labels: list[str]) -> dict[str, str]:
    """A file name, without its ending, for each label: `copy`, `adjacency_causal=False`; no two the same."""
    stems: dict[str, str] = {}
    for label in labels:
        stem = re.sub(r"[^A-Za-z0-9=.-]+", "_", label).strip("_.")[:80]
        number, free = 2, stem
        while free in stems.values():
            free, number = f"{stem}-{number}", number + 1
        stems[label] = free
    return stems
