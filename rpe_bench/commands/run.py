"""`rpe-bench run`: one run or a sweep, by Hydra's overrides and flags, which have a parser of their own."""

import os
from collections.abc import Sequence

from rpe_bench.commands import look_here

HELP = "one run, or with -m a sweep: rpe-bench run [-m] [group=choice ...] [key=value ...]"


def main(arguments: Sequence[str]) -> int:
    """Compose, check, and run."""
    # Before torch and numpy are imported: neither may start threads or CUDA in a process that is to be forked.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    look_here()
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
