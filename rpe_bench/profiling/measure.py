"""The measurement itself: memory of every cell first, then times, all encodings taking turns.

In a round each encoding makes its call once, in a new random order, and is compared with `nope` of the same round: what
else the machine does then falls on all alike.
"""

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rpe_bench.allocator import keep_freed_memory
from rpe_bench.config import Config
from rpe_bench.profiling.account import Account
from rpe_bench.profiling.apart import Limits
from rpe_bench.profiling.cells import BASELINE, Call, Cell, Clock, Subject, examples_of, prepared
from rpe_bench.profiling.first import First, first_call
from rpe_bench.record import cpu_model, host
from rpe_bench.seeds import stream

LEAST_ROUNDS = 3
"""Of fewer, nothing is said."""


@dataclass(frozen=True)
class Request:
    """What is to be measured.

    config      sizes, recipe and device; its encoding and its lengths have no part in it
    subjects    the encodings, `nope` first
    lengths     kind -> lengths in tokens, rising
    rounds      calls of each cell that are timed
    limits      of one call; a cell whose rounds together take longer than `seconds` is given fewer
    """

    config: Config
    subjects: Sequence[Subject]
    lengths: Mapping[str, Sequence[int]]
    rounds: int
    limits: Limits

    def identity(self) -> dict[str, Any]:
        """All that the numbers depend on, where they are measured included."""
        config = self.config.identity()
        for key in ("encoding", "positions", "evaluation", "format", "start"):
            config.pop(key, None)
        for key in ("steps", "warmup_steps", "train_length", "lengths", "log_every"):
            del config["recipe"][key]
        config["task"] = self.config.task.name
        return {
            **config,
            "encodings": {subject.name: dict(subject.options) for subject in self.subjects},
            "lengths": {kind: list(lengths) for kind, lengths in self.lengths.items()},
            "rounds": self.rounds,
            "seconds": self.limits.seconds,
            "mib": self.limits.mib,
            "clock": Clock(self.config).name,
            "host": {**host(self.config.device), "threads": self.config.threads},
        }

    def about(self) -> str:
        """A line for captions."""
        return f"{about(self.config)}, at most {self.rounds} rounds"


def about(config: Config) -> str:
    """What is measured and on what, in a line."""
    model, recipe = config.model, config.recipe
    where = torch.cuda.get_device_name() if config.device == "cuda" else cpu_model()
    parts = [
        f"{model.name}: {model.layers} layers of width {model.dim}, {model.heads} heads",
        "causal" if model.causal else "bidirectional",
        recipe.precision,
        f"training on {recipe.batch_size} examples",
        f"{config.threads} thread{'s' if config.threads > 1 else ''}, {where}",
        Clock(config).name,
    ]
    return ", ".join(parts)


def measure(request: Request, account: Account, tell: Callable[[str], None] = lambda line: None) -> None:
    """Measure what the account lacks.

    Args:
        tell: is given a line on how far it is.
    """
    importlib.import_module("torch._dynamo")  # by the first step of an optimiser, whose memory it is not
    for kind, lengths in request.lengths.items():
        _memory(request, account, kind, lengths, tell)
    torch.set_num_threads(request.config.threads)
    keep_freed_memory()  # as a run does
    for kind, lengths in request.lengths.items():
        for length in lengths:
            _times(request, account, kind, length, tell)
    account.finish()


def _memory(request: Request, account: Account, kind: str, lengths: Sequence[int], tell: Callable[[str], None]) -> None:
    config, batch = request.config, examples_of(request.config, kind)
    problems: dict[str, str] = {}
    for length in lengths:
        tell(f"memory of {kind} at {length} tokens")
        for subject in request.subjects:
            cell = Cell(kind, length, subject.name)
            if cell not in account.cells:
                # What is longer would be no better, and takes as long to be found out.
                known = First(problem=problems.get(subject.name, ""))
                first = known if known.problem else first_call(config, subject, cell, request.limits)
                account.add_first(cell, subject.place, batch, first)
            if account.cells[cell]["peak_bytes"] is None:
                problems.setdefault(subject.name, f"at {length}: {account.cells[cell]['problem']}")


def _times(request: Request, account: Account, kind: str, length: int, tell: Callable[[str], None]) -> None:
    config, clock = request.config, Clock(request.config)
    done, rounds = account.rounds(kind, length), _rounds(request, account, kind, length)
    if done >= max(rounds.values(), default=0):
        return
    calls: dict[str, Call] = {}
    for subject in request.subjects:
        if rounds.get(subject.name, 0) > done:
            calls[subject.name], _ = prepared(config, subject, kind, length)
            # Tables that are kept, and the optimiser's state, are there from the second call on.
            calls[subject.name]()
    for turn in range(done, max(rounds.values())):
        tell(f"{kind} at {length} tokens, round {turn + 1} of {max(rounds.values())}")
        names = [name for name in calls if turn < rounds[name]]
        about = {"kind": kind, "length": length, "round": turn}
        order = stream("profile", kind, length, turn).permutation(names)
        rows = [{**about, "encoding": str(name), "seconds": clock.of(calls[str(name)])} for name in order]
        account.add_round(rows)


def _rounds(request: Request, account: Account, kind: str, length: int) -> dict[str, int]:
    """Encoding -> rounds that it takes part in; the account is told of those that take part in none."""
    found: dict[str, int] = {}
    for subject in request.subjects:
        cell = Cell(kind, length, subject.name)
        first = account.cells[cell]
        if first["problem"]:
            continue
        rounds = min(request.rounds, int(request.limits.seconds / max(first["seconds"], 1e-9)))
        if rounds >= min(LEAST_ROUNDS, request.rounds):
            found[subject.name] = rounds
        else:
            took = f"a call takes {first['seconds']:.3g} s, too long for {LEAST_ROUNDS} in {request.limits.seconds:g} s"
            account.leave_out(cell, took)
    if BASELINE not in found:
        for name in found:
            account.leave_out(Cell(kind, length, name), f"is not timed, since {BASELINE} is not")
        return {}
    return found
