"""The report of a results directory: figures, tables and a page as files, and the text that a terminal shows."""

import hashlib
import json
import multiprocessing
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure

from rpe_bench.cores import available_cores
from rpe_bench.report.cost import cost_figure, has_costs
from rpe_bench.report.dashboard import write_dashboard
from rpe_bench.report.extrapolation import extrapolation_figure
from rpe_bench.report.figures import Style, digest, figure_paths, looks_of, save_figure
from rpe_bench.report.heatmaps import distance_figure, has_distances
from rpe_bench.report.learning import has_learning, learning_figure
from rpe_bench.report.load import ReportError, Results, load_results, read_csv
from rpe_bench.report.overview import has_overview, overview_figure
from rpe_bench.report.perplexity import perplexity_figure
from rpe_bench.report.published import has_tables, published, read_tables, write_tables
from rpe_bench.report.tables import accuracy_table, effective_table, leaderboard, notes, position_bins, text_tables
from rpe_bench.report.typeset import rendered

MANIFEST = "report.json"
"""Lists the figures and tables of a report, and its page, beside them."""

PAGE = "dashboard.html"
"""All runs to explore in a browser."""

_WORTH = 8
"""Figures that it takes for another process to be worth its start."""


@dataclass(frozen=True)
class Report:
    """What was written.

    text             tables and notes for a terminal, without a newline at the end
    figures, tables  the files, in order
    dashboard        the page; None where it was made from the tables of an earlier report
    """

    text: str
    figures: list[Path]
    tables: list[Path]
    dashboard: Path | None

    @property
    def paths(self) -> list[Path]:
        return [*self.figures, *self.tables, *([] if self.dashboard is None else [self.dashboard])]


def write_report(results_dir: str | Path, out: str | Path, highlight: Sequence[str] = ()) -> Report:
    """Write OUT/figures, OUT/tables and OUT/dashboard.html from RESULTS_DIR, and their names to OUT/report.json.

    Where there are no run directories, the tables of an earlier report in RESULTS_DIR/tables stand for them, which are
    too little for the dashboard. highlight: encodings that are drawn before the others, which are then grey.
    ReportError where no run is finished. The same runs give the same bytes; the files of an earlier report are
    replaced, and those that this one does not have are removed.
    """
    from_runs = (Path(results_dir) / "runs").is_dir() or not has_tables(results_dir)
    results = load_results(results_dir) if from_runs else read_tables(results_dir)
    if results.evaluations.empty:
        raise ReportError(f"no finished run in {results_dir} to report on ({notes(results)[0]})")
    return report_on(results, out, highlight, results_dir if from_runs else None)


def report_on(
    results: Results, out: str | Path, highlight: Sequence[str] = (), results_dir: str | Path | None = None
) -> Report:
    """`write_report` of results that are there already; without a dashboard where their runs are not."""
    out = Path(out)
    looks = looks_of(results.encoding_labels, highlight)
    earlier = _listed(out)
    kept = published(results)
    drawn = _figures(kept, looks, out / "figures")
    tables = _tables(kept, out / "tables")
    dashboard = None if results_dir is None else write_dashboard(results, results_dir, out / PAGE)
    report = Report(text_tables(results), drawn(), tables, dashboard)
    for stale in set(earlier) - set(report.paths):
        stale.unlink(missing_ok=True)
    names = [path.relative_to(out).as_posix() for path in report.paths]
    (out / MANIFEST).write_text(json.dumps(names, indent=2) + "\n", encoding="utf-8", newline="\n")
    return report


def not_following(results_dir: str | Path) -> list[str]:
    """What in RESULTS_DIR no longer follows from its own tables: a line for each figure or table that differs, is
    missing or is none of theirs. Nothing is written.

    A figure is known by the data that it was drawn from, which its file names; see `figures.save_figure`.
    """
    folder = Path(results_dir)
    results = read_tables(folder)
    listed = {path for path in _listed(folder) if path.parent.name == "figures"}
    found = []
    for stem, make in figures_of(results, looks_of(results.encoding_labels)):
        data = digest(make()).encode()
        for path in (folder / "figures" / f"{stem}.{kind}" for kind in ("pdf", "svg", "png")):
            listed.discard(path)
            if not path.exists():
                found.append(f"{path}: missing")
            elif data not in path.read_bytes():
                found.append(f"{path}: drawn from other data")
    found += [f"{path}: no figure of these tables" for path in sorted(listed)]
    for name, frame in derived_tables(results).items():
        path = folder / "tables" / f"{name}.csv"
        if not path.exists() or not _same(_read_like(frame, path), frame):
            found.append(f"{path}: missing, or of other data")
    for name, text in rendered(results).items():
        path = folder / "tables" / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            found.append(f"{path}: missing, or of other data")
    return found


