"""The W&B mirror of a run: the numbers of its CSV files as curves, tables, a summary and figures, and the files
themselves.

A mirror and nothing more. It works in a thread of its own, so that no server, be it slow, absent or lost midway, holds
up training; what goes wrong in it becomes one line on stderr, and the CSV files are complete whatever happens here.
"""

import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby, takewhile
from pathlib import Path
from typing import Any, Literal

import numpy as np
import wandb
from wandb.sdk import wandb_setup

from rpe_bench import ledger
from rpe_bench.errors import one_line
from rpe_bench.means import token_mean
from rpe_bench.wandb_server import Server, confine, log_in

Mode = Literal["online", "offline"]
Row = dict[str, Any]


@dataclass(frozen=True)
class Patience:
    """How many seconds a mirror may take."""

    init: float
    """An online run waits so long for the server to know it."""
    close: Mapping[Mode, float]
    """The end of a run waits so long for its mirror, by the mode that was asked for."""
    finish: float
    """wandb goes on uploading for so long once told to finish."""


TRAINING = Patience(init=2.5, close={"online": 3.3, "offline": 30.0}, finish=3.3)
"""`init` passes while training goes on, and then the run becomes an offline one. What a server that is lost costs is
`close`, and no more where the run became an offline one; with what importing wandb and its threads take from training,
less than 5 s. A server that answers within 0.1 s has all by then. Offline there is nothing to wait for but a busy
machine."""

LEAVE_SECONDS = 0.2
"""Enough for wandb to forget its hook at the exit of the process."""

AXES = {
    **dict.fromkeys(("train", "validation"), "step"),
    **dict.fromkeys(("eval", "training_set", "baselines", "floor"), "length"),
    **dict.fromkeys(("positions", "floor_positions"), "position"),
    "slices": "value",
}
"""Prefix of a curve's name -> what it is drawn against."""

CURVE_POINTS = 256
"""Points of a curve by position; more positions than that are averaged in so many bins (W&B draws at most 1,500)."""

TABLE_ROWS = 10_000
"""Rows that W&B shows of a table."""


def preload() -> None:
    """Import what wandb imports on first use. In a parent this saves each process that it forks 0.3 s."""
    import pandas  # noqa: F401
    import wandb.apis.public  # noqa: F401

    import rpe_bench.run_figure  # noqa: F401


def about(config: Mapping[str, Any]) -> dict[str, Any]:
    """Under what project, entity, group and tags a run is mirrored, by its config as plain data; and that config."""
    logger, names = config["logger"], [config[group]["name"] for group in ("encoding", "task", "recipe")]
    return {
        "project": logger["project"],
        "entity": logger["entity"],
        "group": logger["group"] or config["task"]["name"],
        "job_type": "train" if config["recipe"]["steps"] else "evaluate",
        "tags": [*names, *logger["tags"]],
        "config": dict(config),
    }


def summary(record: Mapping[str, Any]) -> dict[str, Any]:
    """What of a run's run.json joins the scores in the summary."""
    return {key: value for key, value in record.items() if value is not None and key != "run_id"}


