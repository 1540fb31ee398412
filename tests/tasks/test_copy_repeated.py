"""The symbol comes as often as it was given, or a multiple of that, and then it ends."""

import pytest

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.copy_repeated import CopyRepeated


def answers(task: CopyRepeated, tokens: list[int]) -> list[int]:
    """The targets of an example, worked out from its tokens alone."""
    given = tokens.index(task.sep) - 1
    symbol = tokens[1]
    assert tokens[0] == task.bos and 0 <= symbol < task.types
    assert tokens[1:] == [symbol] * given + [task.sep] + [symbol] * (task.times * given)
    found = [IGNORE] * (given + 1)
    written = 0
    for _ in tokens[given + 1 :]:
        found.append(symbol if written < task.times * given else task.sep)
        written += 1
    return found


def test_worked_example(diagram) -> None:
    task = CopyRepeated()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(4)
    assert rows["targets"] == answers(task, rows["tokens"])


@pytest.mark.parametrize("times", [1, 2, 3])
def test_targets(times: int) -> None:
    task = CopyRepeated(types=5, times=times)
    for size in (1, 2, 9, 33):
        batch = task.sample(stream("test", size), 50, size)
        for tokens, targets in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True):
            assert len(tokens) == task.length(size)
            assert targets == answers(task, tokens)
            assert targets.count(task.sep) == 1 and targets[size + 1 : -1] == tokens[size + 2 :]


def test_symbols_are_uniform() -> None:
    examples = 8000
    counts = CopyRepeated(types=8).sample(stream("test"), examples, 3).tokens_BT[:, 1].bincount(minlength=8)
    assert ((counts - examples / 8) ** 2 / (examples / 8)).sum() < 24.3  # chi-square's 0.1 % for 8 values


@pytest.mark.parametrize("times", [1, 2])
def test_chance_is_that_of_one_symbol_and_then_the_end(times: int) -> None:
    """Over all examples of a size, which are as many as there are symbols."""
    task, size = CopyRepeated(types=7, times=times), 5
    right = sum(times * size * (symbol == 3) + 1 for symbol in range(7))
    assert task.chance(size) == pytest.approx(right / (7 * (times * size + 1)), rel=1e-12)


def test_no_copy_is_refused() -> None:
    with pytest.raises(ValueError, match="^times must be at least 1, got 0$"):
        CopyRepeated(times=0)
