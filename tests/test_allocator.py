import resource
import sys
from multiprocessing import get_context

import pytest
import torch

from rpe_bench.allocator import keep_freed_memory

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="of glibc's malloc")


STEPS, TENSORS, ELEMENTS = 10, 8, 2**21


def faults_of_steps(keep: bool) -> int:
    """Pages that the kernel hands out while tensors of 8 MiB are made and freed again, step after step."""

    def count() -> None:
        if keep:
            keep_freed_memory()
        for step in range(2 * STEPS):
            if step == STEPS:  # malloc has settled
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            tensors = [torch.empty(ELEMENTS).fill_(1) for _ in range(TENSORS)]
            del tensors
        pipe.send(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

    answer, pipe = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=count)
    process.start()
    faults = int(answer.recv())
    process.join()
    return faults


def test_what_a_step_frees_is_not_given_back_to_the_kernel() -> None:
    of_all_steps = STEPS * TENSORS * ELEMENTS * 4 // resource.getpagesize()
    assert faults_of_steps(keep=True) < of_all_steps / 10
    assert faults_of_steps(keep=False) > of_all_steps / 2
