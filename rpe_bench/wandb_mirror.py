"""The W&B mirror of a run: the numbers of its CSV files as curves, tables and a summary.

A mirror and nothing more. It works in a thread of its own, so that no server, be it slow, absent or lost midway, holds
up training; what goes wrong in it becomes one line on stderr, and the CSV files are complete whatever happens here.
"""

import os
import queue
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator
from itertools import groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import wandb

from rpe_bench.errors import one_line

Row = dict[str, Any]

INIT_SECONDS = 3.0
"""How long an online run waits for the server, while training goes on, before it is made an offline one."""

CLOSE_SECONDS = {"online": 3.5, "offline": 30.0}
"""How long the end of a run waits for its mirror. Offline there is nothing to wait for but a busy machine."""

FINISH_SECONDS = 2.0
"""How long wandb goes on uploading once told to finish; at the exit of the process too, beyond CLOSE_SECONDS."""

AXES = {
    **dict.fromkeys(("train", "validation"), "step"),
    **dict.fromkeys(("eval", "training_set", "baselines", "floor"), "length"),
    **dict.fromkeys(("positions", "floor_positions"), "position"),
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


class WandbMirror:
    """One W&B run. Nothing here raises, and nothing waits but `close`, for CLOSE_SECONDS of the mode at the most.

    Online without a key, or without an answer from the server, it becomes an offline run and says so. The files are in
    DIRECTORY/wandb, where `wandb sync` finds them; those of an earlier attempt at the same run are removed.
    """

    def __init__(
        self,
        run_id: str,
        directory: Path,
        *,
        mode: Literal["online", "offline"],
        project: str,
        entity: str | None,
        group: str,
        tags: Iterable[str],
        config: dict[str, Any],
    ) -> None:
        self._id = run_id
        self._directory = directory
        self._mode = mode
        self._identity: dict[str, Any] = {"project": project, "entity": entity, "group": group, "config": config}
        self._tags = list(dict.fromkeys(tags))
        self._scores: dict[str, Any] = {}
        self._facts: dict[str, Any] = {}
        self._tables: dict[str, list[Row]] = {}
        self._exit_code = 1
        self._given_up = False
        self._inbox: queue.SimpleQueue[tuple[str, list[Row]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name="wandb mirror", daemon=True)
        self._thread.start()

    def log(self, table: str, rows: list[Row]) -> None:
        """Mirror rows of a table: those of "train" as they come, those of any other all at once."""
        self._inbox.put((table, rows))

    def close(self, facts: dict[str, Any], exit_code: int) -> None:
        """Finish the W&B run. `facts` join the scores in its summary; a non-zero exit code marks it as failed."""
        self._facts = facts
        self._exit_code = exit_code
        self._inbox.put(None)
        waited_as = None
        while self._thread.is_alive() and waited_as != self._mode:  # it may become offline while waited for
            waited_as = self._mode
            patience = CLOSE_SECONDS[waited_as]
            self._thread.join(patience)
        if self._thread.is_alive():
            self._given_up = True
            self._warn(f"incomplete, not waited for any longer than {patience:g} s; the CSV files are complete")

    def _work(self) -> None:
        before = tempfile.tempdir
        try:
            folder = self._directory.resolve() / "wandb"
            folder.mkdir(parents=True, exist_ok=True)
            # wandb keeps what it stages of tables until the process exits, and a forked one exits without clearing up.
            with tempfile.TemporaryDirectory(dir=folder, prefix=".scratch-") as tempfile.tempdir:
                self._mirror()
        # wandb raises much that is not a wandb.Error, such as a bare Exception where its service refuses. Whatever it
        # is, it ends this thread alone and is told in a line.
        except Exception as error:
            if not self._given_up:
                self._warn(f"incomplete after {one_line(error)}; the CSV files are complete")
        finally:
            tempfile.tempdir = before

    def _mirror(self) -> None:
        run = self._start()
        try:
            while (item := self._inbox.get()) is not None:
                self._draw(run, *item)
            run.summary.update(self._scores | self._facts)
            # Last, since online each asks the server first: for long, where that is lost.
            for name, rows in self._tables.items():
                data: list[Iterable[Any]] = [list(row.values()) for row in rows]
                run.log({f"tables/{name}": wandb.Table(columns=list(rows[0]), data=data)})
        finally:
            run.finish(exit_code=self._exit_code)
        self._tear_down()

    def _start(self) -> wandb.Run:
        # What wandb takes from the environment alone. Its reports on itself use the network even offline, and delay the
        # exit by up to 12 s without one; what it stages for uploading would pile up in the home directory.
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        os.environ.setdefault("WANDB_DATA_DIR", str(self._directory.resolve() / "wandb"))
        os.environ.setdefault("WANDB_CACHE_DIR", str(self._directory.resolve() / "wandb" / "cache"))
        self._remove_earlier()
        if self._mode == "offline":
            return self._init("offline")
        wandb.setup(wandb.Settings(mode="online", silent=True))
        try:
            # Asked here, since wandb.init would ask for a key on the terminal.
            if wandb.login(prompt=False, verify=False):
                return self._init("online")
            reason = "no API key"
        except wandb.Error as error:
            reason = f"{type(error).__name__}: {error}".partition("\n")[0]  # advice on settings follows
        self._mode = "offline"  # from here on no server is waited for
        # Or else the service holds the id to be in use, by the run that did not start.
        self._tear_down()
        self._remove_earlier()
        run = self._init("offline")
        self._warn(f"offline instead of online ({reason}); later, `wandb sync {run.settings.sync_dir}`")
        return run

    def _init(self, mode: Literal["online", "offline"]) -> wandb.Run:
        settings = wandb.Settings(
            console="off",
            silent=True,
            init_timeout=INIT_SECONDS,
            finish_timeout=FINISH_SECONDS,
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
            dir=self._directory,
            job_type="train",
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
                for column in ("loss", "token_accuracy", "exact_match")
            }
        if table != "train" and rows:
            self._tables[table] = rows if len(rows) <= TABLE_ROWS else drawn

    def _remove_earlier(self) -> None:
        for folder in (self._directory / "wandb").glob(f"*run-*-{self._id}"):
            shutil.rmtree(folder)

    def _tear_down(self) -> None:
        """End wandb's service, which forked jobs would leave behind as zombies; not where others may be using it."""
        if wandb.run is None:
            wandb.teardown()

    def _warn(self, what: str) -> None:
        print(f"rpe-bench: W&B mirror of {self._id}: {what}", file=sys.stderr, flush=True)


def points(table: str, rows: list[Row]) -> Iterator[Row]:
    """The rows of a table as points of curves, each with its place on the axis; none for a table without curves.

    Those by position have one curve a length (``positions/loss_L512``), and one point for all lengths at a position.
    """
    if AXES.get(table) == "position":
        for position, at_position in groupby(sorted(rows, key=_position), key=_position):
            point = {"position": position}
            for row in at_position:
                for column in ("loss", "perplexity", "accuracy"):
                    if column in row:  # an ideal predictor has no accuracy
                        point[f"{table}/{column}_L{row['length']}"] = row[column]
            yield point
    elif table in AXES:
        axis = AXES[table]
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
            tokens = np.array([row["tokens"] for row in part])
            loss = float(np.average([row["loss"] for row in part], weights=tokens))
            with np.errstate(over="ignore"):  # infinite, as in the table itself
                perplexity = float(np.exp(loss))
            middle = part[len(part) // 2]["position"]
            row = {"length": length, "position": middle, "tokens": int(tokens.sum())}
            row |= {"loss": loss, "perplexity": perplexity}
            if "accuracy" in part[0]:
                row["accuracy"] = float(np.average([row["accuracy"] for row in part], weights=tokens))
            binned.append(row)
    return binned


def _position(row: Row) -> int:
    return int(row["position"])
