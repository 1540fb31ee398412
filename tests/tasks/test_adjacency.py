"""Two marks, balanced answers, negatives over all distances, and nothing that gives the answer away but positions."""

import pytest
import torch

from rpe_bench.seeds import stream
from rpe_bench.tasks.adjacency import Adjacency
from rpe_bench.tasks.base import IGNORE


def answer(task: Adjacency, tokens: list[int]) -> tuple[int, int]:
    """The answer and the distance of the marks, worked out from the tokens alone."""
    first, second = (at for at, token in enumerate(tokens) if token == task.mark)
    assert [at for at, token in enumerate(tokens) if token == task.answer] == [len(tokens) - 1]
    return int(second == first + 1), second - first


def test_worked_example(diagram) -> None:
    task = Adjacency()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(6)
    assert answer(task, rows["tokens"]) == (1, 1)
    assert rows["targets"] == [IGNORE] * 6 + [1]


@pytest.mark.parametrize("size", [4, 9, 50])
def test_targets(size: int) -> None:
    task = Adjacency(types=5)
    batch = task.sample(stream("test", size), 50, size)
    for row, (tokens, targets) in enumerate(zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True)):
        neighbours, distance = answer(task, tokens)
        assert targets == [IGNORE] * size + [neighbours]
        assert batch.slices["distance"][row] == distance


def test_answers_are_balanced_in_every_batch() -> None:
    task = Adjacency()
    assert task.sample(stream("test"), 64, 24).targets_BT[:, -1].sum() == 32
    odd = {int(task.sample(stream("test", key), 7, 24).targets_BT[:, -1].sum()) for key in range(20)}
    assert odd == {3, 4}
    assert {int(task.sample(stream("test", key), 1, 24).targets_BT[0, -1]) for key in range(20)} == {0, 1}


def test_the_answer_is_independent_of_the_place_in_the_batch() -> None:
    task = Adjacency()
    answers = torch.stack([task.sample(stream("test", key), 8, 4).targets_BT[:, -1] for key in range(1000)]).double()
    assert ((answers.mean(dim=0) - task.chance(4)).abs() < 5 * (0.25 / 1000) ** 0.5).all()


def test_negatives_are_uniform_over_all_distances() -> None:
    size, examples = 12, 10000
    distance = Adjacency().sample(stream("test"), examples, size).slices["distance"]
    share = distance.bincount(minlength=size) / (examples / 2)
    assert share[:2].tolist() == [0, 1] and len(share) == size
    assert ((share[2:] - 0.1).abs() < 5 * (0.1 * 0.9 / (examples / 2)) ** 0.5).all()


@pytest.mark.parametrize("distance", [1, 2, 4, 5])
def test_places_are_uniform_given_the_distance(distance: int) -> None:
    task, size = Adjacency(), 6
    batch = task.sample(stream("test"), 10000, size)
    rows = batch.slices["distance"] == distance
    first = (batch.tokens_BT[rows] == task.mark).int().argmax(dim=1)
    share, places = first.bincount() / rows.sum(), size - distance
    assert len(share) == places
    assert ((share - 1 / places).abs() <= 5 * (1 / places * (1 - 1 / places) / rows.sum()) ** 0.5).all()


def test_a_bag_of_tokens_does_not_tell_the_answer() -> None:
    task, size, examples = Adjacency(types=5), 8, 10000
    batch = task.sample(stream("test"), examples, size)
    counts = torch.nn.functional.one_hot(batch.tokens_BT, task.vocabulary).sum(dim=1).double()
    assert (counts[:, task.mark] == 2).all() and (counts[:, task.answer] == 1).all()
    # The rest are size - 2 independent draws under either answer: equal means, and equal means of products of counts.
    content, answers = counts[:, : task.types], batch.targets_BT[:, -1]
    moments = torch.cat([content, (content[:, :, None] * content[:, None, :]).flatten(1)], dim=1)
    no, yes = moments[answers == 0], moments[answers == 1]
    error = (no.var(dim=0) / len(no) + yes.var(dim=0) / len(yes)).sqrt()
    assert ((no.mean(dim=0) - yes.mean(dim=0)).abs() < 5 * error).all()