class WandbMirror:
    """One W&B run. Nothing here raises, and nothing waits but `close`, for `patience.close` of the mode at the most.

    Online without a key, or without an answer from the server, it becomes an offline run and says so. Whatever goes
    wrong, one line is all that is said. wandb's files are in RESULTS_DIR/wandb; those of an earlier attempt at the same
    run are removed, but for an offline one that is for another project. A mirror that is complete, which for an online
    one the server is asked, is noted in the ledger, and `rpe-bench wandb sync` passes over it.

    Args:
        instead: whether an offline run may take the place of one that cannot be had online.
        root: where wandb's files are, in a folder "wandb"; RESULTS_DIR by default.

    Attributes:
        is_complete: whether all that was logged has arrived; known once closed.
    """

    def __init__(
        self,
        run_id: str,
        results_dir: Path,
        *,
        mode: Mode,
        project: str,
        entity: str | None,
        group: str,
        job_type: str,
        tags: Iterable[str],
        config: dict[str, Any],
        patience: Patience = TRAINING,
        instead: bool = True,
        root: Path | None = None,
    ) -> None:
        self.is_complete = False
        self._id = run_id
        self._results_dir = results_dir
        self._root = (root or results_dir).resolve()
        self._mode = mode
        self._patience = patience
        self._longest = patience.close[mode]
        self._instead = instead
        self._identity: dict[str, Any] = {"project": project, "entity": entity, "config": config}
        self._identity |= {"group": group, "job_type": job_type}
        self._tags = list(dict.fromkeys(tags))
        self._scores: dict[str, Any] = {}
        self._facts: dict[str, Any] = {}
        self._tables: dict[str, list[Row]] = {}
        self._run_dir: Path | None = None
        self._exit_code = 1
        self._word = threading.Lock()  # whoever takes it has said what went wrong
        self._given_up = threading.Event()
        self._inbox: queue.SimpleQueue[tuple[str, list[Row]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="wandb mirror", daemon=True)
        self._thread.start()

    def log(self, table: str, rows: list[Row]) -> None:
        """Mirror rows of a table: those of "train" as they come, those of any other all at once."""
        self._inbox.put((table, rows))

    def close(self, facts: dict[str, Any], exit_code: int, run_dir: Path | None = None) -> None:
        """Finish the W&B run. `facts` join the scores in its summary; a non-zero exit code marks it as failed.

        The files of `run_dir` become an artifact, but for the checkpoint, which takes more room than all others.
        """
        self._facts = facts
        self._exit_code = exit_code
        self._run_dir = run_dir
        self._inbox.put(None)
        self._thread.join(self._longest)
        if self._thread.is_alive():
            self._given_up.set()
            self._warn(f"incomplete, not waited for any longer than {self._longest:g} s")
            leaving = threading.Thread(target=self._see_off, name="wandb's end", daemon=True)
            leaving.start()
            leaving.join(LEAVE_SECONDS)

    def _work(self) -> None:
        before = tempfile.tempdir
        try:
            folder = self._root / "wandb"
            folder.mkdir(parents=True, exist_ok=True)
            # wandb keeps what it stages of tables until the process exits, and a forked one exits without clearing up.
            with tempfile.TemporaryDirectory(dir=folder, prefix=".scratch-") as tempfile.tempdir:
                self._mirror()
        # wandb raises much that is not a wandb.Error, such as a bare Exception where its service refuses. Whatever it
        # is, it ends this thread alone and is told in a line.
        except Exception as error:
            self._warn(f"incomplete after {one_line(error)}")
        finally:
            tempfile.tempdir = before
            if not self.is_complete:
                self._abandon()

    def _mirror(self) -> None:
        run = self._start()
        try:
            while (item := self._inbox.get()) is not None:
                self._draw(run, *item)
            run.summary.update(self._scores | self._facts)
            # Online, an artifact and each table ask the server first, so what is above is on its way by now. The
            # artifact goes before tables, since its files take the most exchanges, all of which pass while those wait.
            if self._run_dir is not None:
                run.log_artifact(artifact_of(self._id, self._run_dir))
            for name, rows in self._tables.items():
                data: list[Iterable[Any]] = [list(row.values()) for row in rows]
                run.log({f"tables/{name}": wandb.Table(columns=list(rows[0]), data=data)})
            if figures := self._figures():
                run.log({f"figures/{name}": wandb.Image(str(path)) for name, path in figures.items()})
        finally:
            run.finish(exit_code=self._exit_code)
        place = self._offline_place(Path(run.settings.sync_dir).name)
        if self._mode == "online":
            # wandb itself takes a run for uploaded whose rows the server has refused.
            server = Server.current()
            if not server.holds(run.entity, run.project, self._id, self._facts, wait=self._patience.finish):
                raise ValueError("the server lacks a part of it")
            place = server.place(run.entity, run.project)
        self._tear_down()
        self.is_complete = True
        remember(self._results_dir, self._id, self._facts, place)

    def _start(self) -> wandb.Run:
        confine(self._root / "wandb")
        self._remove_earlier()
        if self._mode == "offline":
            return self._init("offline")
        try:
            if not log_in():
                raise wandb.errors.AuthenticationError("no API key")
            return self._init("online")
        except wandb.Error as error:
            if not self._instead:
                raise
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]  # advice on settings follows
        self._mode = "offline"  # from here on no server is waited for
        # Or else the service holds the id to be in use, by the run that did not start.
        self._tear_down()
        self._remove_earlier()
        run = self._init("offline")
        self._warn(f"offline instead of online ({reason})")
        return run

    def _init(self, mode: Mode) -> wandb.Run:
        if self._given_up.is_set():
            raise TimeoutError("nobody waits for it any longer")
        settings = wandb.Settings(
            console="off",
            silent=True,
            init_timeout=self._patience.init,
            finish_timeout=self._patience.finish,
            finish_timeout_raises=True,
            save_code=False,
            disable_code=True,
            disable_git=True,
            symlink=False,  # jobs that start together would fight over "latest-run"
            x_disable_stats=True,
            x_save_requirements=False,
        )
        run = wandb.init(
            id=self._id,
            name=self._id,
            dir=self._root,
            tags=self._tags,
            mode=mode,
            reinit="create_new",  # never the unfinished run of an earlier job, nor one of a surrounding program
            settings=settings,
            **self._identity,
        )
        # No "last value" in the summary: of a curve over lengths or positions it says nothing.
        for axis in dict.fromkeys(AXES.values()):
            run.define_metric(axis, summary="none")
        for prefix, axis in AXES.items():
            run.define_metric(f"{prefix}/*", step_metric=axis, summary=None if prefix == "train" else "none")
        return run

    def _draw(self, run: wandb.Run, table: str, rows: list[Row]) -> None:
        drawn = bin_positions(rows, CURVE_POINTS) if AXES.get(table) == "position" else rows
        for point in points(table, drawn):
            run.log(point)
        if table in ("eval", "training_set"):
            self._scores |= {
                f"{table}/{column}_L{row['length']}": row[column]
                for row in rows
                for column in ("loss", "perplexity", "token_accuracy", "exact_match")
            }
        if table == "eval":
            self._scores |= reach(rows, self._identity["config"]["recipe"]["train_length"])
        if table != "train" and rows:
            self._tables[table] = rows if len(rows) <= TABLE_ROWS else drawn

    def _figures(self) -> dict[str, Path]:
        """The run's scores, and what `rpe-bench attention` and its like have drawn in its directory by now."""
        found = {}
        if "eval" in self._tables:
            from rpe_bench.run_figure import run_figure  # now, while others wait; it would take from training

            found["scores"] = Path(tempfile.gettempdir()) / "scores.png"
            train_length = self._identity["config"]["recipe"]["train_length"]
            run_figure(self._id, self._tables, train_length).savefig(found["scores"])
        if self._run_dir is not None:
            pictures = (path for path in files_of(self._run_dir) if path.suffix == ".png")
            found |= {path.relative_to(self._run_dir).with_suffix("").as_posix(): path for path in pictures}
        return found

    def _remove_earlier(self) -> None:
        folders = list((self._root / "wandb").glob(f"*run-*-{self._id}"))
        places = {place for *_, place in remembered(self._results_dir)} if folders else set()
        for folder in folders:
            # One for another project may be yet to be uploaded.
            others = places - {self._offline_place(folder.name)}
            if not any(place.endswith(f"/{folder.name}") for place in others):
                shutil.rmtree(folder)

    def _offline_place(self, folder: str) -> str:
        return offline_place(self._identity["entity"], self._identity["project"], folder)

    def _tear_down(self) -> None:
        """End wandb's service, which forked jobs would leave behind as zombies; not where others may be using it."""
        if wandb.run is None:
            with suppress(SystemExit):  # with the service's status, after all that counts
                wandb.teardown()

    def _see_off(self) -> None:
        """Kill wandb's service for as long as the mirror goes on: one may have been started since.

        No more than that: torn down while one is being started, it would be lost sight of, and go on.
        """
        while self._thread.is_alive():
            self._kill_service()
            self._thread.join(0.2)

    def _kill_service(self) -> None:
        if wandb.run is None:
            with suppress(Exception):  # nothing more is to be said of a mirror that was given up
                connection = wandb_setup.singleton()._connection
                if connection is not None and connection._proc is not None:
                    connection._proc._process.kill()

    def _abandon(self) -> None:
        """End wandb's service at once. It would go on trying long after the run, one for each run of a sweep, and the
        process would wait for it at its exit."""
        self._kill_service()
        with suppress(Exception):
            self._tear_down()

    def _warn(self, what: str) -> None:
        if not self._word.acquire(blocking=False):
            return
        later = f"the CSV files are complete; later, `rpe-bench wandb sync {self._results_dir}`"
        print(f"rpe-bench: W&B mirror of {self._id}: {what}; {later}", file=sys.stderr, flush=True)


