"""The answer is the token that stands as far left of the mark as the query says."""

import re

import pytest

from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE
from rpe_bench.tasks.indirect_lookup import IndirectLookup


def answer(task: IndirectLookup, tokens: list[int]) -> tuple[int, int, int]:
    """The answer, its offset from the mark and its distance from the query, worked out from the tokens alone."""
    assert tokens.count(task.mark) == 1
    offset = tokens[-1] - task.mark
    assert 1 <= offset <= task.reach
    at = tokens.index(task.mark) - offset
    assert at >= 0 and all(0 <= token <= task.mark for token in tokens[:-1])
    return tokens[at], offset, len(tokens) - 1 - at


def test_worked_example(diagram) -> None:
    task = IndirectLookup()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(8)
    value, offset, distance = answer(task, rows["tokens"])
    assert (offset, distance) == (3, 6)
    assert rows["targets"] == [IGNORE] * 8 + [value]


@pytest.mark.parametrize("reach", [1, 3, 8])
def test_targets(reach: int) -> None:
    task = IndirectLookup(types=5, reach=reach)
    for size in (9, 20, 50):
        batch = task.sample(stream("test", size), 100, size)
        for row, (tokens, targets) in enumerate(zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True)):
            value, offset, distance = answer(task, tokens)
            assert targets == [IGNORE] * size + [value]
            assert (batch.slices["offset"][row], batch.slices["distance"][row]) == (offset, distance)


def test_offsets_are_uniform_and_so_are_places_given_the_offset() -> None:
    task, size, examples = IndirectLookup(reach=3), 7, 24000
    tokens = task.sample(stream("test"), examples, size).tokens_BT
    offset = tokens[:, -1] - task.mark
    place = (tokens[:, :-1] == task.mark).int().argmax(dim=1)
    for k in range(1, 4):
        counts = place[offset == k].bincount(minlength=size)
        expected = examples / 3 / (size - k)
        assert counts[:k].sum() == 0
        statistic = ((counts[k:] - expected) ** 2 / expected).sum()
        assert statistic < 20.5  # chi-square's 0.1 % for 6 values, of which there are at most so many


def test_the_answer_is_uniform_and_looks_like_any_other() -> None:
    task, size, examples = IndirectLookup(types=4), 10, 8000
    batch = task.sample(stream("test"), examples, size)
    answers = batch.targets_BT[:, -1]
    counts = answers.bincount(minlength=4)
    assert ((counts - examples / 4) ** 2 / (examples / 4)).sum() < 16.3  # chi-square's 0.1 % for 4 values
    # How often it occurs elsewhere is as chance has it: size - 2 other values, each equal to it or not.
    others = (batch.tokens_BT[:, :-1] == answers[:, None]).sum(dim=1) - 1
    assert abs(others.double().mean() - (size - 2) / 4) < 5 * ((size - 2) * 3 / 16 / examples) ** 0.5


def test_sizes_within_reach_are_refused_and_not_trained_on() -> None:
    task = IndirectLookup(reach=6)
    assert task.sizes(9) == range(7, 10)
    task.sample(stream("test"), 2, 7)
    said = "size 6 is too small: 6 places left of the mark (reach) need one more"
    with pytest.raises(ValueError, match=f"^{re.escape(said)}$"):
        task.sample(stream("test"), 2, 6)


def test_no_reach_is_refused() -> None:
    with pytest.raises(ValueError, match="^reach must be at least 1, got 0$"):
        IndirectLookup(reach=0)
