"""Finished runs -> W&B after the fact, each once: what a cluster without a network has trained, a laptop can upload."""

import csv
import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from rpe_bench.files import read_record
from rpe_bench.locks import hold
from rpe_bench.schema import ON_DEMAND, TABLES
from rpe_bench.status import Status
from rpe_bench.wandb_mirror import Mode, Patience, WandbMirror, about, offline_place, remember, remembered, summary
from rpe_bench.wandb_server import Server, ServerError, confine

UPLOADING = Patience(init=30.0, close={"online": 120.0, "offline": 60.0}, finish=60.0)
"""Nothing else waits meanwhile, and yet no server is waited for for good."""

TYPES: dict[str, Callable[[str], Any]] = {"int64": int, "float64": float, "str": str}
"""Type of a column in rpe_bench.schema -> how it is read: as the number that was written, to the digit."""


@dataclass
class Synced:
    """What became of the runs of a results directory, by their ids."""

    mirrored: list[str] = field(default_factory=list)
    before: list[str] = field(default_factory=list)
    """Those that were mirrored already."""
    failed: dict[str, str] = field(default_factory=dict)
    """Those that could not be, and why."""
    left: list[str] = field(default_factory=list)
    """Those that were not come to, since the server was lost."""
    others: Counter[str] = field(default_factory=Counter)
    """How many are not finished, by their states."""

    def __str__(self) -> str:
        counts = [f"{len(self.mirrored)} mirrored", f"{len(self.before)} mirrored before"]
        counts += [f"{len(self.failed)} not, for what is said above"] if self.failed else []
        counts += [f"{len(self.left)} not yet: the same command goes on"] if self.left else []
        others = ", ".join(f"{count} {state}" for state, count in sorted(self.others.items()))
        return ", ".join(counts) + (f"; not finished: {others}" if others else "")


def sync(
    results_dir: Path,
    mode: Mode = "online",
    project: str | None = None,
    entity: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Synced:
    """Mirror the finished runs of a results directory that their project does not have yet, as they were finished last.

    Args:
        mode: offline makes what `wandb sync` uploads, in RESULTS_DIR/wandb.
        project, entity: instead of those of the runs' own configs; without either, the entity whose key it is.
        tell: is given a line for each run that was mirrored, or could not be.

    Raises:
        FileNotFoundError: there is no RESULTS_DIR/runs.
        Held: another process is at it.
        ServerError: no key, a wrong one, or no server, at the very beginning.
    """
    states = Status.of(results_dir).states
    found = Synced(others=Counter(state for state in states.values() if state != "finished"))
    finished = sorted(run_id for run_id, state in states.items() if state == "finished")
    (results_dir / "wandb").mkdir(exist_ok=True)
    with (
        hold(results_dir / "wandb" / "sync"),
        # For wandb's files of an upload: none is kept, and those of offline runs stay.
        tempfile.TemporaryDirectory(dir=results_dir / "wandb", prefix=".upload-", ignore_cleanup_errors=True) as root,
    ):
        if mode == "online":
            confine(Path(root) / "wandb")
        server = Server.current() if mode == "online" else None
        default_entity = server.entity() if server else None
        noted = remembered(results_dir)
        for number, run_id in enumerate(finished):
            directory = results_dir / "runs" / run_id
            try:
                record, identity = read_record(directory), about(_config(directory))
                identity["project"] = project or identity["project"]
                identity["entity"] = entity or identity["entity"] or default_entity
                if server is None:
                    folders = (results_dir / "wandb").glob(f"offline-run-*-{run_id}")
                    places = [offline_place(identity["entity"], identity["project"], folder.name) for folder in folders]
                else:
                    places = [server.place(identity["entity"], identity["project"])]
                key = (run_id, record.get("finished"))
                if any((*key, place) in noted for place in places):
                    found.before.append(run_id)
                    continue
                if server and server.holds(identity["entity"], identity["project"], run_id, record):
                    remember(results_dir, run_id, record, places[0])
                    found.before.append(run_id)
                    continue
                mirror = WandbMirror(
                    run_id,
                    results_dir,
                    mode=mode,
                    patience=UPLOADING,
                    instead=False,
                    root=Path(root) if server else None,
                    **identity,
                )
                try:
                    for table in (name for name in TABLES if name not in ON_DEMAND):
                        if (directory / f"{table}.csv").exists():
                            mirror.log(table, _rows(directory, table))
                finally:
                    mirror.close(summary(record), 0, directory)
            except ServerError as error:
                found.failed[run_id] = str(error)
                tell(f"{run_id}: {error}")
            except (OSError, KeyError, ValueError, yaml.YAMLError) as error:  # replaced or damaged meanwhile
                found.failed[run_id] = str(error)
                tell(f"{run_id}: {type(error).__name__}: {error}")
            else:
                if mirror.is_complete:
                    found.mirrored.append(run_id)
                    tell(f"{run_id}: mirrored")
                    continue
                found.failed[run_id] = "said by the mirror"
            if server is not None:
                try:
                    server.entity()
                except ServerError as error:
                    found.left = finished[number + 1 :]
                    tell(str(error))
                    break
    return found


def _config(directory: Path) -> dict[str, Any]:
    # The C loader is ten times as fast, and in every wheel of PyYAML.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    config = yaml.load((directory / "config.yaml").read_text(encoding="utf-8"), Loader=loader)
    if not isinstance(config, dict):
        raise ValueError("config.yaml is not that of a run")
    return config


def _rows(directory: Path, table: str) -> list[dict[str, Any]]:
    """The rows of a table as they were given to whoever wrote it."""
    types = {column: TYPES[kind] for column, kind in TABLES[table].items()}
    with (directory / f"{table}.csv").open(encoding="utf-8", newline="") as file:
        return [{column: types[column](text) for column, text in row.items()} for row in csv.DictReader(file)]
