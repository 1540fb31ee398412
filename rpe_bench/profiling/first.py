"""The first call of a cell: the most memory that it takes beyond the model, and about how long.

On the CPU it has a process of its own, where memory that an earlier call has given back cannot be used again unseen. A
GPU's allocator keeps its own account, in this process.
"""

import time
from dataclasses import dataclass

import torch

from rpe_bench.allocator import keep_freed_memory
from rpe_bench.config import Config
from rpe_bench.errors import message_of
from rpe_bench.model import Transformer
from rpe_bench.profiling.apart import Ended, Limits, apart
from rpe_bench.profiling.cells import Cell, Subject, prepared
from rpe_bench.record import peak_memory_bytes


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
        return apart(limits, _in_child, config, subject, cell)
    except (ValueError, Ended) as error:  # the first is how an encoding refuses a length
        return First(problem=message_of(error))


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
