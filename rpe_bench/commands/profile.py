"""`rpe-bench profile`: what encodings cost, and where the time of a training step goes."""

import os
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rpe_bench.commands import keep_to_one_thread, look_here
from rpe_bench.errors import ConfigError

if TYPE_CHECKING:
    from rpe_bench.config import Config
    from rpe_bench.profiling.cells import Subject

HELP = "time and memory of encodings against no position, by length"
DESCRIPTION = """What encodings cost: time and memory of a training step and of an evaluation (a forward pass of one
example) at several lengths, as ratios to nope, all encodings taking turns; how both grow with the length, and which
claims about it hold here. As tables (CSV, Markdown) and figures (PDF, SVG, PNG). Overrides, key=value, are those of
rpe-bench run: model=small, recipe.batch_size=16, recipe.precision=bf16-mixed, device=cuda, threads=2. With encoding=ID
and its keys, that one is measured. The same command again goes on, and measures nothing anew that is finished."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("overrides", nargs="*", metavar="key=value", help="as of rpe-bench run")
    parser.add_argument("--encodings", metavar="A,B", help="ids, or all of conf/encoding by default")
    parser.add_argument("--lengths", metavar="A,B", help="in tokens; by default up to 1024 in training, 8192 else")
    parser.add_argument("--only", metavar="KIND", help="training or evaluation; both by default")
    parser.add_argument("--rounds", default="9", metavar="N", help="calls of each that are timed; 9 by default")
    parser.add_argument("--seconds", default="10", metavar="S", help="for all rounds of an encoding at a length; 10")
    parser.add_argument(
        "--mib", default="4096", metavar="N", help="memory of a call, beyond which it is left out; 4096"
    )
    parser.add_argument("--where", action="store_true", help="where the time of a training step goes, instead")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where all of it goes; RESULTS_DIR/profile by default")
    parser.add_argument("--anew", action="store_true", help="replace what is there")


def main(parsed: Namespace) -> int:
    keep_to_one_thread()
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # else torch's profiler says when it starts and stops
    look_here()
    given = None if parsed.lengths is None else [_whole("--lengths", part) for part in parsed.lengths.split(",")]
    rounds, mib = _whole("--rounds", parsed.rounds), _whole("--mib", parsed.mib)
    seconds = _positive("--seconds", parsed.seconds)
    if parsed.only not in (None, "training", "evaluation"):
        raise ConfigError(f"--only={parsed.only}: must be training or evaluation")
    if parsed.where and parsed.only:
        raise ConfigError("--only: has no part in --where, which looks at training")
    config, subjects = _composed(parsed.overrides, parsed.encodings)
    out = parsed.out or config.results_dir / "profile"
    if parsed.where:
        return _where(config, subjects, given or [128], rounds, out)

    from rpe_bench.profiling.account import Account
    from rpe_bench.profiling.apart import Limits
    from rpe_bench.profiling.cells import KINDS, lengths_of
    from rpe_bench.profiling.measure import Request, measure
    from rpe_bench.report.profile import Profile

    kinds = KINDS if parsed.only is None else [parsed.only]
    lengths = {kind: lengths_of(kind, given) for kind in kinds}
    request = Request(config, subjects, lengths, rounds, Limits(seconds, mib))
    account = Account(out, request.identity(), parsed.anew)
    if account.finished:
        print(f"{out}: was measured before (--anew measures again)", file=sys.stderr)
    else:
        measure(request, account, _tell)
        _tell("")
    profile = Profile.read(out, request.about())
    written = profile.write(out)
    print(profile.text(), "", *written, sep="\n")
    return 0


def _where(config: "Config", subjects: Sequence["Subject"], lengths: Sequence[int], rounds: int, out: Path) -> int:
    from rpe_bench.files import write_text
    from rpe_bench.profiling.measure import about
    from rpe_bench.profiling.shares import COLUMNS, shares
    from rpe_bench.record import to_csv
    from rpe_bench.report.shares import text

    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--out={out}: {error.strerror}") from error
    rows, refused = shares(config, subjects, lengths, rounds, _tell)
    _tell("")
    said = text(rows, about(config))
    write_text(out / "shares.csv", to_csv(COLUMNS, rows))
    write_text(out / "shares.md", f"# Where the time of a training step goes\n\n{said}\n")
    print(said, *(f"left out: {name}: {reason}" for name, reason in refused.items()), "", sep="\n")
    print(out / "shares.csv", out / "shares.md", sep="\n")
    return 0


def _composed(overrides: Sequence[str], encodings: str | None) -> tuple["Config", list["Subject"]]:
    """The config of a run without any position, and the encodings to be measured, `nope` first."""
    from rpe_bench import catalogue

    chosen = [override for override in overrides if override.partition("=")[0].partition(".")[0] == "encoding"]
    if chosen and encodings is not None:
        raise ConfigError(f"{chosen[0]}: contradicts --encodings={encodings}; give one of them")
    for override in chosen:
        key, _, value = override.partition("=")
        if key == "encoding" and "," in value:
            raise ConfigError(f"{override}: several are given by --encodings {value}")
    known = catalogue.encodings()
    names = list(known) if encodings is None else list(dict.fromkeys(encodings.split(",")))
    if unknown := [catalogue.unknown_choice("encoding", name, known) for name in names if name not in known]:
        raise ConfigError(*unknown)

    from rpe_bench.components import complete
    from rpe_bench.compose import compose
    from rpe_bench.config import resolve
    from rpe_bench.profiling.cells import BASELINE, Subject

    composed = compose(overrides)
    assert composed is not None  # which it is of flags alone, and none are passed on
    baseline = complete("encoding", catalogue.read("encoding", BASELINE))
    config = resolve({**composed.raw, "encoding": baseline})
    if config.positions.name != "plain":
        raise ConfigError(f"positions={config.positions.name}: is not measured: tokens stand at 0, 1, 2, ...")
    if config.compile:
        raise ConfigError("compile=true: is not measured (scripts/gpu_check.py --compile says what it gains)")
    if chosen:
        options = [complete("encoding", composed.raw["encoding"])]
    else:
        options = []
        for name in names:
            try:
                options.append(complete("encoding", catalogue.read("encoding", name)))
            except ConfigError as error:
                if encodings is not None:
                    raise
                # Somebody's own, of another folder: no reason to say nothing of all others.
                print(f"encoding={name} is left out: {error}", file=sys.stderr)
    return config, [Subject(baseline), *(Subject(given) for given in options if given != baseline)]


def _tell(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def _whole(flag: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or not int(text):
        raise ConfigError(f"{flag}={text}: must be a positive whole number")
    return int(text)


def _positive(flag: str, text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise ConfigError(f"{flag}={text}: must be a positive number")
    return number
