"""What was read of thousands of run directories, kept so that it is read once: RESULTS_DIR/.cache/runs.npz.

Of each run it holds a stamp of its files, see `stamp`, what its run.json and config.yaml said, and the rows of its
tables. A run whose stamp is another is read again, and the others are not. All of it follows from the run directories
and from the code that reads them, so that it may be removed at any time; where it can't be written, runs are read every
time.

An npz of numpy: arrays of numbers, and one of bytes with JSON. Nothing in it is ever run, as a pickle would be, and
each array has its checksum, so that a damaged file is known for one.
"""

import hashlib
import json
import os
import struct
import zipfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from rpe_bench import files, schema
from rpe_bench.schema import TABLES

WORTH = 200
"""Runs from which there is a cache. Fewer are read in less than half a second."""

SETTLED = 2.0
"""Seconds that files must have been left alone for. One that is written twice within a tick of the file system's clock
may look the same before and after; some clocks tick every two seconds."""

REWRITTEN = 0.05
"""Share of the runs that must have changed for the cache to be written anew: a few are sooner read than it is."""


@dataclass
class Rows:
    """The rows of one table of many runs. owner: the number of the run that each is of, never decreasing."""

    frame: pd.DataFrame
    owner: np.ndarray

    def of(self, numbers: np.ndarray) -> "Rows":
        """Those of some runs, renumbered: numbers[old] is the new number, or -1 for a run that is left out."""
        owner = numbers[self.owner]
        if (owner >= 0).all() and (np.diff(owner) >= 0).all():
            return Rows(self.frame, owner)
        kept = np.flatnonzero(owner >= 0)
        kept = kept[np.argsort(owner[kept], kind="stable")]
        return Rows(self.frame.take(kept).reset_index(drop=True), owner[kept])


def joined(parts: Sequence[Rows]) -> Rows:
    """The rows of all parts, by run."""
    if len(parts) == 1:
        return parts[0]
    owner = np.concatenate([part.owner for part in parts])
    frame = pd.concat([part.frame for part in parts], ignore_index=True)
    if (np.diff(owner) >= 0).all():
        return Rows(frame, owner)
    order = np.argsort(owner, kind="stable")
    return Rows(frame.take(order).reset_index(drop=True), owner[order])


@dataclass
class Kept:
    """runs: of each its directory, its stamp and whatever JSON can hold. configs: of each, texts by key. tables: the
    rows of those runs, by the name of the table."""

    directories: list[str]
    stamps: list[str]
    runs: list[Any]
    configs: list[dict[str, str]]
    tables: dict[str, Rows]


def stamp(found: dict[str, os.stat_result]) -> str:
    """What is known of files without reading them: names, sizes, when they and their entries were last changed, and
    which files they are, as one that was put in another's place with its times is another."""
    facts = [
        (name, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino) for name, stat in sorted(found.items())
    ]
    return hashlib.blake2b(repr(facts).encode(), digest_size=16).hexdigest()


def place(results_dir: str | Path) -> Path:
    return Path(results_dir) / ".cache" / "runs.npz"


@cache
def _version() -> str:
    """Of everything that what is kept follows from, but for the runs."""
    code = [Path(__file__), Path(__file__).with_name("load.py"), Path(schema.__file__)]
    parts = [path.read_bytes() for path in code] + [pd.__version__.encode(), np.__version__.encode()]
    return hashlib.blake2b(b"\0".join(parts), digest_size=16).hexdigest()


def read(results_dir: str | Path) -> Kept | None:
    """What is kept; None where there is nothing, or it is damaged or of another version of the code."""
    try:
        with zipfile.ZipFile(place(results_dir)) as archive:
            return _unpacked(archive)
    except (OSError, ValueError, LookupError, RuntimeError, EOFError, struct.error, zipfile.BadZipFile):
        return None  # whatever is wrong with it, the runs are there to be read


def _unpacked(archive: zipfile.ZipFile) -> Kept | None:
    def array(name: str) -> np.ndarray:
        # Read whole, which is when the checksum is looked at, before any of it is believed.
        content = BytesIO(archive.read(f"{name}.npy"))
        found: np.ndarray = np.lib.format.read_array(content, allow_pickle=False)
        return found

    about = json.loads(array("about").tobytes())
    if about["version"] != _version():
        return None
    codes = array("configs")
    columns = [[*values, None] for values in about["values"]]
    texts = [[values[code] for code in row] for values, row in zip(columns, codes.tolist(), strict=True)]
    count = len(about["directories"])
    configs: list[dict[str, str]] = [
        {key: text for key, text in zip(about["keys"], row, strict=True) if text is not None}
        for row in (zip(*texts, strict=True) if texts else [()] * count)
    ]
    tables = {}
    for name, words in about["tables"].items():
        owner = array(f"{name}.owner")
        columns_of = {}
        for column in TABLES[name]:
            values = array(f"{name}.{column}")
            if column in words:
                columns_of[column] = pd.Series(words[column], dtype="str").take(values).reset_index(drop=True)
            else:
                columns_of[column] = pd.Series(values, copy=False)
        tables[name] = Rows(pd.DataFrame(columns_of, copy=False), owner)
    return Kept(about["directories"], about["stamps"], about["runs"], configs, tables)


def write(results_dir: str | Path, found: Kept) -> None:
    """Keep it for the next time; not where that is impossible, as on a file system that can only be read."""
    keys = sorted({key for config in found.configs for key in config})
    values: list[list[str]] = []
    codes = np.empty((len(keys), len(found.configs)), dtype="int32")
    for row, key in enumerate(keys):
        places: dict[str, int] = {}
        codes[row] = [places.setdefault(config[key], len(places)) if key in config else -1 for config in found.configs]
        values.append(list(places))
    arrays: dict[str, Any] = {"configs": codes}
    words: dict[str, dict[str, list[str]]] = {}
    for name, rows in found.tables.items():
        words[name] = {}
        arrays[f"{name}.owner"] = rows.owner
        for column, kind in TABLES[name].items():
            if kind == "str":
                numbers, distinct = pd.factorize(rows.frame[column])
                words[name][column] = list(map(str, distinct))
                arrays[f"{name}.{column}"] = numbers
            else:
                arrays[f"{name}.{column}"] = rows.frame[column].to_numpy()
    about = {
        "version": _version(),
        "directories": found.directories,
        "stamps": found.stamps,
        "runs": found.runs,
        "keys": keys,
        "values": values,
        "tables": words,
    }
    arrays["about"] = np.frombuffer(json.dumps(about).encode(), dtype="uint8")
    path = place(results_dir)
    with suppress(OSError):
        path.parent.mkdir(exist_ok=True)
        with files.atomic(path) as temporary, temporary.open("wb") as file:
            np.savez(file, **arrays)
