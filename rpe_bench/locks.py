"""One run, one process: locks on a results directory that several sweeps, also of several hosts, may share.

A lock is the file RESULTS_DIR/locks/RUN_ID, put there whole, that says which process holds it; the holder touches it
every BEAT seconds. It is not in the run's directory, which may be replaced as a whole. Whether a process of this
host lives, its kernel knows. Of one on another host there is only the heartbeat: who waits for the lock watches it, by
a clock of its own that nobody can set, and takes it for dead after STALE seconds without a beat. So neither clocks that
disagree nor one that is set back can make a live process look dead.

Nothing here imports torch.
"""

import fcntl
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

BEAT = 10.0
"""Seconds between two beats."""
STALE = 120.0
"""Seconds without a beat after which a process on another host is dead; a shared file system may show one 60 s late."""
FORGOTTEN = 86400.0
"""Seconds after which nobody, on whatever host, is still about to make or remove a lock: it takes milliseconds."""
GUARD = ".guard"


class Held(Exception):
    """Another process has the lock."""

    def __init__(self, owner: dict[str, Any]) -> None:
        super().__init__(f"process {owner.get('pid')} on {owner.get('host')}")


@dataclass(frozen=True)
class Seen:
    """A lock as it was found: whose it is, and its last beat."""

    owner: dict[str, Any]
    beat: int

    @property
    def is_dead(self) -> bool:
        """Whether the owner is known to have ended, without waiting: only where it ran on this host."""
        return self.owner.get("machine") == machine() and not is_alive(self.owner["pid"], self.owner["started"])

    @property
    def is_alive(self) -> bool:
        """Whether the owner is known to live, though its heart may have stopped, as that of a suspended process has."""
        # Without the time of its start, the number may be another's by now.
        return self.owner.get("machine") == machine() and self.owner["started"] is not None and not self.is_dead


def lock_path(results_dir: Path, run_id: str) -> Path:
    return results_dir / "locks" / run_id


def look(path: Path) -> Seen | None:
    """Who holds a lock; None where nobody does."""
    try:
        # Opened rather than asked for: that alone makes a shared file system look again.
        with path.open("rb") as file:
            text, beat = file.read(), os.fstat(file.fileno()).st_mtime_ns
    except FileNotFoundError:
        return None
    try:
        owner = json.loads(text)
    except ValueError:  # not written by `hold`
        owner = {}
    return Seen(owner if isinstance(owner, dict) else {}, beat)


@dataclass
class Watch:
    """Waits for locks of others, any number of them: each call of `is_held` is one look."""

    since: dict[Path, tuple[Seen, float]] = field(default_factory=dict)

    def is_held(self, path: Path) -> bool:
        """Whether someone who lives has the lock; the lock of a dead process is removed, if that can be done."""
        seen = look(path)
        if seen is None:
            self.since.pop(path, None)
            return False
        before, when = self.since.get(path, (None, 0.0))
        if seen != before:
            self.since[path] = seen, when = seen, time.monotonic()
        if seen.is_alive or (not seen.is_dead and time.monotonic() - when < STALE):
            return True
        self.since.pop(path, None)
        try:
            return not remove(path, seen)
        except OSError:  # nobody has it all the same: who wants to take it finds that nothing can be written there
            return False


def clear(results_dir: Path) -> None:
    """Remove the locks of dead processes of this host, such as of one killed between a run's end and its lock's.

    So too what is a lock no more, or not yet, of a process that was killed as it took or removed one.
    """
    with suppress(OSError):  # no locks yet, or a place that is only to be looked at
        for name in os.listdir(results_dir / "locks"):
            path = lock_path(results_dir, name)
            if not name.startswith("."):
                Watch().is_held(path)
            elif name != GUARD and (seen := look(path)) is not None:
                forgotten = abs(time.time() - seen.beat / 1e9) > FORGOTTEN
                if seen.is_dead or forgotten:
                    path.unlink(missing_ok=True)


def remove(path: Path, dead: Seen) -> bool:
    """Remove the lock of a dead process, unless someone else was quicker: whether nobody has it now."""
    with (path.parent / GUARD).open("w") as guard:
        # One at a time, or the second might remove the lock of the first. Where a shared file system cannot do that for
        # all its hosts, the second is at least to notice.
        with suppress(OSError):
            fcntl.flock(guard, fcntl.LOCK_EX)
        seen = look(path)
        if seen is None:
            return True
        if seen.owner != dead.owner:
            return False
        aside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            path.rename(aside)
        except FileNotFoundError:
            return True
        moved = look(aside)
        if moved is not None and moved.owner != dead.owner:
            with suppress(FileExistsError):
                os.link(aside, path)
        aside.unlink()
        return look(path) is None


@contextmanager
def hold(path: Path) -> Iterator[None]:
    """Have the lock within the block.

    Raises:
        Held: someone else has it, or may have it: whether a process of another host lives takes a `Watch` to say.

    Where the lock is lost within the block, as by a host that was suspended for longer than STALE, the process is
    killed: whatever it still wrote, such as that it was interrupted, could spoil what another has finished since.
    """
    seen = look(path)
    if seen is not None and not (seen.is_dead and remove(path, seen)):
        raise Held(seen.owner)
    mine = {
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "machine": machine(),
        "started": start_of(os.getpid()),
        "token": uuid.uuid4().hex,
        "job": job_of_slurm(),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    _create(path, json.dumps(mine).encode())
    ended = threading.Event()
    heart = threading.Thread(target=_beat, args=(path, mine, ended), name="heartbeat", daemon=True)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()
        if (seen := look(path)) is not None and seen.owner == mine:
            path.unlink(missing_ok=True)


def _create(path: Path, content: bytes) -> None:
    """Raises Held where the file is there. It appears with its content, so that a kill leaves none of unknown owner."""
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        draft.write_bytes(content)
        os.link(draft, path)
    except FileExistsError:
        seen = look(path)
        raise Held(seen.owner if seen else {}) from None
    finally:
        draft.unlink(missing_ok=True)


def _beat(path: Path, mine: dict[str, Any], ended: threading.Event) -> None:
    while not ended.wait(BEAT):
        try:
            seen = look(path)
            if seen is None or seen.owner != mine:
                print(f"rpe-bench: {path.name}: has lost its lock, and ends", file=sys.stderr, flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
                return
            os.utime(path)
        except OSError:  # a file system that is away for a while; if for too long, the lock will be another's
            continue


# Processes


def job_of_slurm() -> str | None:
    """The task of a SLURM array, or the job, that this process is part of: the cluster, and the id as squeue has it."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    job = f"{array}_{task}" if array else os.environ.get("SLURM_JOB_ID")
    return job and f"{os.environ.get('SLURM_CLUSTER_NAME')} {job}"


@cache
def machine() -> str:
    """What has process numbers of its own: a kernel since its start, and in it a container."""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    return socket.gethostname()


def start_of(pid: int) -> int | None:
    """When a process started, in ticks since the machine did; None where it has ended or the system does not tell."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the name in front may hold anything
    return None if state in "ZX" else int(rest[18])


def is_alive(pid: int, started: int | None) -> bool:
    """Whether the process with this number is the one that started then."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        pass
    if started is None or not Path(f"/proc/{os.getpid()}/stat").exists():
        return True
    found = start_of(pid)
    return found == started or (found is None and not _is_visible(pid))


def _is_visible(pid: int) -> bool:
    """Whether the system lets us look at a process: some hide those of other users."""
    return Path(f"/proc/{pid}").exists()
