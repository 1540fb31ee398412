"""Memory of a call in a process of its own, and what ends one."""

import time

import pytest
import torch

from rpe_bench.profiling.apart import MIB, Ended, Limits, apart
from rpe_bench.record import peak_memory_bytes

LIMITS = Limits(seconds=20, mib=512)


def holding(mib: int) -> int:
    torch.zeros(16).add_(1)  # the code of both is in memory then
    before = peak_memory_bytes()
    torch.zeros(mib * MIB // 4).add_(1)
    return peak_memory_bytes() - before


@pytest.mark.parametrize("mib", [16, 128])
def test_the_most_memory_that_a_call_takes(mib: int) -> None:
    held = torch.ones(300 * MIB // 4)  # what this process had held before is not counted
    del held
    assert mib <= apart(LIMITS, holding, mib) / MIB < mib + 6


def test_what_is_too_large_or_too_slow_ends_alone() -> None:
    with pytest.raises(Ended, match="^takes more than 512 MiB$"):
        apart(LIMITS, holding, 600)
    assert apart(Limits(20), holding, 600) >= 600 * MIB
    start = time.perf_counter()
    with pytest.raises(Ended, match="^takes more than 0.2 s$"):
        apart(Limits(0.2), time.sleep, 30)
    assert time.perf_counter() - start < 5


def failing(error: BaseException) -> None:
    raise error


def test_what_goes_wrong_is_said() -> None:
    with pytest.raises(ValueError, match="^position 9 lies beyond$"):
        apart(LIMITS, failing, ValueError("position 9 lies beyond"))
    with pytest.raises(Ended, match="^RuntimeError: no kernel$"):
        apart(LIMITS, failing, RuntimeError("no\nkernel"))
    with pytest.raises(Ended, match="^takes more memory than there is$"):
        apart(Limits(seconds=20), failing, MemoryError())
    with pytest.raises(Ended, match="^ended with exit code 3$"):
        apart(LIMITS, failing, SystemExit(3))
