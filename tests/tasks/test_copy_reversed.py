"""The symbols come back from the last to the first."""

import pytest
import torch

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.copy import Copy
from rpe_bench.tasks.copy_reversed import CopyReversed


def answers(task: CopyReversed, tokens: list[int]) -> list[int]:
    """The targets of an example, worked out from its tokens alone: the indices of an answer and of where it is read
    sum to 2n + 2."""
    separator = tokens.index(task.sep)
    found = [IGNORE] * separator
    for at in range(separator, 2 * separator - 1):
        found.append(tokens[2 * separator - 1 - at])
    once = found[separator:]
    for _ in range(task.times - 1):
        found += [task.next, *once]
    assert tokens[separator + 1 :] == found[separator:-1]
    assert tokens[0] == task.bos
    return found


@pytest.mark.parametrize("times", [1, 2])
def test_targets(times: int) -> None:
    task = CopyReversed(types=5, times=times)
    for size in (4, 9, 33):
        batch = task.sample(stream("test", size), 50, size)
        for tokens, targets in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True):
            assert len(tokens) == task.length(size)
            assert targets == answers(task, tokens)


def test_worked_example(diagram) -> None:
    task = CopyReversed()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(4)
    assert rows["targets"] == answers(task, rows["tokens"])


def test_the_strings_are_those_of_copy() -> None:
    one, other = (task.sample(stream("test"), 20, 9).tokens_BT[:, :11] for task in (Copy(), CopyReversed()))
    assert torch.equal(one, other)
