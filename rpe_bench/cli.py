"""The command line: `rpe-bench run`, `status`, `list`, `properties` and `report`.

Imports nothing heavy before a command needs it: `rpe-bench --help` answers at once.

Exit status: 0 all well; 1 a run failed; 2 the request was wrong, and nothing was started; 130 interrupted.
"""

import argparse
import errno
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rpe_bench.errors import ConfigError, nearest

COMMANDS = {
    "run": "one run, or with -m a sweep: rpe-bench run [-m] [group=choice ...] [key=value ...]",
    "status": "how far the runs of a results directory are, also while a sweep goes on",
    "list": "what there is to choose from: encodings, tasks, positions, models, recipes, experiments",
    "properties": "what each encoding can and cannot do, measured",
    "report": "figures and tables of finished runs",
}
LISTS = {
    "encodings": "encoding",
    "tasks": "task",
    "positions": "positions",
    "models": "model",
    "recipes": "recipe",
    "experiments": "experiment",
}
PROPERTIES = """What each encoding can and cannot do: a table, every cell of which is measured at run time, by building
the encoding and calling it, with the number behind each verdict; and what a rotation does, step by step."""


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{message} (see {self.prog} --help)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Carry out a command line, by default this process's; returns the exit status."""
    try:
        try:
            return _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        finally:
            sys.stdout.flush()  # or the interpreter would find at its exit that nothing can be written
    except OSError as error:
        # A write to stdout names no file. A reader that has seen enough, such as head, is no news.
        if error.filename is not None or error.errno not in (errno.EPIPE, errno.ENOSPC):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        if error.errno != errno.EPIPE:
            print(f"error: cannot write: {error.strerror}", file=sys.stderr)
        return 1
    except ConfigError as error:
        print(*(f"error: {line}" for line in error.errors), sep="\n", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


def _dispatch(arguments: list[str]) -> int:
    # Hydra has its own parser for everything after `run`, --help included.
    if arguments[:1] == ["run"]:
        return run(arguments[1:])
    if not arguments or arguments[0] not in (*COMMANDS, "-h", "--help"):
        given = arguments[0] if arguments else "rpe-bench"
        problem = "unknown command" if arguments else "needs a command"
        raise ConfigError(f"{given}: {problem}{nearest(given, COMMANDS)} (commands: {', '.join(COMMANDS)})")
    parser = Parser("rpe-bench", description="Small Transformers under any positional encoding: how far does each go?")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    commands.add_parser("run", help=COMMANDS["run"], add_help=False)
    statuses = commands.add_parser("status", help=COMMANDS["status"])
    statuses.add_argument("results_dir", nargs="?", type=Path, default=Path("results"), metavar="RESULTS_DIR")
    lists = commands.add_parser("list", help=COMMANDS["list"])
    lists.add_argument("what", nargs="?", metavar="WHAT", help=f"{', '.join(LISTS)}; all of them by default")
    table = commands.add_parser("properties", help=COMMANDS["properties"], description=PROPERTIES)
    table.add_argument("--encodings", metavar="A,B", help="ids, or all of conf/encoding by default")
    table.add_argument("--bidirectional", action="store_true", help="in an encoder, where a token sees later ones")
    table.add_argument("--out", type=Path, metavar="DIR", help="write properties.md and properties.csv there")
    reports = commands.add_parser("report", help=COMMANDS["report"])
    reports.add_argument("results_dir", nargs="?", type=Path, default=Path("results"), metavar="RESULTS_DIR")
    reports.add_argument("--out", type=Path, metavar="DIR", help="where they go; RESULTS_DIR/report by default")
    parsed = parser.parse_args(arguments)
    if parsed.command == "status":
        return status(parsed.results_dir)
    if parsed.command == "list":
        if parsed.what and parsed.what not in LISTS:
            known = ", ".join(LISTS)
            raise ConfigError(f"{parsed.what}: cannot be listed{nearest(parsed.what, LISTS)} (choose from {known})")
        if parsed.what == "encodings":
            return list_encodings()
        return list_choices([parsed.what] if parsed.what else list(LISTS))
    if parsed.command == "properties":
        return properties(parsed.encodings, not parsed.bidirectional, parsed.out)
    return report(parsed.results_dir, parsed.out or parsed.results_dir / "report")


def run(arguments: Sequence[str]) -> int:
    """One run or a sweep, by Hydra's overrides and flags."""
    # Before torch and numpy are imported: neither may start threads or CUDA in a process that is to be forked.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    _look_here()
    from rpe_bench.interrupts import ending

    with ending():
        from rpe_bench.compose import compose

        composed = compose(arguments)
        if composed is None:
            return 0
        from rpe_bench.config import resolve
        from rpe_bench.sweep import run_one

        config = resolve(composed.raw)
    return 0 if composed.shown_only else run_one(config)


def status(results_dir: Path) -> int:
    """How far the runs in a directory are, by task and encoding."""
    from rpe_bench.status import Status

    try:
        print(Status.of(results_dir))
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ConfigError(f"no runs in {results_dir}: there is no directory {results_dir / 'runs'}") from error
    return 0


def _look_here() -> None:
    """A class in the current directory can be a target, as under `python -m rpe_bench`."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())


def list_choices(names: Sequence[str]) -> int:
    """The ids of groups with a line on each."""
    from rpe_bench.catalogue import choices, summary

    for name in names:
        group = LISTS[name]
        ids = choices(group)
        width = max(map(len, ids), default=0)
        if len(names) > 1:
            print(name)
        for choice in ids:
            print(f"{'  ' * (len(names) > 1)}{choice:{width}}  {summary(group, choice)}".rstrip())
    return 0


def list_encodings() -> int:
    """A table of the encodings, as wide as the terminal; one line each where it goes into a file or a pipe."""
    _look_here()
    from rpe_bench.catalogue import choices, encodings, summary
    from rpe_bench.facts import facts, table

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    known = encodings()
    print(table([facts(name).row() for name in known], width))
    print("\nlearned by a module: D is the model's width, H its heads, K a head's width, L positions")
    for name in sorted(set(choices("encoding")) - set(known)):
        print(f"\n{name}: {summary('encoding', name)}")
    return 0


def properties(names: str | None, causal: bool, out: Path | None) -> int:
    """The table of properties of some encodings, or of all, measured in a causal or a bidirectional model."""
    _look_here()
    from rpe_bench.catalogue import encodings, unknown_choice

    known = encodings()
    chosen = list(known) if names is None else list(dict.fromkeys(names.split(",")))
    if unknown := [unknown_choice("encoding", name, known) for name in chosen if name not in known]:
        raise ConfigError(*unknown)
    if out is not None:
        # Before a minute of measuring rather than after it.
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--out={out}: {error.strerror}") from error
    import torch

    from rpe_bench.catalogue import read
    from rpe_bench.components import load_class
    from rpe_bench.properties import Report

    for name in known if names is None else ():
        try:
            load_class("encoding", read("encoding", name)["target"])
        except ConfigError as error:  # somebody's own, of another folder: no reason to say nothing of all others
            chosen.remove(name)
            print(f"encoding={name} is left out: {error}", file=sys.stderr)
    torch.set_num_threads(1)  # many small calls, in which more threads would wait for each other
    found = Report.of(chosen, causal)
    print(found.markdown(), end="")
    if out is not None:
        try:
            written = found.write(out)
        except OSError as error:
            raise ConfigError(f"--out={out}: {error.filename or out}: {error.strerror}") from error
        print("", *written, sep="\n")
    return 0


def report(results_dir: Path, out: Path) -> int:
    """Figures and tables of the finished runs in a directory."""
    from rpe_bench.report import ReportError, write_report

    try:
        written = write_report(results_dir, out)
    except ReportError as error:
        raise ConfigError(str(error)) from error
    except OSError as error:
        raise ConfigError(f"--out={out}: {error.filename or out}: {error.strerror}") from error
    print(written.text, "", *written.paths, sep="\n")
    return 0
