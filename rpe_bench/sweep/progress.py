"""How far a sweep is, and how long it will take."""

import os
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from rpe_bench.config import Config
from rpe_bench.curriculum import Curriculum
from rpe_bench.status import duration, rate
from rpe_bench.sweep.records import is_finished


def effort(config: Config) -> float:
    """How long a run takes, up to a factor that runs on one machine share."""
    task, recipe, evaluation = config.build_task(), config.recipe, config.evaluation
    assert evaluation.lengths is not None
    share = 1.0 if recipe.lengths == "fixed" else 0.5  # of the longest, on average
    if (curriculum := Curriculum.of(recipe)) is not None:
        share *= curriculum.mean_bound(recipe.steps) / curriculum.longest
    trained = recipe.steps * recipe.batch_size * config.train_tokens * share
    evaluated = evaluation.examples * sum(task.length(size) for size in evaluation.lengths)
    # A backward pass costs about two forward ones.
    return (3 * trained + evaluated) * config.model.layers * config.model.dim


class Running(Protocol):
    """A run that is on its way, in a process of the pool or elsewhere."""

    config: Config
    effort: float

    @property
    def seconds(self) -> float: ...


class Progress:
    """``3/45 done, 2 running, 0 failed, 90 an hour, ETA 2 min 10 s`` on stderr: one changing line on a terminal, else
    one as each run ends.

    The estimate weighs runs by their effort, so that it is of use early on, when the short ones have finished first.
    """

    def __init__(self, total: int, effort: float, workers: int) -> None:
        self.total, self.workers = total, workers
        self.waiting = effort
        """Effort of the runs that have not begun."""
        self.done = self.failed = 0
        self.spent = self.seconds = 0.0
        """Effort of the runs that have finished, and the seconds they took."""
        self.began_at = time.monotonic()
        self.live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self.news: list[str] = [] if self.live else [""]
        """Runs that have ended and are yet to be told of, where no line is renewed; at the start, none."""

    def began(self, worker: Running) -> None:
        """Count a run that has begun."""
        self.waiting -= worker.effort

    def put_back(self, worker: Running) -> None:
        """Count a run that had not begun after all."""
        self.waiting += worker.effort

    def found(self, config: Config, effort: float, finished: bool) -> None:
        """Count a run that another process has ended."""
        self.waiting -= effort
        if finished:
            self.done += 1
        else:
            self.failed += 1
        if not self.live:
            self.news.append(f"; {config.run_id} {'finished' if finished else 'failed'} elsewhere")

    def ended(self, worker: Running, finished: bool | None = None) -> None:
        """Count a run that has ended; whether well, its record says where that is not known."""
        finished = is_finished(worker.config) if finished is None else finished
        if finished:
            self.done += 1
            self.spent += worker.effort
            self.seconds += worker.seconds
        else:
            self.failed += 1
        if not self.live:
            self.news.append(f"; {worker.config.run_id} {'finished' if finished else 'failed'}")

    def show(self, running: Sequence[Running]) -> None:
        """Renew the line of a terminal; elsewhere tell of the runs that have ended since, with what runs by now."""
        for news in self.news:
            print(f"{self.line(running)}{news}", file=sys.stderr, flush=True)
        self.news.clear()
        if self.live:
            # Narrower than the terminal: a line that wraps could not be written over.
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            print(f"\r{self.line(running)[: width - 1]}\x1b[K", end="", file=sys.stderr, flush=True)

    def say(self, lines: Sequence[str]) -> None:
        """Print lines of their own, above that of a terminal."""
        for line in lines:
            print(f"\r{line}\x1b[K" if self.live else line, file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the line of a terminal as it is."""
        if self.live:
            print(file=sys.stderr)

    def line(self, running: Sequence[Running]) -> str:
        """How far the sweep is."""
        elapsed = time.monotonic() - self.began_at
        if self.done + self.failed == self.total:
            return f"{self.done}/{self.total} done, {self.failed} failed, took {duration(elapsed)}"
        counts = f"{self.done}/{self.total} done, {len(running)} running, {self.failed} failed"
        if self.done:
            counts += f", {rate(3600 * self.done / elapsed)}"
        left = self.seconds_left([(worker.effort, worker.seconds) for worker in running])
        return f"{counts}, ETA {'unknown until a run has finished' if left is None else duration(left)}"

    def seconds_left(self, running: Sequence[tuple[float, float]]) -> float | None:
        """Seconds until all is done, given the effort of each run that is on its way, and the seconds since its start.

        None as long as no run has finished: how fast this machine is cannot be known before.
        """
        if not self.spent:
            return None
        pace = self.seconds / self.spent
        remaining = [max(0.0, effort * pace - elapsed) for effort, elapsed in running]
        return max([(self.waiting * pace + sum(remaining)) / self.workers, *remaining])
