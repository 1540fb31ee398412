"""What became of a run, which is read from its run.json alone, whoever ran it."""

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rpe_bench import ledger
from rpe_bench.config import Config
from rpe_bench.files import damage, is_whole, read_record, write_text
from rpe_bench.ledger import now
from rpe_bench.locks import lock_path
from rpe_bench.schema import FORMAT


def as_marked(config: Config) -> Config:
    """`sweep.force` is for what was finished when the sweep began, and has had a place beside it since, by `mark`."""
    if config.sweep.force and not config.work_dir.exists():
        return config.model_copy(update={"sweep": config.sweep.model_copy(update={"force": False})})
    return config


def record_of(config: Config) -> dict[str, Any]:
    """A run's run.json; empty where there is none, or, while runs go on, none that can be read."""
    with contextlib.suppress(OSError):
        return read_record(as_marked(config).work_dir)
    return {}


def is_finished(config: Config) -> bool:
    """Whether the run is finished and all its files are as they were written."""
    with contextlib.suppress(OSError):
        return is_whole(as_marked(config).work_dir)
    return False


def lock_of(config: Config) -> Path:
    return lock_path(config.results_dir, config.run_id)


def record_failure(config: Config, kind: str, message: str, trace: str) -> str | None:
    """Say in run.json and in the ledger that a run failed, for one that could not say so itself.

    Returns a line to be shown where that cannot be written, on a disk that is full for instance: the other runs go on.
    """
    config = as_marked(config)
    failure = {
        "format": FORMAT,
        "run_id": config.run_id,
        "status": "failed",
        "exception": {"type": kind, "message": message, "traceback": trace},
        "finished": now(),
    }
    reason = " ".join(f"{kind}: {message}".split())
    ledger.append(config.results_dir, "failed", run_id=config.run_id, reason=reason)
    try:
        config.work_dir.mkdir(parents=True, exist_ok=True)
        write_text(config.work_dir / "run.json", json.dumps(record_of(config) | failure, indent=2) + "\n")
    except OSError as error:
        return f"rpe-bench: {config.run_id}: {reason} (run.json cannot be written: {error.strerror})"
    return None


def has_ended(config: Config, before: dict[str, Any]) -> bool:
    """Whether the run's record says how it ended, given what an earlier attempt had left there."""
    record = record_of(config)
    return record != before and record.get("status") in ("finished", "failed", "interrupted")


def reason_of(record: Mapping[str, Any]) -> str:
    """Why a run is not finished, by its record."""
    exception = record.get("exception") or {"type": "Exit", "message": "the process ended before the run did"}
    if record.get("status") == "interrupted":
        return exception["message"] or "interrupted"
    return " ".join(f"{exception['type']}: {exception['message']}".split())


def describe_failure(config: Config) -> str:
    """Why a run is not finished, on one line."""
    record = record_of(config)
    if not record:
        return f"{config.run_id}: did not run"
    if record.get("status") == "finished":  # but for its files
        return f"{config.run_id}: {damage(as_marked(config).work_dir, record)}"
    return f"{config.run_id}: {reason_of(record)} (see {as_marked(config).work_dir / 'run.json'})"
