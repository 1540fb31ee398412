"""The run directory: the one lasting account of a run, and the only thing that reports read.

    config.yaml      the resolved config
    run.json         status, times, sizes, speed, versions, commit and host; a run is finished when this says so
    train.csv  eval.csv  positions.csv  slices.csv  baselines.csv      the columns of rpe_bench.schema.TABLES
    training_set.csv                                                   the same, where a task has a finite training set
    examples.csv                                                       the same; runs of earlier versions lack it
    floor.csv  floor_positions.csv                                     the same, where the ideal loss of a task is known
    validation.csv                                                     the same, where training may stop early
    checkpoint.pt    what a run goes on from: weights, optimiser, counters and the rows of train.csv

Every file appears whole, by writing to a temporary name and renaming, so that a reader never sees half of one.
"""

import csv
import importlib.metadata
import io
import json
import platform
import resource
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import torch
import yaml

from rpe_bench import checkpoints
from rpe_bench.config import Config
from rpe_bench.errors import one_line
from rpe_bench.files import damage, is_whole, read_record, write_text
from rpe_bench.ledger import now
from rpe_bench.schema import FORMAT, ON_DEMAND, TABLES

if TYPE_CHECKING:
    from rpe_bench.wandb_mirror import WandbMirror

NOTES = (
    "train_length",
    "train_tokens",
    "max_tokens",
    "parameters",
    "encoding_parameters",
    "train_seconds",
    "evaluation_seconds",
    "tokens_per_second",
    "resumed_from_step",
    "stopped_at_step",
    "best_step",
    "best_validation",
    "evaluated_step",
)
"""What `Record.note` adds to run.json; null until noted. Training's seconds are those of all attempts together.

The last four are of runs with `recipe.early_stop`: where it ended training, if it did; the check that was best, and the
metric there; and the step whose weights were evaluated."""

FLUSH_SECONDS = 5.0
"""train.csv is rewritten at most this often while the run goes on."""

Row = Mapping[str, Any]


