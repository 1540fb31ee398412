"""What holds for every task: each file of conf/task is enrolled by being there."""

import importlib
import inspect
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml

from rpe_bench import catalogue
from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE, Batch, Task
from rpe_bench.tasks.bytes import Bytes
from rpe_bench.tasks.copy_repeated import CopyRepeated
from rpe_bench.tasks.majority import Majority
from rpe_bench.tasks.parity import Parity

FILES = sorted((Path(__file__).parents[2] / "conf" / "task").glob("*.yaml"))
PROPERTIES = {"absolute index", "relative offset", "content match", "recency", "counting"}
FEW = (CopyRepeated, Majority, Parity)
"""Some examples of these are likely enough to occur twice in a batch: one a symbol, or strings of one bit alone."""


def build(file: Path) -> Task:
    options = yaml.safe_load(file.read_text())
    assert options.pop("name") == file.stem
    module, _, name = options.pop("target").rpartition(".")
    return getattr(importlib.import_module(module), name)(**options)


@pytest.fixture(params=FILES, ids=lambda file: file.stem)
def file(request: pytest.FixtureRequest) -> Path:
    return request.param


@pytest.fixture
def task(file: Path) -> Task:
    return build(file)


def tensors(batch: Batch) -> dict[str, torch.Tensor]:
    parts = {"tokens": batch.tokens_BT, "targets": batch.targets_BT, **batch.slices}
    optional = {"positions": batch.positions, "readout": batch.readout_BP}
    return parts | {name: part for name, part in optional.items() if part is not None}


def same(one: Batch, other: Batch) -> bool:
    a, b = tensors(one), tensors(other)
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


def test_a_batch_is_what_it_says(task: Task) -> None:
    for size in (*task.sizes(task.default_train_length)[:2], task.default_train_length, 8 * task.default_train_length):
        batch = task.sample(stream("test", size), 7, size)
        assert len(batch) == 7
        assert batch.tokens_BT.shape == (7, task.length(size))
        assert all(part.dtype == torch.int64 for part in tensors(batch).values())
        assert 0 <= batch.tokens_BT.min() and batch.tokens_BT.max() < task.vocabulary
        scored = batch.targets_BT[batch.targets_BT != IGNORE]
        assert 0 <= scored.min() and scored.max() < task.classes
        assert (batch.targets_BT != IGNORE).any(dim=1).all()
        assert all(values.shape == (7,) for values in batch.slices.values())
        if batch.readout_BP is None:
            assert batch.targets_BT.shape == batch.tokens_BT.shape
        else:
            assert batch.targets_BT.shape == (7, 1)
            assert 0 <= batch.readout_BP.min() and batch.readout_BP.max() < task.length(size)


def test_examples_are_a_function_of_the_generator(task: Task, file: Path) -> None:
    size = task.default_train_length
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    first = task.sample(stream("train", 3, 5), 64, size)
    task.sample(stream("train", 3, 6), 64, size)
    assert same(first, task.sample(stream("train", 3, 5), 64, size))
    assert same(first, build(file).sample(stream("train", 3, 5), 64, size))
    assert np.array_equal(before[0], np.random.get_state()[1]) and torch.equal(before[1], torch.get_rng_state())
    for key in (("train", 4, 5), ("train", 3, 6), ("evaluation", 3, 5)):
        other = task.sample(stream(*key), 64, size)
        assert not torch.equal(first.tokens_BT, other.tokens_BT)


def test_examples_of_a_batch_differ(task: Task) -> None:
    batch = task.sample(stream("test"), 64, task.default_train_length)
    different = len(batch.tokens_BT.unique(dim=0))
    assert different > 20 if isinstance(task, FEW) else different == 64


def test_every_token_and_every_answer_occurs(task: Task) -> None:
    batch = task.sample(stream("test"), 2000, task.default_train_length)
    if isinstance(task, Bytes):  # no text has to hold every byte that there is
        printable = set(range(32, 127))
        assert printable <= set(batch.tokens_BT.unique().tolist()) & set(batch.targets_BT.unique().tolist())
        return
    assert batch.tokens_BT.unique().tolist() == list(range(task.vocabulary))
    assert batch.targets_BT[batch.targets_BT != IGNORE].unique().tolist() == list(range(task.classes))


def test_impossible_sizes_are_refused(task: Task) -> None:
    for size in (task.min_size - 1, 0, -1):
        with pytest.raises(ValueError, match=f"^size {size} .*{task.min_size}$"):
            task.sample(stream("test"), 2, size)


def test_the_yaml_shows_every_option(file: Path) -> None:
    options = yaml.safe_load(file.read_text())
    module = options["target"].split(".")[-2]
    defaults = {name: option.default for name, option in inspect.signature(type(build(file))).parameters.items()}
    shown = {name: value for name, value in options.items() if name not in ("name", "target")}
    assert shown.keys() == defaults.keys()
    # A file of another name than its class's is there for the options in which it differs.
    assert (shown == defaults) == (file.stem == module)


def test_the_list_names_the_property(file: Path, task: Task) -> None:
    assert catalogue.summary("task", file.stem).endswith(f" [{task.isolates}]")


def test_declarations(task: Task) -> None:
    assert task.isolates in PROPERTIES
    assert task.causal in (True, False, None)
    assert task.min_size <= task.default_train_length // 2  # half the training length is evaluated
    assert 0 < task.chance(task.default_train_length) < 1


def test_one_answer_is_refused(task: Task) -> None:
    for option in {"types", "base"} & inspect.signature(type(task)).parameters.keys():
        with pytest.raises(ValueError, match=f"^{option} must be at least 2, got 1$"):
            type(task)(**{option: 1})


def test_sampling_is_quick(task: Task) -> None:
    seconds = []
    for step in range(30):
        rng = stream("train", 0, step)
        start = time.process_time()
        task.sample(rng, 64, task.default_train_length)
        seconds.append(time.process_time() - start)
    # The best of many, since others may share the machine. A training step takes more than 20 times as long.
    assert min(seconds) < 1e-3
