"""`rpe-bench diagnose`: how finished runs fail beyond their training length."""

import math
import os
import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.commands import look_here
from rpe_bench.errors import ConfigError

HELP = "how finished runs fail beyond the training length: where, how and through what"
DESCRIPTION = """How finished runs fail beyond their training length: the length at which accuracy falls below a
threshold; whether the loss rises at the first unseen position, later, gradually or not at all; and whether unseen
positions, unseen distances or neither are to blame, by what sequences of the training length lose when their positions
are moved. In sentences, and as a table, DIR/diagnosis.csv."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument(
        "directories",
        nargs="*",
        type=Path,
        default=[Path("results")],
        metavar="DIR",
        help="directories of runs or of results; results by default",
    )
    parser.add_argument("--threshold", default="0.9", metavar="A", help="of token accuracy; 0.9 by default")
    parser.add_argument("--least", default="0.1", metavar="NATS", help="rise of the loss that counts; 0.1 by default")
    parser.add_argument("--out", type=Path, metavar="FILE", help="one table of all, in place of those in each DIR")


def main(parsed: Namespace) -> int:
    threshold, least = _number("--threshold", parsed.threshold, 1), _number("--least", parsed.least, math.inf)
    look_here()
    import torch

    from rpe_bench.diagnostics.verdict import Verdict, table
    from rpe_bench.files import write_text
    from rpe_bench.trained import Trained

    chosen: dict[Path, list[Trained]] = {}
    for directory in parsed.directories:
        runs = directory / "runs"
        if not runs.is_dir():
            if not (directory / "run.json").exists():
                raise ConfigError(
                    f"{directory}: holds neither a run, with its run.json, nor runs, in a folder of that name"
                )
            chosen[directory] = [Trained.at(directory)]
            continue
        chosen[directory] = []
        for run in sorted(path for path in runs.iterdir() if path.is_dir() and not path.name.startswith(".")):
            try:
                chosen[directory].append(Trained.at(run))
            except ConfigError as error:
                print(f"left out: {error}", file=sys.stderr)
        if not chosen[directory]:
            raise ConfigError(f"{directory}: has no finished run")

    for path in [parsed.out] if parsed.out else [directory / "diagnosis.csv" for directory in chosen]:
        # Before the work, rather than after it.
        if path.is_dir() or not os.access(path.parent, os.W_OK):
            raise ConfigError(f"--out={path}: is no file that can be written")

    tables: dict[Path, list[Verdict]] = {}
    for directory, runs in chosen.items():
        rows = tables.setdefault(parsed.out or directory / "diagnosis.csv", [])
        for trained in runs:
            torch.set_num_threads(trained.config.threads)
            verdict = Verdict.of(trained, threshold, least)
            print(verdict.run_id, *(f"  {sentence}" for sentence in verdict.sentences), "", sep="\n", flush=True)
            rows.append(verdict)
    for path, rows in tables.items():
        write_text(path, table(rows).to_csv(index=False, lineterminator="\n"))
        print(path)
    return 0


def _number(flag: str, text: str, most: float) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number <= most:
        raise ConfigError(f"{flag}={text}: must be a number above 0{'' if most == math.inf else f', {most:g} at most'}")
    return number
