"""The answer is the value after the mark, wherever the mark is."""

import pytest
import torch

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.retrieval import Retrieval


def answer(task: Retrieval, tokens: list[int]) -> tuple[int, int]:
    """The answer and its distance, worked out from the tokens alone."""
    assert tokens.count(task.mark) == 1
    assert [at for at, token in enumerate(tokens) if token == task.query] == [len(tokens) - 1]
    at = tokens.index(task.mark) + 1
    assert 0 <= tokens[at] < task.classes
    return tokens[at], len(tokens) - 1 - at


def test_worked_example(diagram) -> None:
    task = Retrieval()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(8)
    value, distance = answer(task, rows["tokens"])
    assert distance == 4
    assert rows["targets"] == [IGNORE] * 8 + [value]


@pytest.mark.parametrize("depth", [None, 0, 0.3, 1])
def test_targets(depth: float | None) -> None:
    task = Retrieval(types=5, depth=depth)
    for size in (4, 9, 50):
        batch = task.sample(stream("test", size), 50, size)
        for row, (tokens, targets) in enumerate(zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True)):
            value, distance = answer(task, tokens)
            assert targets == [IGNORE] * size + [value]
            assert batch.slices["distance"][row] == distance


def test_places_are_uniform() -> None:
    size, examples = 11, 5000
    distance = Retrieval().sample(stream("test"), examples, size).slices["distance"]
    share = distance.bincount(minlength=size) / examples
    assert share[0] == 0 and len(share) == size
    assert ((share[1:] - 0.1).abs() < 5 * (0.1 * 0.9 / examples) ** 0.5).all()


@pytest.mark.parametrize(("depth", "distance"), [(0, 10), (0.5, 6), (0.52, 5), (1, 1)])
def test_depth_fixes_the_place(depth: float, distance: int) -> None:
    # 11 tokens: the mark is at place 0 .. 9, the value one later, QUERY at 11; place round(4.5) is the even one.
    batch = Retrieval(depth=depth).sample(stream("test"), 20, 11)
    assert batch.slices["distance"].tolist() == [distance] * 20


def test_haystacks_are_the_same_at_every_depth() -> None:
    early, late = (Retrieval(depth=depth).sample(stream("test"), 20, 30).tokens_BT for depth in (0, 1))
    assert torch.equal(early[:, 1:28], late[:, 1:28])


def test_the_value_looks_like_any_other() -> None:
    task, size, examples = Retrieval(types=4), 10, 5000
    batch = task.sample(stream("test"), examples, size)
    share = batch.targets_BT[:, -1].bincount() / examples
    assert ((share - task.chance(size)).abs() < 5 * (0.25 * 0.75 / examples) ** 0.5).all()
    # How often the answer occurs elsewhere is as chance has it: size - 2 other values, each equal to it or not.
    others = (batch.tokens_BT == batch.targets_BT[:, -1:]).sum(dim=1) - 1
    mean, variance = (size - 2) / 4, (size - 2) * 3 / 16
    assert abs(others.double().mean() - mean) < 5 * (variance / examples) ** 0.5


@pytest.mark.parametrize("depth", [-0.1, 1.5, float("nan")])
def test_impossible_depth_is_refused(depth: float) -> None:
    with pytest.raises(ValueError, match=f"^depth must be from 0 to 1, or null for all places, got {depth}$"):
        Retrieval(depth=depth)
