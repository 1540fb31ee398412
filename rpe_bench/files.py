"""Files of a run directory, for those who write them and those who only look: nothing here imports torch."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rpe_bench.schema import FORMAT, OPTIONAL, TABLES


@contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, renamed to it when the block ends well and removed when it does not."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write UTF-8 text, as it is, so that readers see the old file or the new one."""
    with atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")


def read_record(directory: Path) -> dict[str, Any]:
    """A run's run.json; empty where there is none, or what is there is no JSON object in UTF-8.

    Raises:
        OSError: it is there and cannot be read, such as a directory in its place.
    """
    try:
        record = json.loads((directory / "run.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):  # the latter for what is neither JSON nor UTF-8
        return {}
    return record if isinstance(record, dict) else {}


def status(directory: Path) -> str | None:
    """What run.json says of a run: "running", "finished", "failed" or "interrupted"; None where it says nothing.

    "running" is also what a run that was killed outright leaves behind. OSError as from `read_record`.
    """
    return read_record(directory).get("status")


def damage(directory: Path, record: dict[str, Any]) -> str | None:
    """What is wrong with the files of a run whose record says that it is finished; None where all is well.

    A record holds the sizes that the tables were written with. Those of runs from before it did are held to begin and
    to end as they should.
    """
    if record.get("format") != FORMAT:
        return f"run.json is of results format {record.get('format')}, not {FORMAT}"
    sizes = record.get("bytes")
    if isinstance(sizes, dict):
        for name, size in sizes.items():
            try:
                found = os.stat(f"{directory}/{name}").st_size
            except OSError as error:
                if name == "checkpoint.pt" and isinstance(error, FileNotFoundError):
                    continue  # takes most of the room, and nothing that is reported depends on it
                return f"{name}: {error.strerror}"
            if found != size:
                return f"{name} has {found} bytes, not the {size} that were written"
        return None
    for table, columns in TABLES.items():
        path = directory / f"{table}.csv"
        if not path.exists() and table in OPTIONAL:
            continue
        try:
            content = path.read_bytes()
        except OSError as error:
            return f"{path.name}: {error.strerror}"
        if not content.startswith(",".join(columns).encode() + b"\n") or not content.endswith(b"\n"):
            return f"{path.name} is not whole"
    return None


def is_whole(directory: Path) -> bool:
    """Whether a directory holds a finished run with all its tables."""
    record = read_record(directory)
    return record.get("status") == "finished" and damage(directory, record) is None
