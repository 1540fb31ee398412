"""The directory of a profile: what was measured, written as it is measured, so that the same request goes on.

profile.json    what was asked for, where and with what it was measured, and whether it is finished
cells.csv       one row for each encoding, kind and length: memory, parameters, and why it was left out, if it was
times.csv       one row for each call that was timed
"""

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rpe_bench.errors import ConfigError
from rpe_bench.files import write_text
from rpe_bench.ledger import now
from rpe_bench.profiling.cells import Cell
from rpe_bench.profiling.first import First
from rpe_bench.record import to_csv

FORMAT = 1

CELLS = (
    *("kind", "length", "encoding", "place", "batch"),
    *("seconds", "peak_bytes", "parameters", "encoding_parameters", "problem"),
)
TIMES = ("kind", "length", "round", "encoding", "seconds")

Row = dict[str, Any]


class Account:
    """What a profile has measured so far, in memory and in its directory.

    Attributes:
        cells: rows of cells.csv by cell.
        times: rows of times.csv.
        finished: whether the directory held a finished profile of this request.

    Raises:
        ConfigError: it holds a finished one of another request, or cannot be written.
    """

    def __init__(self, directory: Path, request: Mapping[str, Any], anew: bool = False) -> None:
        self.directory = directory
        self.request = json.loads(json.dumps(request))
        self.cells: dict[Cell, Row] = {}
        self.times: list[Row] = []
        kept = {} if anew else _read_json(directory / "profile.json")
        self.finished = kept.get("status") == "finished"
        same = kept.get("request") == self.request and kept.get("format") == FORMAT
        if self.finished and not same:
            differing = ", ".join(_differing(kept.get("request", {}), self.request)) or "format"
            raise ConfigError(
                f"--out={directory}: holds a finished profile that differs in {differing}"
                " (give another --out, or --anew to replace it)"
            )
        self._started = now()
        if same:
            self._started = kept["started"]
            self.cells = {_cell(row): row for row in _read_csv(directory / "cells.csv")}
            self.times = _read_csv(directory / "times.csv")
        try:
            directory.mkdir(parents=True, exist_ok=True)
            if not os.access(directory, os.W_OK):
                raise PermissionError(13, os.strerror(13), str(directory))
        except OSError as error:
            raise ConfigError(f"--out={directory}: {error.strerror}") from error
        if not self.finished:
            self._write("running")

    def add_first(self, cell: Cell, place: str, batch: int, first: First) -> None:
        about = {"place": place, "batch": batch}
        self.cells[cell] = {**cell._asdict(), **about, **asdict(first)}
        self._write_cells()

    def leave_out(self, cell: Cell, problem: str) -> None:
        """Say why a cell is not timed; what is known of it stays."""
        self.cells[cell]["problem"] = problem
        self._write_cells()

    def add_round(self, rows: Iterable[Row]) -> None:
        self.times += rows
        write_text(self.directory / "times.csv", to_csv(TIMES, self.times))

    def rounds(self, kind: str, length: int) -> int:
        """How many rounds of a group of cells are in the account."""
        return 1 + max((t["round"] for t in self.times if (t["kind"], t["length"]) == (kind, length)), default=-1)

    def finish(self) -> None:
        self._write_cells()
        self.add_round([])
        self._write("finished")

    def _write_cells(self) -> None:
        write_text(self.directory / "cells.csv", to_csv(CELLS, self.cells.values()))

    def _write(self, status: str) -> None:
        facts = {"format": FORMAT, "status": status, "started": self._started, "written": now()}
        text = json.dumps({**facts, "request": self.request}, indent=2)
        write_text(self.directory / "profile.json", text + "\n")


def _cell(row: Row) -> Cell:
    return Cell(row["kind"], row["length"], row["encoding"])


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError, ValueError):  # the last for what is neither JSON nor UTF-8
        return {}
    return found if isinstance(found, dict) else {}


def _read_csv(path: Path) -> list[Row]:
    """Rows with numbers as numbers, and None where a cell is empty; none where there is no file yet."""
    if not path.exists():
        return []
    text = ("kind", "encoding", "place", "problem")
    whole = ("length", "batch", "round", "peak_bytes", "parameters", "encoding_parameters")
    rows = []
    for row in csv.DictReader(io.StringIO(path.read_text(encoding="utf-8"))):
        numbers = {
            key: None if value == "" else int(value) if key in whole else float(value)
            for key, value in row.items()
            if key not in text
        }
        rows.append({**row, **numbers})
    return rows


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> Sequence[str]:
    """The keys of two nested requests that differ, dotted."""
    found = []
    for key in sorted({*one, *other}):
        mine, theirs = one.get(key), other.get(key)
        if mine == theirs:
            continue
        if isinstance(mine, dict) and isinstance(theirs, dict):
            found += [f"{key}.{inner}" for inner in _differing(mine, theirs)]
        else:
            found.append(key)
    return found