def artifact_of(run_id: str, run_dir: Path) -> wandb.Artifact:
    """The files of a run directory but for its checkpoint, as they are: nothing is copied before it is uploaded."""
    artifact = wandb.Artifact(run_id[-128:], type="run")  # the longest name; that of a run is unique by its end
    for path in files_of(run_dir):
        name = path.relative_to(run_dir).as_posix()
        artifact.add_file(str(path), name, policy="immutable", skip_cache=True)
    return artifact


def files_of(run_dir: Path) -> list[Path]:
    """What a run directory holds, without its checkpoint and files that are being written."""
    found = (path for path in run_dir.rglob("*") if path.is_file() and not path.name.startswith("."))
    return sorted(path for path in found if path != run_dir / "checkpoint.pt")


def reach(rows: list[Row], train_length: int, threshold: float = 0.9) -> dict[str, Any]:
    """Of the rows of eval.csv, how far the run holds; nothing where no length from the training length on is there.

    As `rpe_bench.report.statistics.effective_lengths` has it, whose import would cost a run more than its mirror does.
    """
    beyond = sorted((row["length"], row["exact_match"]) for row in rows if row["length"] >= train_length)
    if not beyond:
        return {}
    held = [length for length, _ in takewhile(lambda point: point[1] >= threshold, beyond)]
    longest = max(held, default=0)
    return {
        "effective_length": longest,
        "effective_ratio": longest / train_length,
        "effective_length_at_limit": len(held) == len(beyond),  # it may hold further than was measured
    }


