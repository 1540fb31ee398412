"""Memory of a first call, in a process of its own, and what ends one."""

import time

import pytest
import torch

from rpe_bench import catalogue
from rpe_bench.profiling.cells import Cell, Subject
from rpe_bench.profiling.first import MIB, First, Limits, _forked, first_call

LIMITS = Limits(seconds=20, mib=512)


def holding(mib: int) -> First:
    from rpe_bench.record import peak_memory_bytes

    torch.zeros(16).add_(1)  # the code of both is in memory then
    before = peak_memory_bytes()
    torch.zeros(mib * MIB // 4).add_(1)
    return First(peak_bytes=peak_memory_bytes() - before)


@pytest.mark.parametrize("mib", [16, 128])
def test_the_most_memory_that_a_call_takes(mib: int) -> None:
    held = torch.ones(300 * MIB // 4)  # what this process had held before is not counted
    del held
    found = _forked(LIMITS, holding, mib)
    assert found.peak_bytes is not None and mib <= found.peak_bytes / MIB < mib + 6


def test_what_is_too_large_or_too_slow_ends_alone() -> None:
    assert _forked(LIMITS, holding, 600) == First(problem="takes more than 512 MiB")
    start = time.perf_counter()
    assert _forked(Limits(0.2, 512), time.sleep, 30) == First(problem="takes more than 0.2 s")
    assert time.perf_counter() - start < 5


def failing(error: BaseException) -> First:
    raise error


def test_what_goes_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="position 9 lies beyond"):
        _forked(LIMITS, failing, ValueError("position 9 lies beyond"))
    assert _forked(LIMITS, failing, RuntimeError("no\nkernel")) == First(problem="RuntimeError: no kernel")
    assert _forked(LIMITS, failing, SystemExit(3)).problem == "ended with exit code 3"


def test_a_call_of_a_cell(make_config) -> None:
    config = make_config("copy", "nope", {"recipe.batch_size": 16})
    nope, t5 = (Subject(catalogue.read("encoding", name)) for name in ("nope", "t5"))
    found = first_call(config, t5, Cell("training", 256, "t5"), LIMITS)
    base = first_call(config, nope, Cell("training", 256, "nope"), LIMITS)
    assert found.problem == base.problem == ""
    assert found.encoding_parameters == 32 * config.model.heads and base.encoding_parameters == 0
    assert found.parameters is not None and found.parameters - (base.parameters or 0) == found.encoding_parameters
    assert found.seconds is not None and 0 < found.seconds < 10
    # Explicit logits of two layers, in float32 and twice each, of the pairs that the mask leaves.
    pairs = 16 * config.model.heads * 256 * 257 / 2 * 4
    assert found.peak_bytes is not None and base.peak_bytes is not None
    assert found.peak_bytes - base.peak_bytes > 2 * pairs


def test_a_refusal_is_a_reason(make_config) -> None:
    short = Subject(catalogue.read("encoding", "learned") | {"size": 16})
    found = first_call(make_config("copy", "nope"), short, Cell("evaluation", 20, "learned"), LIMITS)
    assert found == First(problem="position 19 lies beyond a learned table of 16 rows, 0 to 15")
