"""The symbols come back in order, and no two of them are the same."""

import itertools
import re

import pytest

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.copy_unique import CopyUnique


def answers(task: CopyUnique, tokens: list[int]) -> list[int]:
    """The targets of an example, worked out from its tokens alone: a symbol is what followed the last one."""
    separator = tokens.index(task.sep)
    symbols = tokens[1:separator]
    assert len(set(symbols)) == len(symbols)
    found = [symbols[0]]
    for token in tokens[separator + 1 :]:
        assert token == found[-1]
        if token == task.next and task.times > 1:
            found.append(symbols[0])
        elif token == symbols[-1]:
            found.append(task.next)
        else:
            found.append(tokens[tokens.index(token) + 1])
    assert tokens[0] == task.bos
    return [IGNORE] * separator + found


@pytest.mark.parametrize("times", [1, 2])
def test_targets(times: int) -> None:
    task = CopyUnique(types=40, times=times)
    for size in (4, 9, 40):
        batch = task.sample(stream("test", size), 50, size)
        for tokens, targets in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True):
            assert len(tokens) == task.length(size)
            assert targets == answers(task, tokens)
            assert set(tokens[1 : size + 1]) <= set(range(40))


def test_worked_example(diagram) -> None:
    task = CopyUnique()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(4)
    assert rows["targets"] == answers(task, rows["tokens"])


def test_every_arrangement_is_equally_likely() -> None:
    task, examples = CopyUnique(types=5), 24000
    strings = map(tuple, task.sample(stream("test"), examples, 4).tokens_BT[:, 1:5].tolist())
    counts = dict.fromkeys(itertools.permutations(range(5), 4), 0)
    for string in strings:
        counts[string] += 1
    expected = examples / len(counts)
    # chi-square's 0.1 % for 120 values
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 172.4


def test_more_symbols_than_there_are_is_refused() -> None:
    task = CopyUnique(types=6)
    task.sample(stream("test"), 2, 6)
    with pytest.raises(ValueError, match=re.escape("size 7 is too large: there are only 6 different symbols (types)")):
        task.sample(stream("test"), 2, 7)


def test_the_default_reaches_eight_times_the_training_length() -> None:
    CopyUnique().check_size(8 * CopyUnique.default_train_length)
