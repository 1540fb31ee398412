"""The sum comes out digit by digit, and a carry is followed as far as it goes."""

import pytest
import torch

from rpe_bench.seeds import stream
from rpe_bench.tasks.addition import Addition
from rpe_bench.tasks.base import IGNORE


def number(digits: list[int], base: int) -> int:
    return sum(digit * base**place for place, digit in enumerate(digits))


def answers(task: Addition, tokens: list[int]) -> tuple[list[int], int]:
    """The targets of an example and its longest carry chain, worked out from its tokens alone."""
    base, size = task.classes, tokens.index(task.plus)
    a, b = tokens[:size], tokens[size + 1 : 2 * size + 1]
    assert tokens[2 * size + 1] == task.equals and all(digit in task.digits for digit in a + b)
    total = number(a, base) + number(b, base)
    digits = [total // base**place % base for place in range(size + 1)]
    assert tokens[2 * size + 2 :] == digits[:-1]
    alive = longest = 0
    for x, y in zip(a, b, strict=True):
        alive = 1 if x + y >= base else alive + 1 if alive and x + y == base - 1 else 0
        longest = max(longest, alive)
    return [IGNORE] * (2 * size + 1) + digits, longest


def test_worked_example(diagram) -> None:
    task = Addition()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(4)
    assert (rows["targets"], 4) == answers(task, rows["tokens"])
    assert number(rows["tokens"][:4], 10) + number(rows["tokens"][5:9], 10) == 2647 + 7358 == 10005


@pytest.mark.parametrize("base", [2, 3, 10])
def test_targets(base: int) -> None:
    task = Addition(base)
    for size in (1, 2, 7, 40):
        batch = task.sample(stream("test", size), 200, size)
        chains = batch.slices["carry_chain"].tolist()
        for row in range(200):
            assert (batch.targets_BT[row].tolist(), chains[row]) == answers(task, batch.tokens_BT[row].tolist())


def test_a_target_is_the_next_token_wherever_there_is_one() -> None:
    batch = Addition().sample(stream("test"), 50, 6)
    assert torch.equal(batch.targets_BT[:, 13:-1], batch.tokens_BT[:, 14:])


def test_digits_are_uniform_at_every_place() -> None:
    task, examples, size = Addition(base=4), 4000, 5
    tokens = task.sample(stream("test"), examples, size).tokens_BT
    digits = torch.cat((tokens[:, :size], tokens[:, size + 1 : 2 * size + 1]), dim=1)
    share = (digits[:, :, None] == torch.arange(4)).double().mean(dim=0)
    assert ((share - 0.25).abs() < 5 * (0.25 * 0.75 / examples) ** 0.5).all()


@pytest.mark.parametrize(("base", "size"), [(2, 1), (2, 3), (3, 2), (10, 1)])
def test_chance_is_that_of_the_likeliest_digit_at_each_place(base: int, size: int) -> None:
    """Over all pairs of numbers."""
    totals = [a + b for a in range(base**size) for b in range(base**size)]
    best = 0.0
    for place in range(size + 1):
        digits = [total // base**place % base for total in totals]
        best += max(digits.count(digit) for digit in range(base)) / len(totals)
    assert Addition(base).chance(size) == pytest.approx(best / (size + 1), rel=1e-12)


def test_a_base_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="^base must be at least 2, got 1$"):
        Addition(base=1)