def remember(results_dir: Path, run_id: str, record: Mapping[str, Any], place: str) -> None:
    """Note in the ledger that the run as it was finished then has its mirror at a place."""
    ledger.append(results_dir, "mirrored", run_id=run_id, made=record.get("finished"), place=place)


def remembered(results_dir: Path) -> set[tuple[str, str, str]]:
    """What was noted: the run, when it was finished, and the place of its mirror."""
    entries = (entry for entry in ledger.read(results_dir) if {"run_id", "made", "place"} <= entry.keys())
    return {(entry["run_id"], entry["made"], entry["place"]) for entry in entries}


def offline_place(entity: str | None, project: str, folder: str) -> str:
    """The name of an offline mirror: the project that it is for, of whoever uploads it if no entity is named, and its
    folder."""
    return f"{entity or ''}/{project}/{folder}"


def points(table: str, rows: list[Row]) -> Iterator[Row]:
    """The rows of a table as points of curves, each with its place on the axis; none for a table without curves.

    By position and by slice there is one curve a length (``positions/loss_L512``, ``slices/distance_accuracy_L512``),
    and one point for all lengths at a place.
    """
    axis = AXES.get(table)
    if axis in ("position", "value"):

        def place_of(row: Row) -> int:
            return int(row[axis])

        for place, at_place in groupby(sorted(rows, key=place_of), key=place_of):
            point: Row = {axis: place}
            for row in at_place:
                kind = f"{row['slice']}_" if "slice" in row else ""
                for column in ("loss", "perplexity", "accuracy"):
                    if column in row:
                        point[f"{table}/{kind}{column}_L{row['length']}"] = row[column]
            yield point
    elif axis is not None:
        for row in rows:
            values = {f"{table}/{key}": row[key] for key in row if key not in (axis, "split")}
            yield {axis: row[axis], **values}


def bin_positions(rows: list[Row], most: int) -> list[Row]:
    """The rows of positions.csv or floor_positions.csv with at most `most` of a length.

    They are means over consecutive positions, weighted by tokens. A bin stands at its middle position. Lengths with few
    enough positions stay as they are.
    """
    binned = []
    for length in dict.fromkeys(row["length"] for row in rows):
        of_length = sorted((row for row in rows if row["length"] == length), key=_position)
        width = -(-len(of_length) // most)
        if width == 1:
            binned += of_length
            continue
        for start in range(0, len(of_length), width):
            part = of_length[start : start + width]
            tokens = [row["tokens"] for row in part]
            loss = token_mean([row["loss"] for row in part], tokens)
            with np.errstate(over="ignore"):  # infinite, as in the table itself
                perplexity = float(np.exp(loss))
            middle = part[len(part) // 2]["position"]
            row = {"length": length, "position": middle, "tokens": sum(tokens)}
            row |= {"loss": loss, "perplexity": perplexity}
            if "accuracy" in part[0]:
                row["accuracy"] = token_mean([row["accuracy"] for row in part], tokens)
            binned.append(row)
    return binned


def _position(row: Row) -> int:
    return int(row["position"])
