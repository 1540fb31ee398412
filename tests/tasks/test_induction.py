"""The answer is what followed the last token where it occurred before."""

import itertools

import pytest

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.induction import Induction


def answer(task: Induction, tokens: list[int]) -> tuple[int, int]:
    """The answer and its distance, worked out from the tokens alone."""
    *haystack, cue = tokens
    assert haystack.count(cue) == 1
    at = haystack.index(cue) + 1
    return haystack[at], len(tokens) - 1 - at


def test_worked_example(diagram) -> None:
    task = Induction()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(8)
    value, distance = answer(task, rows["tokens"])
    assert distance == 4
    assert rows["targets"] == [IGNORE] * 8 + [value]


@pytest.mark.parametrize("types", [2, 3, 16])
def test_targets(types: int) -> None:
    task = Induction(types)
    for size in (4, 9, 50):
        batch = task.sample(stream("test", size), 100, size)
        for row, (tokens, targets) in enumerate(zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True)):
            value, distance = answer(task, tokens)
            assert targets == [IGNORE] * size + [value]
            assert batch.slices["distance"][row] == distance


def test_places_are_uniform() -> None:
    size, examples = 11, 5000
    distance = Induction().sample(stream("test"), examples, size).slices["distance"]
    counts = distance.bincount(minlength=size)
    assert counts[0] == 0 and len(counts) == size
    assert ((counts[1:] - examples / 10) ** 2 / (examples / 10)).sum() < 27.9  # chi-square's 0.1 % for 10 values


def test_every_example_is_equally_likely() -> None:
    """Of 4 tokens of 3 values: a cue, one of 3 places for it, and one of the 2 other values at each of the other 3."""
    examples = 21600
    tokens = Induction(types=3).sample(stream("test"), examples, 4).tokens_BT.tolist()
    counts: dict[tuple[int, ...], int] = {}
    for cue, place in itertools.product(range(3), range(3)):
        for others in itertools.product([value for value in range(3) if value != cue], repeat=3):
            counts[(*others[:place], cue, *others[place:], cue)] = 0
    for example in tokens:
        counts[tuple(example)] += 1
    assert len(counts) == 72
    expected = examples / 72
    # chi-square's 0.1 % for 72 values
    assert sum((count - expected) ** 2 / expected for count in counts.values()) < 113.6
