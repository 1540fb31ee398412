"""The answer is the more frequent bit; ties do not occur, and every other number of ones is equally likely."""

import math

import pytest

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.majority import Majority


def answer(task: Majority, tokens: list[int]) -> tuple[int, int]:
    """The answer and the margin, worked out from the tokens alone."""
    first, *bits, last = tokens
    assert (first, last) == (task.bos, task.sep)
    zeros, ones = bits.count(0), bits.count(1)
    assert zeros + ones == len(bits) and zeros != ones
    return (1, ones - zeros) if ones > zeros else (0, zeros - ones)


def test_worked_example(diagram) -> None:
    task = Majority()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(6)
    bit, margin = answer(task, rows["tokens"])
    assert margin == 2
    assert rows["targets"] == [IGNORE] * 7 + [bit]


@pytest.mark.parametrize("size", [1, 2, 9, 50])
def test_targets(size: int) -> None:
    task = Majority()
    batch = task.sample(stream("test", size), 100, size)
    for row, (tokens, targets) in enumerate(zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True)):
        bit, margin = answer(task, tokens)
        assert len(tokens) == task.length(size)
        assert targets == [IGNORE] * (size + 1) + [bit]
        assert batch.slices["margin"][row] == margin


@pytest.mark.parametrize("size", [3, 4])
def test_the_number_of_ones_is_uniform_but_for_ties_and_so_are_their_places(size: int) -> None:
    examples = 24000
    bits = Majority().sample(stream("test"), examples, size).tokens_BT[:, 1:-1]
    counts = (bits * bits.new_tensor([8, 4, 2, 1][-size:])).sum(dim=1).bincount(minlength=2**size).tolist()
    statistic = 0.0
    for string, count in enumerate(counts):
        if 2 * string.bit_count() == size:
            assert count == 0
            continue
        expected = examples / 4 / math.comb(size, string.bit_count())  # 0, 1, 2, 3 and 0, 1, 3, 4
        statistic += (count - expected) ** 2 / expected
    assert statistic < (24.3 if size == 3 else 27.9)  # chi-square's 0.1 % for 8 and for 10 values


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_both_answers_are_equally_likely(size: int) -> None:
    possible = [2 * ones > size for ones in range(size + 1) if 2 * ones != size]
    assert Majority().chance(size) == sum(possible) / len(possible)
