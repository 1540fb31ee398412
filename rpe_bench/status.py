"""How far the runs of a results directory are: read at any time, beside those who write it, and without torch."""

import math
import os
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from rpe_bench import ledger
from rpe_bench.files import damage, read_record
from rpe_bench.locks import STALE, is_alive, lock_path, look, machine

STATES = ("finished", "running", "failed", "interrupted", "damaged", "waiting")
"""What a run can be: `interrupted` is also what was killed; `damaged`, finished but for files that are not as they were
written, and what cannot be read; `waiting`, asked for by a sweep that goes on, or else by the last one."""
SHOWN = 10
"""Runs that failed, or are damaged, of which the reason is shown."""
WINDOW = 3600.0
"""Seconds of the past of which the rate is."""


@dataclass
class Status:
    """Of one results directory."""

    states: dict[str, str] = field(default_factory=dict)
    """Of each run by its id."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Of those that failed or are damaged."""
    seconds: dict[str, float] = field(default_factory=dict)
    """That finished runs took."""
    elapsed: dict[str, float] = field(default_factory=dict)
    """Since running ones began."""
    per_hour: float | None = None

    @classmethod
    def of(cls, results_dir: Path) -> "Status":
        """Raises FileNotFoundError where there is no such place."""
        found = cls()
        live = set(_live_locks(results_dir))
        with os.scandir(results_dir / "runs") as entries:
            # Hidden directories are of tools and editors.
            for entry in entries:
                if entry.is_dir() and not entry.name.startswith("."):
                    found._add(entry.name, Path(entry.path), entry.name in live)
        for run_id in live - found.states.keys():
            found.states[run_id] = "running"
        found._read_ledger(results_dir)
        return found

    def _add(self, run_id: str, directory: Path, is_live: bool) -> None:
        try:
            record = read_record(directory)
        except OSError as error:
            self.states[run_id], self.reasons[run_id] = "damaged", f"run.json: {error.strerror}"
            return
        state = record.get("status")
        if state == "finished" and (problem := damage(directory, record)) is not None:
            state, self.reasons[run_id] = "damaged", problem
        elif state == "finished":
            parts = [record.get("train_seconds"), record.get("evaluation_seconds")]
            self.seconds[run_id] = sum(part for part in parts if isinstance(part, int | float))
        elif is_live:
            state = "running"
            self.elapsed[run_id] = max(0.0, time.time() - _timestamp(record.get("started")))
        elif state == "failed":
            exception = record.get("exception") or {}
            reason = f"{exception.get('type')}: {exception.get('message')}"
            self.reasons[run_id] = " ".join(reason.split())
        elif state in ("running", "interrupted"):
            state = "interrupted"
        else:
            state, self.reasons[run_id] = "damaged", "run.json is missing or is not the record of a run"
        self.states[run_id] = str(state)

    def _read_ledger(self, results_dir: Path) -> None:
        asked: list[dict[str, Any]] = []
        began: list[float] = []
        ended = 0
        now = time.time()
        for entry in ledger.read(results_dir):
            event = entry.get("event")
            if event == "sweep":
                asked.append(entry)
            elif event in ("started", "finished"):
                when = _timestamp(entry.get("time"))
                if now - WINDOW <= when <= now:
                    began.append(when)
                    ended += event == "finished"
        live = [sweep for sweep in asked if sweep.get("machine") == machine() and _is_running(sweep)]
        for sweep in live or asked[-1:]:
            for run_id in sweep.get("runs", []):
                self.states.setdefault(run_id, "waiting")
        if ended and "running" in self.states.values():
            self.per_hour = 3600 * ended / max(1.0, now - min(began))

    def seconds_left(self) -> float | None:
        """Until those that run or wait have finished, if as many run at once as now; None where that is not known."""
        running = [run_id for run_id, state in self.states.items() if state == "running"]
        if not running or not self.seconds:
            return None
        times: dict[str, list[float]] = defaultdict(list)
        for run_id, seconds in self.seconds.items():
            times[_kind(run_id)].append(seconds)
            times["any"].append(seconds)
        means = {kind: sum(values) / len(values) for kind, values in times.items()}

        def cost(run_id: str) -> float:
            return max(0.0, means.get(_kind(run_id), means["any"]) - self.elapsed.get(run_id, 0.0))

        left = [cost(run_id) for run_id, state in self.states.items() if state in ("running", "waiting")]
        return max(sum(left) / len(running), *left, 0.0)

    def __str__(self) -> str:
        cells: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
        for run_id, state in self.states.items():
            task, _, rest = run_id.partition("-")
            cells[task, rest.partition("-")[0]][state] += 1
        total = Counter(self.states.values())
        shown = [state for state in STATES if total[state] or state in STATES[:4]]
        rows = [["task", "encoding", *shown]]
        rows += [[*key, *(str(cells[key][state]) for state in shown)] for key in sorted(cells)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(_aligned(row, widths)).rstrip() for row in rows]
        counts = [f"{total['finished']} of {len(self.states)} finished"]
        counts += [f"{total[state]} {state}" for state in STATES[1:] if total[state]]
        if self.per_hour is not None:
            counts.append(rate(self.per_hour))
        if (left := self.seconds_left()) is not None:
            counts.append(f"about {duration(left)} left")
        lines.append(", ".join(counts))
        for run_id in sorted(self.reasons)[:SHOWN]:
            lines.append(f"{self.states[run_id]}: {run_id}: {self.reasons[run_id]}")
        if len(self.reasons) > SHOWN:
            lines.append(f"and {len(self.reasons) - SHOWN} more")
        return "\n".join(lines)


def _live_locks(results_dir: Path) -> Iterable[str]:
    """The runs that some process is at, as far as can be told without waiting for the heartbeat of another host."""
    try:
        names = os.listdir(results_dir / "locks")
    except FileNotFoundError:
        return
    for name in names:
        if name.startswith("."):
            continue
        seen = look(lock_path(results_dir, name))
        if seen is None:
            continue
        if seen.owner.get("machine") == machine():
            if not seen.is_dead:
                yield name
        elif time.time() - seen.beat / 1e9 < STALE:
            yield name


def _is_running(sweep: dict[str, Any]) -> bool:
    pid, started = sweep.get("pid"), sweep.get("started")
    return isinstance(pid, int) and is_alive(pid, started)


def _kind(run_id: str) -> str:
    """Task, encoding and recipe: what runs that take the same time have in common."""
    return run_id.rpartition("-s")[0]


def _timestamp(text: Any) -> float:
    try:
        return datetime.fromisoformat(text).timestamp()
    except (TypeError, ValueError):
        return 0.0


def _aligned(row: list[str], widths: list[int]) -> Iterable[str]:
    """Names to the left, numbers to the right."""
    for column, (cell, width) in enumerate(zip(row, widths, strict=True)):
        yield cell.ljust(width) if column < 2 else cell.rjust(width)


def rate(per_hour: float) -> str:
    """``0.4 an hour``, ``25 an hour``, ``1,200 an hour``."""
    return f"{per_hour:,.0f} an hour" if per_hour >= 10 else f"{per_hour:.2g} an hour"


def duration(seconds: float) -> str:
    """``40 s``, ``2 min 10 s``, ``1 h 5 min``."""
    minutes, rest = divmod(math.ceil(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
