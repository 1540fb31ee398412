"""The symbols come back from the least to the greatest."""

import itertools
import re

import pytest

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.sort import Sort


def answers(task: Sort, tokens: list[int]) -> list[int]:
    """The targets of an example, worked out from its tokens alone: the least that is greater than the last."""
    separator = tokens.index(task.sep)
    symbols = tokens[1:separator]
    assert tokens[0] == task.bos and len(set(symbols)) == len(symbols)
    assert all(0 <= symbol < task.classes for symbol in symbols)
    found = [IGNORE] * separator
    last = -1
    for _ in symbols:
        last = min(symbol for symbol in symbols if symbol > last)
        found.append(last)
    assert tokens[separator + 1 :] == found[separator:-1]
    return found


def test_worked_example(diagram) -> None:
    task = Sort()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(4)
    assert rows["targets"] == answers(task, rows["tokens"])


def test_targets() -> None:
    task = Sort(types=40)
    for size in (2, 9, 40):
        batch = task.sample(stream("test", size), 50, size)
        for tokens, targets in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True):
            assert len(tokens) == task.length(size)
            assert targets == answers(task, tokens)


def test_every_arrangement_is_equally_likely() -> None:
    task, examples = Sort(types=5), 12000
    counts = dict.fromkeys(itertools.permutations(range(5), 3), 0)
    for string in map(tuple, task.sample(stream("test"), examples, 3).tokens_BT[:, 1:4].tolist()):
        counts[string] += 1
    expected = examples / len(counts)
    # chi-square's 0.1 % for 60 values
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 98.3


@pytest.mark.parametrize(("types", "size"), [(2, 2), (5, 2), (6, 3), (7, 6), (9, 4), (10, 10), (12, 7)])
def test_chance_is_that_of_the_likeliest_symbol_at_each_place(types: int, size: int) -> None:
    """Over all sets of symbols."""
    sets = list(itertools.combinations(range(types), size))
    best = 0
    for place in range(size):
        column = [chosen[place] for chosen in sets]
        best += max(column.count(symbol) for symbol in range(types))
    assert Sort(types).chance(size) == pytest.approx(best / len(sets) / size, rel=1e-12)


def test_more_symbols_than_there_are_is_refused() -> None:
    task = Sort(types=6)
    task.sample(stream("test"), 2, 6)
    with pytest.raises(ValueError, match=re.escape("size 7 is too large: there are only 6 different symbols (types)")):
        task.sample(stream("test"), 2, 7)


def test_the_default_reaches_eight_times_the_training_length() -> None:
    Sort().check_size(8 * Sort.default_train_length)
