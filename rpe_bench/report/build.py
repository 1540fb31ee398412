"""The report of a results directory: figures and tables as files, and the text that a terminal shows."""

import re
from dataclasses import dataclass
from pathlib import Path

from rpe_bench.report.figures import extrapolation_figure, perplexity_figure, save_figure, styles
from rpe_bench.report.load import ReportError, Results, load_results
from rpe_bench.report.tables import accuracy_table, effective_table, markdown_tables, notes, seed_by_seed, text_tables


@dataclass(frozen=True)
class Report:
    """What was written.

    text             tables and notes for a terminal, without a newline at the end
    figures, tables  the files, in order
    """

    text: str
    figures: list[Path]
    tables: list[Path]

    @property
    def paths(self) -> list[Path]:
        return [*self.figures, *self.tables]


def write_report(results_dir: str | Path, out: str | Path) -> Report:
    """Write OUT/figures and OUT/tables from the finished runs of RESULTS_DIR.

    ReportError where there is none. The same runs give the same bytes; files of an earlier report are replaced.
    """
    results = load_results(results_dir)
    if results.evaluations.empty:
        raise ReportError(f"no finished run in {results_dir} to report on ({notes(results)[0]})")
    out = Path(out)
    return Report(text_tables(results), _figures(results, out / "figures"), _tables(results, out / "tables"))


def _figures(results: Results, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    looks = styles(results.encoding_labels)
    paths = []
    for task, stem in file_stems(results.task_labels).items():
        paths += save_figure(extrapolation_figure(results, task, looks), out / f"{stem}-extrapolation")
        paths += save_figure(perplexity_figure(results, task, looks), out / f"{stem}-perplexity")
    return paths


def _tables(results: Results, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    frames = {
        "accuracy": accuracy_table(results),
        "effective_length": effective_table(results),
        "evaluations": seed_by_seed(results.evaluations),
        "positions": seed_by_seed(results.positions),
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
