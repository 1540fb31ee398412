import ctypes
import resource
import sys
from collections.abc import Callable
from multiprocessing import get_context

import pytest
import torch

from rpe_bench.allocator import MMAP_THRESHOLD, TRIM_THRESHOLD, keep_freed_memory
from rpe_bench.config import Config
from rpe_bench.model import build_model
from rpe_bench.train import Data, add_gradient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="of glibc's malloc")

STEPS = 4


def faults_of_a_step(config: Config, keep: bool) -> float:
    """Pages that the kernel hands out a training step, in a process of its own."""

    def count() -> None:
        if keep:
            keep_freed_memory()
        else:  # earlier tests of this process may have had it keep
            for parameter in (TRIM_THRESHOLD, MMAP_THRESHOLD):
                ctypes.CDLL(None).mallopt(parameter, 128 * 2**10)
        model = build_model(config)
        batch = Data(config.build_task(), config.build_positions(), config.recipe, seed=0).batch(0)
        for step in range(2 * STEPS):
            if step == STEPS:  # malloc has settled
                before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
            add_gradient(model, batch, config.recipe, torch.device("cpu"))
        pipe.send((resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / STEPS)

    answer, pipe = get_context("fork").Pipe(duplex=False)
    process = get_context("fork").Process(target=count)
    process.start()
    faults = float(answer.recv())
    process.join()
    return faults


def test_what_a_step_frees_is_not_given_back_to_the_kernel(make_config: Callable[..., Config]) -> None:
    config = make_config(
        "copy", "rope", {"recipe.batch_size": 64, "recipe.train_length": 32, "recipe.lengths": "fixed"}
    )
    kept, given_back = (faults_of_a_step(config, keep) for keep in (True, False))
    assert kept < given_back / 10, (kept, given_back)
