"""`rpe-bench drop`: a finished run without its encoding."""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rpe_bench.commands import keep_to_one_thread, look_here

HELP = "a finished run without its encoding, and after a short recalibration"
DESCRIPTION = """Take the encoding of finished runs away, and follow the loss: before, right after, and after a short
recalibration without any position. A run of recipe.steps steps is thus one whose encoding is removed at that step. Both
stages are runs of their own beside it; the same command again goes on. Overrides, key=value, may set keys of recipe,
evaluation, logger, sweep and the like."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("given", nargs="+", metavar="RUN_DIR | key=value", help="finished runs of one kind; overrides")
    parser.add_argument("--steps", type=int, required=True, metavar="N", help="of the recalibration")
    parser.add_argument(
        "--lr", type=float, help="of the recalibration; by default a tenth of what the run trained with"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="the tidy CSV; in RESULTS_DIR/drop by default")


def main(parsed: Namespace) -> int:
    keep_to_one_thread()
    look_here()
    from rpe_bench.interrupts import ending, raising

    with ending():
        from rpe_bench.errors import ConfigError
        from rpe_bench.retrofit import TAKEN, dropping
        from rpe_bench.stages import BEFORE, Overrides, chain, check_out, sources_of, split

        if parsed.steps < 1:
            raise ConfigError(f"--steps={parsed.steps}: must be at least 1")
        check_out(parsed.out)
        paths, given = split(parsed.given)
        overrides = Overrides.of(given, TAKEN)
        sources = sources_of(paths)
        plan, stages = dropping(sources, parsed.steps, parsed.lr, overrides)
        with raising():
            status, done = chain(sources, stages, plan)
    if any(step.stage != BEFORE for step in done):
        from rpe_bench.stage_table import Entry, publish

        entries = [Entry(s.source, s.stage, s.config, s.directory, s.config.encoding.name) for s in done]
        publish(entries, "encoding", parsed.out, "drop")
    return status
