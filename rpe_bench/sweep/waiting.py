"""Runs that other processes are at."""

import sys
import time
from collections.abc import Sequence

from rpe_bench.config import Config
from rpe_bench.locks import Held, Watch, look
from rpe_bench.sweep.records import lock_of

POLL = 1.0
"""Seconds between two looks at the locks of others."""


def wait_for_others(configs: Sequence[Config]) -> None:
    """Wait until no other process is at any of these runs."""
    watch, said = Watch(), False
    while held := [config for config in configs if watch.is_held(lock_of(config))]:
        if not said:
            said = True
            seen = look(lock_of(held[0]))
            which = held[0].run_id if len(held) == 1 else f"{len(held)} runs"
            print(f"{which}: waiting for {Held(seen.owner if seen else {})}", file=sys.stderr, flush=True)
        time.sleep(POLL)
