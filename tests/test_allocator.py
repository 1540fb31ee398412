import resource
import sys
from collections.abc import Callable

import pytest
import torch

from rpe_bench.allocator import keep_freed_memory
from rpe_bench.config import Config
from rpe_bench.model import build_model
from rpe_bench.profiling.apart import Limits, apart
from rpe_bench.train import Data, add_gradient

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="of glibc's malloc")

STEPS = 4


def faults_of_a_step(config: Config, keep: bool) -> float:
    """How many pages the kernel hands out a training step."""
    if keep:
        keep_freed_memory()
    model = build_model(config)
    batch = Data(config.build_task(), config.build_positions(), config.recipe, seed=0).batch(0)
    for step in range(2 * STEPS):
        if step == STEPS:  # malloc has settled
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        add_gradient(model, batch, config.recipe, torch.device("cpu"))
    return (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / STEPS


def test_what_a_step_frees_is_not_given_back_to_the_kernel(make_config: Callable[..., Config]) -> None:
    config = make_config(
        "copy", "rope", {"recipe.batch_size": 64, "recipe.train_length": 32, "recipe.lengths": "fixed"}
    )
    kept, given_back = (apart(Limits(seconds=60), faults_of_a_step, config, keep) for keep in (True, False))
    assert kept < given_back / 10, (kept, given_back)
