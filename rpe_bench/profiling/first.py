"""The first call of a cell: the most memory that it takes beyond the model, and about how long.

On the CPU it has a process of its own, forked from one that has computed nothing: memory that an earlier call has given
back would be used again without being seen. Limits are on that process, so that a cell which is too large ends alone. A
GPU's allocator keeps its own account, in this process.
"""

import multiprocessing
import resource
import time
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import torch

from rpe_bench.allocator import keep_freed_memory
from rpe_bench.config import Config
from rpe_bench.errors import one_line
from rpe_bench.model import Transformer
from rpe_bench.profiling.cells import Cell, Subject, prepared
from rpe_bench.record import peak_memory_bytes

MIB = 2**20


@dataclass(frozen=True)
class Limits:
    """What one call may take."""

    seconds: float
    mib: int


@dataclass(frozen=True)
class First:
    """What a call took; `problem` says why there is none, in which case all numbers are missing."""

    seconds: float | None = None
    peak_bytes: int | None = None
    """Beyond what was held with the model and the batch built."""
    parameters: int | None = None
    encoding_parameters: int | None = None
    problem: str = ""


def first_call(config: Config, subject: Subject, cell: Cell, limits: Limits) -> First:
    """Make the call of a cell for the first time."""
    try:
        if config.device == "cuda":
            return _on_gpu(config, subject, cell)
        return _forked(limits, _in_child, config, subject, cell)
    except ValueError as error:  # how an encoding refuses a length
        return First(problem=" ".join(str(error).split()))


def _calls(cell: Cell) -> int:
    """In training the second call is the first that has all of an optimiser's state from the start."""
    return 2 if cell.kind == "training" else 1


def _first(seconds: float, peak_bytes: int, model: Transformer) -> First:
    parameters, of_encodings = (sum(p.numel() for p in part.parameters()) for part in (model, model.encodings))
    return First(seconds, peak_bytes, parameters, of_encodings)


SHORT = 16
"""Tokens of a call that comes before: the pages of torch's own code, 7 MiB, are then in memory already."""


def _in_child(config: Config, subject: Subject, cell: Cell) -> First:
    torch.set_num_threads(config.threads)
    keep_freed_memory()  # as a run does
    prepared(config, subject, cell.kind, min(SHORT, cell.length))[0]()
    call, model = prepared(config, subject, cell.kind, cell.length)
    before, seconds = peak_memory_bytes(), 0.0
    for _ in range(_calls(cell)):
        start = time.perf_counter()
        call()
        seconds = time.perf_counter() - start
    return _first(seconds, peak_memory_bytes() - before, model)


def _on_gpu(config: Config, subject: Subject, cell: Cell) -> First:
    try:
        call, model = prepared(config, subject, cell.kind, cell.length)
        before, seconds = torch.cuda.memory_allocated(), 0.0
        torch.cuda.reset_peak_memory_stats()
        for _ in range(_calls(cell)):
            start = time.perf_counter()
            call()
            torch.cuda.synchronize()
            seconds = time.perf_counter() - start
        return _first(seconds, torch.cuda.max_memory_allocated() - before, model)
    except torch.cuda.OutOfMemoryError:
        torch.cuda.empty_cache()
        return First(problem="takes more memory than the GPU has")


def unused_memory() -> ForkServerContext:
    """A context of processes that have torch imported, and nothing computed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])  # heeded once: later processes find the server there
    return context


def _forked(limits: Limits, work: Callable[..., First], *arguments: Any) -> First:
    """What `work` returns in a process of its own; ValueError as it raises one."""
    context = unused_memory()
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_sent, args=(sender, limits, work, *arguments))
    process.start()
    sender.close()
    try:
        if not receiver.poll(limits.seconds):
            process.kill()
            return First(problem=f"takes more than {limits.seconds:g} s")
        found: First | ValueError = receiver.recv()
    except EOFError:
        process.join()
        return First(problem=f"ended with exit code {process.exitcode}")
    finally:
        process.join()
    if isinstance(found, ValueError):
        raise found
    return found


def _sent(out: Connection, limits: Limits, work: Callable[..., First], *arguments: Any) -> None:
    try:
        _keep_within(limits.mib * MIB)
        out.send(work(*arguments))
    except ValueError as error:
        out.send(ValueError(str(error)))  # one of a class that the parent knows
    except (MemoryError, RuntimeError) as error:
        out_of_memory = isinstance(error, MemoryError) or "can't allocate memory" in str(error)
        out.send(First(problem=f"takes more than {limits.mib} MiB" if out_of_memory else one_line(error)))


def _keep_within(more_bytes: int) -> None:
    """Refuse this process more memory than that, on Linux: else the system might end another in its place."""
    statm = Path("/proc/self/statm")
    if statm.exists():
        held = int(statm.read_text().split()[5]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_DATA, (held + more_bytes, resource.RLIM_INFINITY))