def _read_like(frame: pd.DataFrame, path: Path) -> pd.DataFrame:
    """Only numbers can be missing."""
    return read_csv(path, na_values={str(name): ["", "nan"] for name in frame.select_dtypes("number")})


def _same(one: pd.DataFrame, other: pd.DataFrame) -> bool:
    """But for the last digits, which are the machine's."""
    try:
        pd.testing.assert_frame_equal(one, other, check_dtype=False, rtol=1e-9, atol=1e-12)
    except AssertionError:
        return False
    return True


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


def figures_of(results: Results, looks: Mapping[str, Style]) -> Iterator[tuple[str, Callable[[], Figure]]]:
    """The name of each figure that the results allow, and what makes it."""
    if has_overview(results):
        yield "overview", partial(overview_figure, results, looks)
    for task, stem in file_stems(results.task_labels).items():
        yield f"{stem}-extrapolation", partial(extrapolation_figure, results, task, looks)
        yield f"{stem}-perplexity", partial(perplexity_figure, results, task, looks)
        if has_distances(results, task):
            yield f"{stem}-distance", partial(distance_figure, results, task)
        if has_costs(results, task):
            yield f"{stem}-cost", partial(cost_figure, results, task, looks)
        if has_learning(results, task):
            yield f"{stem}-learning", partial(learning_figure, results, task, looks)


def _figures(results: Results, looks: Mapping[str, Style], out: Path) -> Callable[[], list[Path]]:
    """Draw the figures, many of them in processes of their own; returns what waits for them and gives their files."""
    out.mkdir(parents=True, exist_ok=True)
    wanted = list(figures_of(results, looks))
    workers = min(available_cores(), len(wanted) // _WORTH)
    started = []
    if workers > 1 and "fork" in multiprocessing.get_all_start_methods():
        started = [_Drawing(wanted[number::workers], out) for number in range(workers)]
    else:
        _draw(wanted, out)

    def drawn() -> list[Path]:
        for drawing in started:
            drawing.wait()
        return [path for stem, _ in wanted for path in figure_paths(out / stem)]

    return drawn


_Wanted = Sequence[tuple[str, Callable[[], Figure]]]


def _draw(wanted: _Wanted, out: Path) -> None:
    for stem, make in wanted:
        save_figure(make(), out / stem)


class _Drawing:
    """Some figures that are being drawn in another process, which has the results from this one as they are now."""

    def __init__(self, wanted: _Wanted, out: Path) -> None:
        context = multiprocessing.get_context("fork")
        self._listening, told = context.Pipe(duplex=False)
        self._process = context.Process(target=self._work, args=(wanted, out, told), daemon=True)
        self._process.start()
        told.close()

    @staticmethod
    def _work(wanted: _Wanted, out: Path, told: Connection) -> None:
        try:
            _draw(wanted, out)
        except Exception as error:  # whatever it is, it is raised where it is waited for
            told.send(error)

    def wait(self) -> None:
        """Raises what went wrong there."""
        problem: Exception | None = None
        with suppress(EOFError):
            problem = self._listening.recv()
        self._process.join()
        if problem is None and self._process.exitcode:
            problem = RuntimeError(f"drawing figures ended with status {self._process.exitcode}")
        if problem is not None:
            raise problem


def derived_tables(results: Results) -> dict[str, pd.DataFrame]:
    """What is computed from the tables of `published`, by name."""
    return {
        "accuracy": accuracy_table(results),
        "effective_length": effective_table(results),
        "leaderboard": leaderboard(results),
        "position_bins": position_bins(results),
    }


def _tables(results: Results, out: Path) -> list[Path]:
    out.mkdir(parents=True, exist_ok=True)
    paths = write_tables(results, out)
    for name, frame in derived_tables(results).items():
        paths.append(out / f"{name}.csv")
        frame.to_csv(paths[-1], index=False, lineterminator="\n")
    for name, text in rendered(results).items():
        paths.append(out / name)
        paths[-1].write_text(text, encoding="utf-8", newline="\n")
    return paths


def file_stems(labels: list[str]) -> dict[str, str]:
    """A file name, without its ending, for each label: `copy`, `adjacency_causal=False`; no two the same.

    A label too long for one is cut, and told from others that begin so by a digest.
    """
    stems: dict[str, str] = {}
    for label in labels:
        stem = re.sub(r"[^A-Za-z0-9=.-]+", "_", label).strip("_.")
        if len(stem) > 80:
            stem = f"{stem[:71]}-{hashlib.sha256(label.encode()).hexdigest()[:8]}"
        number, free = 2, stem
        while free in stems.values():
            free, number = f"{stem}-{number}", number + 1
        stems[label] = free
    return stems
