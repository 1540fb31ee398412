"""Every key is asked for once, and its value is the answer."""

import itertools
import re

import pytest
import torch

from rpe_bench.seeds import stream
from rpe_bench.tasks.associative_recall import AssociativeRecall
from rpe_bench.tasks.base import IGNORE


def answers(task: AssociativeRecall, tokens: list[int], size: int) -> list[int]:
    """The targets of an example, worked out from its tokens alone."""
    types = task.classes
    value_of: dict[int, int] = {}
    for key, value in zip(tokens[0 : 2 * size : 2], tokens[1 : 2 * size : 2], strict=True):
        assert types <= key < 2 * types and 0 <= value < types
        assert key not in value_of and value not in value_of.values()
        value_of[key] = value
    found = [IGNORE] * (2 * size)
    asked = []
    for at, token in enumerate(tokens[2 * size :]):
        if token >= types:
            assert at % 2 == 0
            asked.append(token)
        found.append(value_of[token] if token >= types else IGNORE)
    assert sorted(asked) == sorted(value_of)
    return found


def places(tokens: torch.Tensor, size: int) -> torch.Tensor:
    """At which place, from 0, each pair is asked for: (B, size)."""
    keys = tokens[:, 0 : 2 * size : 2]
    later = tokens[:, 2 * size :]
    return (keys[:, :, None] == later[:, None, :]).int().argmax(dim=2) // 2


def test_worked_example(diagram) -> None:
    task = AssociativeRecall()
    rows = diagram(task)
    assert len(rows["tokens"]) == task.length(3)
    assert rows["targets"] == answers(task, rows["tokens"], 3)


@pytest.mark.parametrize(("slots", "power"), [(1, 1.0), (3, 1.0), (7, 0.01), (2, 4.0)])
def test_targets(slots: int, power: float) -> None:
    task = AssociativeRecall(types=40, slots=slots, power=power)
    for size in (1, 2, 9, 40):
        batch = task.sample(stream("test", size), 50, size)
        for tokens, targets in zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True):
            assert len(tokens) == task.length(size)
            assert targets == answers(task, tokens, size)


def test_the_published_lengths() -> None:
    task = AssociativeRecall(slots=7, power=0.01)
    assert [task.length(pairs) for pairs in (4, 8, 16)] == [64, 128, 256]


@pytest.mark.parametrize("power", [0.01, 0.5, 1.0, 2.0])
def test_places_are_drawn_one_after_another(power: float) -> None:
    """Two pairs in four places: the probability of each two is that of the first, and of the second among the rest."""
    task, examples = AssociativeRecall(types=8, slots=2, power=power), 20000
    batch = task.sample(stream("test"), examples, 2)
    weights = [i ** (power - 1) for i in range(1, 5)]
    at = places(batch.tokens_BT, 2)
    counts = (at[:, 0] * 4 + at[:, 1]).bincount(minlength=16)
    statistic = 0.0
    for first, second in itertools.permutations(range(4), 2):
        probability = weights[first] / sum(weights) * weights[second] / (sum(weights) - weights[first])
        statistic += (int(counts[first * 4 + second]) - examples * probability) ** 2 / (examples * probability)
    assert statistic < 31.3  # chi-square's 0.1 % for 12 values


def test_values_are_uniform_at_every_pair_and_independent_of_the_keys() -> None:
    task, examples, size = AssociativeRecall(types=4), 16000, 3
    tokens = task.sample(stream("test"), examples, size).tokens_BT
    for pair in range(size):
        both = tokens[:, 2 * pair] % 4 * 4 + tokens[:, 2 * pair + 1]
        counts = both.bincount(minlength=16)
        assert ((counts - examples / 16) ** 2 / (examples / 16)).sum() < 37.7  # chi-square's 0.1 % for 16 values


def test_noise_is_uniform_over_the_values() -> None:
    task, examples = AssociativeRecall(types=4, slots=2), 4000
    batch = task.sample(stream("test"), examples, 3)
    later = batch.tokens_BT[:, 6:]
    noise = later[later < 4]
    assert len(noise) == examples * (12 - 3)
    counts = noise.bincount(minlength=4)
    assert ((counts - len(noise) / 4) ** 2 / (len(noise) / 4)).sum() < 16.3  # chi-square's 0.1 % for 4 values


def test_more_pairs_than_keys_are_refused() -> None:
    task = AssociativeRecall(types=6)
    task.sample(stream("test"), 2, 6)
    with pytest.raises(ValueError, match=re.escape("size 7 is too large: there are only 6 different keys (types)")):
        task.sample(stream("test"), 2, 7)


def test_the_default_reaches_eight_times_the_training_length() -> None:
    AssociativeRecall().check_size(8 * AssociativeRecall.default_train_length)


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("slots", 0, "at least 1, got 0"),
        ("power", 0.0, "above 0, got 0.0"),
        ("power", float("nan"), "above 0, got nan"),
    ],
)
def test_impossible_options_are_refused(option: str, value: float, said: str) -> None:
    with pytest.raises(ValueError, match=f"^{option} must be {said}$"):
        AssociativeRecall(**{option: value})
