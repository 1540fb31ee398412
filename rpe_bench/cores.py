"""How many cores a process may use: fewer than the machine has, in a container or as a task of a cluster."""

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

GROUPS = Path("/sys/fs/cgroup")
"""Where control groups are mounted: all in one tree (version 2), or those of the processor in `cpu` (version 1)."""
MINE = Path("/proc/self/cgroup")


def available_cores() -> int:
    """Cores that this process may use: its affinity, and its control groups' or its cluster's share where that is
    less."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = min([cores, *(max(1, int(quota)) for quota in quotas())])
    # Not every cluster binds a task to the cores that it was given.
    return min(cores, int(os.environ.get("SLURM_CPUS_PER_TASK", cores)))


def quotas() -> Iterator[float]:
    """The time that control groups allow this process, in cores: what bounds a group bounds all within it."""
    with suppress(FileNotFoundError):  # on other systems than Linux
        for line in MINE.read_text().splitlines():
            _, controllers, group = line.split(":", 2)
            root = GROUPS / "cpu" if controllers else GROUPS
            if controllers and "cpu" not in controllers.split(","):
                continue
            # Within a container, its own group may be mounted as the root, though it is named by its path outside.
            place = root / group.lstrip("/")
            for folder in (place, *place.parents):
                yield from _quota(folder)
                if folder == root:
                    break


def _quota(folder: Path) -> Iterator[float]:
    """What one group is allowed, if there is a limit."""
    with suppress(FileNotFoundError):
        quota, period = (folder / "cpu.max").read_text().split()
        if quota != "max":
            yield int(quota) / int(period)
    with suppress(FileNotFoundError):
        quota, period = ((folder / f"cpu.cfs_{what}_us").read_text() for what in ("quota", "period"))
        if int(quota) > 0:
            yield int(quota) / int(period)
