"""RESULTS_DIR/ledger.jsonl: who ran what, when, and how it ended; one JSON object a line, only ever appended to.

What became of a run is said by its run.json; the ledger is its history, and that of sweeps. Nothing here imports torch.
"""

import getpass
import json
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any


def now() -> str:
    """The time in UTC as ISO 8601, in milliseconds: two attempts at a run may follow within a second."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def append(results_dir: Path, event: str, **facts: Any) -> None:
    """Add a line. Where that fails nothing does: the same disk then has no room for a run, which says so itself."""
    entry = {"time": now(), "event": event, "host": socket.gethostname(), "pid": os.getpid(), "user": _user(), **facts}
    line = json.dumps(entry).encode() + b"\n"
    with suppress(OSError):
        results_dir.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(results_dir / "ledger.jsonl", os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        try:
            end = os.lseek(descriptor, 0, os.SEEK_END)
            if end and os.pread(descriptor, 1, end - 1) != b"\n":  # a line that a full disk had cut short
                line = b"\n" + line
            os.write(descriptor, line)
        finally:
            os.close(descriptor)


def read(results_dir: Path) -> Iterator[dict[str, Any]]:
    """All lines that can be read, from first to last."""
    try:
        content = (results_dir / "ledger.jsonl").read_bytes()
    except FileNotFoundError:
        return
    yield from _entries(content)


class Tail:
    """What is added to a ledger from now on."""

    def __init__(self, results_dir: Path) -> None:
        self.path = results_dir / "ledger.jsonl"
        self.offset = self.path.stat().st_size if self.path.exists() else 0

    def read(self) -> Iterator[dict[str, Any]]:
        """The whole lines since the last time."""
        try:
            with self.path.open("rb") as file:
                file.seek(self.offset)
                content = file.read()
        except FileNotFoundError:
            return
        content = content[: content.rfind(b"\n") + 1]
        self.offset += len(content)
        yield from _entries(content)


def _entries(content: bytes) -> Iterator[dict[str, Any]]:
    for line in content.splitlines():
        with suppress(ValueError):
            entry = json.loads(line)
            if isinstance(entry, dict):
                yield entry


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a number without a name, as in containers
        return str(os.getuid())
