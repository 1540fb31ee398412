"""Places of digits in their numbers, counted from the tokens before them."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rpe_bench.components import make_encoding
from rpe_bench.positions.abacus import Abacus
from rpe_bench.positions.base import Frame
from rpe_bench.seeds import stream
from rpe_bench.tasks.addition import Addition
from rpe_bench.tasks.base import Batch

FRAME = Frame((12,), (40,), digits=(0, 1, 2, 3, 4))


def by_loops(tokens: Tensor) -> list[list[int]]:
    rows = []
    for row in tokens.tolist():
        places, run = [], 0
        for token in row:
            run = run + 1 if token in FRAME.digits else 0
            places.append(run)
        rows.append(places)
    return rows


def test_worked_example() -> None:
    tokens = torch.tensor([[9, 1, 2, 7, 3, 3, 3, 8, 9, 0], [4, 4, 4, 4, 4, 4, 4, 4, 4, 4]])
    expected = [[0, 1, 2, 0, 1, 2, 3, 0, 0, 1], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]]
    assert Abacus(FRAME).evaluation(Batch(tokens, tokens), stream("test")).tolist() == expected == by_loops(tokens)


def test_places_by_loops(text) -> None:
    batch = text(50, 40)
    assert Abacus(FRAME).evaluation(batch, stream("test")).tolist() == by_loops(batch.tokens_BT)


def test_a_batch_is_shifted_as_a_whole_and_other_tokens_never(text) -> None:
    remap, rng, shifts = Abacus(FRAME, most=4), stream("test"), []
    batch = text(20, 12)
    places = remap.evaluation(batch, rng)
    for _ in range(2000):
        positions = remap.training(batch, rng)
        assert (positions[places == 0] == 0).all()
        [shift] = (positions - places)[places > 0].unique().tolist()
        shifts.append(shift)
    counts = torch.tensor(shifts).bincount()
    assert len(counts) == 5 and ((counts - 400) ** 2 / 400).sum() < 18.5  # chi-square's 0.1 % for 5 values


def test_a_place_depends_on_earlier_tokens_alone(text) -> None:
    remap, batch = Abacus(FRAME, most=9), text(20, 40)
    for draw in (remap.training, remap.evaluation):
        whole = draw(batch, stream("test"))
        for cut in (1, 7, 39):
            part = replace(batch, tokens_BT=batch.tokens_BT[:, :cut])
            assert torch.equal(draw(part, stream("test")), whole[:, :cut])


def test_digits_of_one_significance_share_a_position() -> None:
    task = Addition()
    size = 6
    batch = task.sample(stream("test"), 3, size)
    frame = Frame((task.length(size),), (task.length(size),), task.digits)
    positions = Abacus(frame).evaluation(batch, stream("test"))
    assert positions[0].tolist() == [*range(1, 7), 0, *range(1, 7), 0, *range(1, 7)]
    assert (positions == positions[0]).all()


def test_extents_hold_the_longest_number_and_the_largest_shift() -> None:
    for most, train, longest in ((0, 13, 41), (9, 22, 41), (99, 112, 112)):
        remap = Abacus(FRAME, most=most)
        assert (remap.train_extents, remap.max_extents) == ((train,), (longest,))
        all_digits = torch.zeros(1, 40, dtype=torch.int64)
        assert remap.evaluation(Batch(all_digits, all_digits), stream("test")).max() < longest


def test_with_a_learned_table_it_is_the_papers_embedding(text) -> None:
    """x_t <- x_t + E[place], and E[0] for what is no digit."""
    batch = text(3, 12)
    table = make_encoding("learned", dim=8, heads=2, train_length=12, max_length=41, causal=True)
    x = torch.randn(3, 12, 8)
    embedded = table.embed(x, Abacus(FRAME).evaluation(batch, stream("test")))
    for row, places in enumerate(by_loops(batch.tokens_BT)):
        for index, place in enumerate(places):
            assert torch.equal(embedded[row, index], x[row, index] + table.table_LD[place])


def test_a_task_without_digits_is_refused() -> None:
    with pytest.raises(ValueError, match="^counts the digits of numbers, but the task has none$"):
        Abacus(Frame((12,), (40,)))
    with pytest.raises(ValueError, match="^most=-1 must not be negative$"):
        Abacus(FRAME, most=-1)
