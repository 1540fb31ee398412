"""Two positions that the input does not name, and answers as unbalanced as independent draws make them."""

import pytest
import torch

from rpe_bench.seeds import stream
from rpe_bench.tasks.adjacency_tutorial import AdjacencyTutorial


def test_worked_example(diagram) -> None:
    rows = diagram(AdjacencyTutorial())
    first, second = rows["readout"]
    assert len(rows["tokens"]) == AdjacencyTutorial().length(8)
    assert rows["targets"] == [int(abs(first - second) == 1)] == [1]


@pytest.mark.parametrize("size", [3, 8, 20])
def test_targets(size: int) -> None:
    batch = AdjacencyTutorial().sample(stream("test", size), 200, size)
    pairs = batch.readout_BP.tolist()
    for (first, second), target, distance in zip(
        pairs, batch.targets_BT.tolist(), batch.slices["distance"].tolist(), strict=True
    ):
        assert target == [1 if first + 1 == second or second + 1 == first else 0]
        assert distance == max(first, second) - min(first, second)


def test_positions_are_independent_and_may_coincide() -> None:
    size, examples = 8, 20000
    batch = AdjacencyTutorial().sample(stream("test"), examples, size)
    share = (batch.readout_BP[:, 0] * size + batch.readout_BP[:, 1]).bincount(minlength=size**2) / examples
    expected = 1 / size**2
    assert ((share - expected).abs() < 5 * (expected * (1 - expected) / examples) ** 0.5).all()


def test_the_majority_is_the_one_the_docstring_names() -> None:
    examples = 20000
    share = AdjacencyTutorial().sample(stream("test"), examples, 8).targets_BT.double().mean()
    assert abs(share - 14 / 64) < 5 * (14 / 64 * 50 / 64 / examples) ** 0.5


def test_the_tokens_say_nothing_of_the_question() -> None:
    batch = AdjacencyTutorial(types=4).sample(stream("test"), 20000, 8)
    asked = torch.zeros(20000, 8, dtype=torch.bool).scatter_(1, batch.readout_BP, True)
    for tokens in (batch.tokens_BT[asked], batch.tokens_BT[~asked]):
        share = tokens.bincount() / len(tokens)
        assert ((share - 0.25).abs() < 5 * (0.25 * 0.75 / len(tokens)) ** 0.5).all()


def test_training_set() -> None:
    assert AdjacencyTutorial().training_examples == 2000
    assert AdjacencyTutorial(training_examples=None).training_examples is None
    assert AdjacencyTutorial(training_examples=0).training_examples is None
    with pytest.raises(ValueError, match="^training_examples must be at least 1, .*, got -5$"):
        AdjacencyTutorial(training_examples=-5)
