"""A call in a process of its own: what it takes is not hidden by what an earlier one has left, and one that is too
large or too slow ends alone."""

import multiprocessing
import resource
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar

from rpe_bench.errors import one_line
from rpe_bench.profiling import cells

T = TypeVar("T")
MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What one call may take."""

    seconds: float
    mib: int | None = None
    """Beyond what its process holds as it begins."""


class Ended(Exception):
    """A call ended without a result; the text says why."""


def apart(limits: Limits, work: Callable[..., T], *arguments: Any) -> T:
    """What `work` returns in a process that is forked from one that has computed nothing.

    Raises:
        ValueError: as it raises one.
        Ended: it took more than it may, or failed.
    """
    context = multiprocessing.get_context("forkserver")
    # And torch with it. Heeded once: later calls find the server there.
    context.set_forkserver_preload([cells.__name__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(sender, limits, work, *arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(limits.seconds):
            process.kill()
            raise Ended(f"takes more than {limits.seconds:g} s")
        found: T | ValueError | Ended = receiver.recv()
    except EOFError:
        process.join()
        raise Ended(f"ended with exit code {process.exitcode}") from None
    finally:
        process.join()
    if isinstance(found, ValueError | Ended):
        raise found
    return found


def _send(out: Connection, limits: Limits, work: Callable[..., object], *arguments: Any) -> None:
    try:
        if limits.mib is not None:
            keep_within(limits.mib)
        out.send(work(*arguments))
    except ValueError as error:
        out.send(ValueError(str(error)))  # one of a class that the parent knows
    except (MemoryError, RuntimeError) as error:
        out.send(Ended(why_it_ended(error, limits.mib)))


def why_it_ended(error: MemoryError | RuntimeError, mib: int | None) -> str:
    """A line on what ended a call that was kept within so many MiB."""
    if isinstance(error, MemoryError) or "can't allocate memory" in str(error):
        return f"takes more {'memory than there is' if mib is None else f'than {mib} MiB'}"
    return one_line(error)


def keep_within(mib: int) -> None:
    """Refuse this process more memory than that, on Linux: else the system might end another in its place.

    What it has freed and not given back is at hand beyond that: only in a process that has computed nothing is it none.
    """
    statm = Path("/proc/self/statm")
    if statm.exists():
        held = int(statm.read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + mib * MIB, resource.RLIM_INFINITY))