class Record:
    """Keeps the account of one run, and mirrors it to W&B if the config asks for that.

        with Record(config) as record:
            record.note(parameters=n)
            record.train({"step": 1, "tokens": 512, ...})
            record.table("eval", rows)
            record.checkpoint(state)

    On entry the directory holds config.yaml and a run.json that says "running"; whatever an unfinished attempt left
    there is removed, but for a checkpoint that can be gone on from, which is then in `kept`. On exit run.json says
    "finished", "failed" (with the exception, which is raised on) or, after an interrupt or a SystemExit, "interrupted".
    Set torch's number of threads before entering: it is recorded there.

    Attributes:
        kept: what was last given to `checkpoint` by an attempt that was cut short: interrupted, killed or out of room.
            After any other failure the run starts again, since what it had computed may be what was wrong.

    Raises:
        FileExistsError: on entry, where the directory holds a finished run.
    """

    kept: dict[str, Any] | None = None

    def __init__(self, config: Config) -> None:
        self.directory = config.work_dir
        self._config = config
        self._mirror: WandbMirror | None = None
        self._train: list[dict[str, Any]] = []
        self._flushed = 0.0

    def __enter__(self) -> Self:
        config = self._config
        before = read_record(self.directory)
        if before.get("status") == "finished" and not config.sweep.force:
            problem = damage(self.directory, before)
            if problem is None:
                raise FileExistsError(f"{self.directory} holds a finished run, which is never overwritten")
            self._say(f"{problem}: it is run again")
        self.directory.mkdir(parents=True, exist_ok=True)
        self._started = time.perf_counter()
        if config.device == "cuda":
            torch.cuda.init()  # the next line refuses where nothing has done so yet
            torch.cuda.reset_peak_memory_stats()
        self._facts: dict[str, Any] = {
            "format": FORMAT,
            "run_id": config.run_id,
            "status": "running",
            "exception": None,
            "started": now(),
            "finished": None,
            "seconds": None,
            **dict.fromkeys(NOTES),
            "peak_memory_bytes": None,
            **host(config.device),
        }
        # First, so that files of an earlier attempt are never taken for those of a finished run.
        self._write_facts()
        self.kept = self._read_checkpoint()
        obsolete = ["config.yaml", *(f"{table}.csv" for table in TABLES)]
        if self.kept is None:
            obsolete.append("checkpoint.pt")
        for name in obsolete:
            (self.directory / name).unlink(missing_ok=True)
        for leftover in self.directory.glob(".*.tmp"):
            leftover.unlink()
        resolved = config.as_dict()
        write_text(self.directory / "config.yaml", yaml.safe_dump(resolved, sort_keys=False))
        if config.logger.mode != "disabled":
            from rpe_bench.wandb_mirror import WandbMirror, about  # without a mirror, no wandb

            self._mirror = WandbMirror(config.run_id, config.results_dir, mode=config.logger.mode, **about(resolved))
        if self.kept is not None:
            self._train = self.kept["train"]
            if self._mirror and self._train:
                self._mirror.log("train", list(self._train))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        facts = self._facts
        facts["status"] = "finished"
        if error is not None:
            facts["status"] = "failed" if isinstance(error, Exception) else "interrupted"
            facts["exception"] = {
                "type": type(error).__name__,
                "message": str(error),
                "traceback": "".join(traceback.format_exception(error)),
            }
        if isinstance(error, Exception) and not isinstance(error, OSError):
            (self.directory / "checkpoint.pt").unlink(missing_ok=True)
        facts["finished"] = now()
        facts["seconds"] = time.perf_counter() - self._started
        facts["peak_memory_bytes"] = peak_memory_bytes()
        if self._config.device == "cuda":
            facts["peak_gpu_memory_bytes"] = torch.cuda.max_memory_allocated()
        try:
            self._flush_train()
            if error is None:
                facts["bytes"] = {path.name: path.stat().st_size for path in self._written()}
            self._write_facts()
            if error is None:
                put_in_place(self._config)
        finally:
            if self._mirror:
                # By now a run that was made beside a finished one is in its place.
                directory = self.directory if self.directory.exists() else self._config.run_dir
                self._mirror.close(self._summary(error), 0 if error is None else 1, directory)

    def train(self, row: Row) -> None:
        """Add one row to train.csv, which follows within FLUSH_SECONDS or at the end."""
        self._train += _plain("train", [row])
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self._flush_train()
        if self._mirror:
            self._mirror.log("train", self._train[-1:])

    def table(self, name: str, rows: Iterable[Row]) -> None:
        """Write NAME.csv. A row has exactly the columns of TABLES[name], in any order; numbers are Python's or NumPy's.

        Raises:
            ValueError: a row lacks a column or has one too many.
        """
        plain = _plain(name, rows)
        write_text(self.directory / f"{name}.csv", to_csv(TABLES[name], plain))
        if self._mirror and name not in ON_DEMAND:
            self._mirror.log(name, plain)

    def checkpoint(self, state: Mapping[str, Any]) -> None:
        """Write checkpoint.pt: `state`, and what of this record a later attempt needs."""
        about = {"run_id": self._config.run_id, "versions": self._facts["versions"], "train": self._train}
        checkpoints.write(self.directory / "checkpoint.pt", {**state, **about})

    def _read_checkpoint(self) -> dict[str, Any] | None:
        """A checkpoint of this run that can be gone on from; None, and said why, where none can."""
        versions = self._facts["versions"]
        try:
            kept = checkpoints.read(self.directory / "checkpoint.pt", self._config.device)
        except FileNotFoundError:
            return None
        except checkpoints.CheckpointError as error:
            problem = str(error)
        else:
            if kept.get("run_id") != self._config.run_id:
                problem = f"is of another run, {kept.get('run_id')}"
            elif kept.get("versions") != versions:
                changed = [name for name, version in versions.items() if kept["versions"].get(name) != version]
                problem = f"was written with another version of {', '.join(changed)}"
            else:
                return kept
        self._say(f"checkpoint.pt {problem}: the run starts again")
        return None

    def note(self, **facts: Any) -> None:
        """Set facts of run.json, by the names in NOTES; they are in the file when the run ends.

        Raises:
            ValueError: a name is not in NOTES.
        """
        if unknown := facts.keys() - set(NOTES):
            raise ValueError(f"run.json has no {', '.join(sorted(unknown))}; it takes {', '.join(NOTES)}")
        self._facts.update(facts)

    def _written(self) -> Iterator[Path]:
        """The files that a finished run consists of, besides run.json."""
        for name in ("config.yaml", "checkpoint.pt", *(f"{table}.csv" for table in TABLES)):
            if (self.directory / name).exists():
                yield self.directory / name

    def _say(self, line: str) -> None:
        # As the W&B mirror does, so that a sweep passes it on.
        print(f"rpe-bench: {self._config.run_id}: {line}", file=sys.stderr, flush=True)

    def _flush_train(self) -> None:
        write_text(self.directory / "train.csv", to_csv(TABLES["train"], self._train))
        self._flushed = time.monotonic()

    def _write_facts(self) -> None:
        write_text(self.directory / "run.json", json.dumps(self._facts, indent=2) + "\n")

    def _summary(self, error: BaseException | None) -> dict[str, Any]:
        from rpe_bench.wandb_mirror import summary

        facts = summary(self._facts)
        return facts if error is None else {**facts, "exception": one_line(error)}


