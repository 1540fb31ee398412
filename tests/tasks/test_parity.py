"""The answer is whether the ones are even or odd in number, and every number of them is equally likely."""

import math

import pytest

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.parity import Parity


def answer(task: Parity, tokens: list[int]) -> tuple[int, int]:
    """The answer and the number of ones, worked out from the tokens alone."""
    first, *bits, last = tokens
    assert (first, last) == (task.bos, task.sep)
    odd = ones = 0
    for bit in bits:
        assert bit in (0, 1)
        odd ^= bit
        ones += bit
    return odd, ones


def test_worked_example(diagram) -> None:
    task = Parity()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(6)
    odd, ones = answer(task, rows["tokens"])
    assert ones == 3
    assert rows["targets"] == [IGNORE] * 7 + [odd]


@pytest.mark.parametrize("size", [1, 2, 9, 50])
def test_targets(size: int) -> None:
    task = Parity()
    batch = task.sample(stream("test", size), 100, size)
    for row, (tokens, targets) in enumerate(zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True)):
        odd, ones = answer(task, tokens)
        assert len(tokens) == task.length(size)
        assert targets == [IGNORE] * (size + 1) + [odd]
        assert batch.slices["ones"][row] == ones


def test_the_number_of_ones_is_uniform_and_so_are_their_places() -> None:
    size, examples = 5, 24000
    bits = Parity().sample(stream("test"), examples, size).tokens_BT[:, 1:-1]
    counts = (bits * bits.new_tensor([16, 8, 4, 2, 1])).sum(dim=1).bincount(minlength=32).tolist()
    statistic = 0.0
    for string, count in enumerate(counts):
        expected = examples / (size + 1) / math.comb(size, string.bit_count())
        statistic += (count - expected) ** 2 / expected
    assert statistic < 61.1  # chi-square's 0.1 % for 32 values


@pytest.mark.parametrize("size", [1, 2, 7, 8])
def test_chance_is_that_of_the_likelier_answer(size: int) -> None:
    odd = [ones % 2 for ones in range(size + 1)]
    assert Parity().chance(size) == max(odd.count(0), odd.count(1)) / len(odd)
