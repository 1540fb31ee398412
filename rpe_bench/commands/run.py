"""`rpe-bench run`: one run or a sweep, by Hydra's overrides and flags, which have a parser of their own."""

from collections.abc import Sequence

from rpe_bench.commands import keep_to_one_thread, look_here

HELP = "one run, or with -m a sweep: rpe-bench run [-m] [group=choice ...] [key=value ...]"


def main(arguments: Sequence[str]) -> int:
    """Compose, check, and run."""
    keep_to_one_thread()
    look_here()
    from rpe_bench.interrupts import ending, ending_at_exit

    try:
        with ending():
            from rpe_bench.compose import compose

            composed = compose(arguments)
            if composed is None:
                return 0
            from rpe_bench.config import resolve
            from rpe_bench.sweep.one import run_one

            config = resolve(composed.raw)
        return 0 if composed.shown_only else run_one(config)
    finally:
        ending_at_exit()
