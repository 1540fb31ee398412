"""The command line: `rpe-bench run`, `list` and `report`.

Imports nothing heavy before a command needs it: `rpe-bench --help` answers at once.

Exit status: 0 all well; 1 a run failed; 2 the request was wrong, and nothing was started; 130 interrupted.
"""

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from rpe_bench.errors import ConfigError, nearest

COMMANDS = {
    "run": "one run, or with -m a sweep: rpe-bench run [-m] [group=choice ...] [key=value ...]",
    "list": "what there is to choose from: encodings, tasks, models, recipes, experiments",
    "report": "figures and tables of finished runs",
}
LISTS = {f"{group}s": group for group in ("encoding", "task", "model", "recipe", "experiment")}


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
    lists = commands.add_parser("list", help=COMMANDS["list"])
    lists.add_argument("what", nargs="?", metavar="WHAT", help=f"{', '.join(LISTS)}; all of them by default")
    reports = commands.add_parser("report", help=COMMANDS["report"])
    reports.add_argument("results_dir", nargs="?", type=Path, default=Path("results"), metavar="RESULTS_DIR")
    reports.add_argument("--out", type=Path, metavar="DIR", help="where they go; RESULTS_DIR/report by default")
    parsed = parser.parse_args(arguments)
    if parsed.command == "list":
        if parsed.what and parsed.what not in LISTS:
            known = ", ".join(LISTS)
            raise ConfigError(f"{parsed.what}: cannot be listed{nearest(parsed.what, LISTS)} (choose from {known})")
        return list_choices([parsed.what] if parsed.what else list(LISTS))
    return report(parsed.results_dir, parsed.out or parsed.results_dir / "report")


def run(arguments: Sequence[str]) -> int:
    """One run or a sweep, by Hydra's overrides and flags."""
    # Before torch and numpy are imported: neither may start threads or CUDA in a process that is to be forked.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    # A class in the current directory can be a target, as under `python -m rpe_bench`.
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
    from rpe_bench.compose import compose

    composed = compose(arguments)
    if composed is None:
        return 0
    from rpe_bench.config import resolve
    from rpe_bench.sweep import run_one

    config = resolve(composed.raw)
    return 0 if composed.shown_only else run_one(config)


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