def put_in_place(config: Config) -> None:
    """Let a run that was made beside a finished one, under `sweep.force`, take its place, now that it is finished too.

    Where that was cut short, calling it once more completes it.
    """
    new, place = config.results_dir / "again" / config.run_id, config.run_dir
    old = new.with_name(f"{new.name}.old")
    if not is_whole(new):
        if old.exists():  # killed once the new one was in its place; or what should have come there was damaged since
            shutil.rmtree(old) if place.exists() else old.rename(place)
        return
    if place.exists():
        shutil.rmtree(old, ignore_errors=True)
        place.rename(old)
    place.parent.mkdir(parents=True, exist_ok=True)
    new.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def to_csv(columns: Iterable[str], rows: Iterable[Row]) -> str:
    """CSV with a header. A float is the shortest digits that read back as it: equal numbers, equal bytes."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _plain(table: str, rows: Iterable[Row]) -> list[dict[str, Any]]:
    """Rows with the table's columns in order and Python's own numbers."""
    columns = TABLES[table]
    plain = []
    for row in rows:
        if set(row) != set(columns):
            raise ValueError(f"{table}.csv has the columns {', '.join(columns)}; a row has {', '.join(row)}")
        # NumPy's float32 prints fewer digits than the number that W&B and the other columns would hold.
        plain.append({c: row[c].item() if hasattr(row[c], "item") else row[c] for c in columns})
    return plain


def host(device: str) -> dict[str, Any]:
    """Where and with what a run is made: versions, commit, threads, processor and device."""
    packages = ("torch", "numpy", "hydra-core", "wandb", "rpe_bench")
    return {
        "versions": {"python": platform.python_version(), **{name: _version(name) for name in packages}},
        **revision(Path(__file__).resolve().parents[1]),
        "threads": torch.get_num_threads(),
        "cpu": cpu_model(),
        "device": device,
        "gpu": torch.cuda.get_device_name() if device == "cuda" else None,
    }


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:  # rpe_bench itself, run from a checkout that is not installed
        return None


def revision(root: Path) -> dict[str, Any]:
    """Commit of a git work tree and whether anything in it differs from that, files unknown to git included.

    Both are None where `root` is not the top of a work tree, nothing is committed, or git is absent or refuses.
    """
    unknown = {"commit": None, "dirty": None}
    if not (root / ".git").exists():  # git would look further up, and find whatever repository an installation lies in
        return unknown
    # Optional locks off: jobs that start together must not fight over the index.
    command = ["git", "--no-optional-locks", f"--git-dir={root / '.git'}", f"--work-tree={root}"]
    command += ["status", "--porcelain=v2", "--branch"]
    try:
        answer = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=10)
    except (FileNotFoundError, subprocess.TimeoutExpired):
        return unknown
    lines = answer.stdout.splitlines()
    commit = next((line.split()[-1] for line in lines if line.startswith("# branch.oid")), "(initial)")
    if answer.returncode != 0 or commit == "(initial)":
        return unknown
    return {"commit": commit, "dirty": any(not line.startswith("#") for line in lines)}


def cpu_model() -> str:
    """The processor's name, as far as the system tells."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()


def peak_memory_bytes() -> int:
    """The most main memory that this process has held, since it began rather than since the run did."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024  # bytes there, KiB elsewhere
