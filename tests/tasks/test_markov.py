"""What is drawn is the source's, and the floor is what its own probabilities say, by brute force."""

import csv
import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from rpe_bench.config import Config, ConfigError
from rpe_bench.evaluate import score
from rpe_bench.run import build_model, evaluate, examples_of, execute
from rpe_bench.seeds import stream
from rpe_bench.tasks.base import IGNORE, Batch
from rpe_bench.tasks.markov import RESOLUTION, Markov

SMALL = {"types": 3, "order": 3, "concentration": 0.5, "source_seed": 4}


def joint(task: Markov, length: int) -> dict[tuple[int, ...], float]:
    """The probability of every string, from the transitions alone: their matrix, and its eigenvector of 1."""
    V, k = task.classes, task.order
    strings = list(itertools.product(range(V), repeat=k))
    matrix = np.zeros((V**k, V**k))
    for number, string in enumerate(strings):
        for token in range(V):
            matrix[number, strings.index((*string[1:], token))] += task.source.counts_CV[number, token] / RESOLUTION
    values, vectors = np.linalg.eig(matrix.T)
    vector = vectors[:, np.argmin(abs(values - 1))].real
    probability = dict(zip(strings, vector / vector.sum(), strict=True))
    for _ in range(length - k):
        probability = {
            (*string, token): p * task.source.counts_CV[strings.index(string[-k:]), token] / RESOLUTION
            for string, p in probability.items()
            for token in range(V)
        }
    if length < k:
        shorter: dict[tuple[int, ...], float] = {}
        for string, p in probability.items():
            shorter[string[:length]] = shorter.get(string[:length], 0.0) + p
        return shorter
    return probability


def entropy(probabilities: dict[tuple[int, ...], float]) -> float:
    return -sum(p * math.log(p) for p in probabilities.values())


def test_worked_example(diagram) -> None:
    rows = diagram(Markov())
    assert len(rows["tokens"]) == Markov().length(6) and rows["targets"][:-1] == rows["tokens"][1:]


@pytest.mark.parametrize("options", [SMALL, {"types": 4, "order": 1}, {"types": 2, "order": 5}])
def test_conditional_entropies_by_brute_force(options: dict[str, float]) -> None:
    """H(x_n | x_0 .. x_n-1) as the difference of the entropies of strings of n + 1 and of n tokens."""
    task = Markov(**options)
    blocks = [0.0, *(entropy(joint(task, n)) for n in range(1, task.order + 4))]
    for known in range(task.order + 3):
        assert task.conditional_entropy(known) == pytest.approx(blocks[known + 1] - blocks[known], rel=1e-10)
    falling = [task.conditional_entropy(known) for known in range(task.order + 1)]
    assert all(one > other for one, other in itertools.pairwise(falling)) and falling[0] < math.log(task.classes)


def test_strings_occur_as_often_as_they_should() -> None:
    task, examples = Markov(**SMALL), 40_000
    batch = task.sample(stream("test"), examples, 7)
    text = torch.cat((batch.tokens_BT, batch.targets_BT[:, -1:]), 1)
    expected = joint(task, 4)
    for start in (0, 1, 4):
        number = (text[:, start : start + 4] * torch.tensor([27, 9, 3, 1])).sum(1)
        share = number.bincount(minlength=81) / examples
        for string, p in expected.items():
            at = sum(token * 3**power for power, token in enumerate(reversed(string)))
            assert abs(share[at] - p) < 5 * (p * (1 - p) / examples) ** 0.5


def test_ideal_loss_by_brute_force() -> None:
    """Minus the log of what a target's string has of the string before it, whatever comes before the example."""
    task = Markov(**SMALL)
    batch = task.sample(stream("test"), 20, 6)
    found = task.ideal_loss(batch)
    assert found.dtype == torch.float64 and found.shape == (20, 6)
    strings = [{}, *(joint(task, n) for n in range(1, 8))]
    for row, (tokens, targets) in enumerate(zip(batch.tokens_BT.tolist(), batch.targets_BT.tolist(), strict=True)):
        text = (*tokens, targets[-1])
        for t in range(6):
            expected = math.log(strings[t + 1][text[: t + 1]]) - math.log(strings[t + 2][text[: t + 2]])
            assert found[row, t] == pytest.approx(expected, rel=1e-9)
    # Of an end that is scored in part, what is before it is neither seen nor counted.
    end = task.ideal_loss(batch.ending(4, 3))
    alone = task.ideal_loss(Batch(batch.tokens_BT[:, 2:], batch.targets_BT[:, 2:]))
    assert (end[:, 0] == 0).all() and torch.equal(end[:, 1:], alone[:, 1:]) and (alone[:, 0] != 0).all()


def test_the_ideal_loss_tends_to_the_conditional_entropy() -> None:
    task, examples = Markov(), 20_000
    loss = task.ideal_loss(task.sample(stream("test"), examples, 8))
    for t in range(8):
        error = float(loss[:, t].std()) / examples**0.5
        assert abs(float(loss[:, t].mean()) - task.conditional_entropy(t + 1)) < 5 * error


def test_the_default_language_is_worth_learning() -> None:
    """Its last token alone says little of the next one; the last two say much."""
    task = Markov()
    assert task.conditional_entropy(1) > task.conditional_entropy(2) + 0.5
    assert task.conditional_entropy(2) == task.conditional_entropy(60)
    assert math.exp(task.conditional_entropy(2)) > 3


def test_sources_differ_by_seed_and_are_the_same_again() -> None:
    one, same, other = Markov(), Markov(source_seed=0), Markov(source_seed=1)
    assert np.array_equal(one.source.counts_CV, same.source.counts_CV)
    assert not np.array_equal(one.source.counts_CV, other.source.counts_CV)
    for task in (one, other, Markov(types=16, order=3), Markov(concentration=0.01)):
        assert (task.source.counts_CV.sum(1) == RESOLUTION).all() and task.source.counts_CV.min() >= 1
        assert task.source.stationary_C.sum() == pytest.approx(1, rel=1e-12)


def test_the_seed_of_a_run_does_not_change_the_language(make_config) -> None:
    one, other = (make_config("markov", "nope", {"seed": seed}) for seed in (0, 1))
    assert one.build_task().source is other.build_task().source
    assert make_config("markov", "nope", {"task.source_seed": 1}).run_id != one.run_id


def test_chance_is_the_most_frequent_token() -> None:
    task, examples = Markov(), 20_000
    counts = task.sample(stream("test"), examples, 10).targets_BT.flatten().bincount() / (10 * examples)
    assert float(counts.max()) == pytest.approx(task.chance(10), rel=0.02)


class Predictor(torch.nn.Module):
    """A language model of given probabilities: of each token, from the `known` tokens before it."""

    def __init__(self, task: Markov, known: int, noise: float) -> None:
        super().__init__()
        rng = np.random.default_rng(0)
        self.task, self.known = task, known
        surprise = task.source.surprises[known]
        self.logits = torch.from_numpy(noise * rng.standard_normal(surprise.shape) - surprise)

    def forward(self, tokens_BT: Tensor, positions: Tensor | None, asked_N: Tensor) -> Tensor:
        context = torch.zeros_like(tokens_BT)
        for back in range(self.known):
            context[:, back:] += tokens_BT[:, : tokens_BT.shape[1] - back] * self.task.classes**back
        return self.logits[context].flatten(0, 1)[asked_N]


def test_nothing_gets_below_the_floor() -> None:
    """Neither a predictor that knows less nor one that is off; the ideal one gets there."""
    task = Markov()
    batch = task.sample(stream("test"), 2000, 20)
    scored = batch.targets_BT[:, 1:]
    floor = task.ideal_loss(batch)[:, 1:].mean()

    def loss(known: int, noise: float) -> float:
        predictor = Predictor(task, known, noise)
        return float(score(predictor, batch, torch.device("cpu"))[0][:, 1:].sum() / scored.numel())

    assert loss(2, 0.0) == pytest.approx(float(floor), rel=1e-6)
    assert loss(2, 0.3) > floor + 0.01 and loss(1, 0.0) > floor + 0.5 and loss(0, 0.0) > floor + 0.5


# In a run


def rows(config: Config, table: str) -> list[dict[str, float]]:
    with (config.run_dir / f"{table}.csv").open() as file:
        return [{key: float(value) for key, value in row.items() if key != "split"} for row in csv.DictReader(file)]


@pytest.mark.parametrize("last", [None, 4])
def test_the_floor_of_a_run(make_config, last: int | None) -> None:
    keys = {"task.last": last, "evaluation.lengths": [6, 20], "recipe.train_length": 10, "evaluation.examples": 200}
    config = make_config("markov", "rope", keys)
    execute(config)
    task = config.build_task()
    for size in (6, 20):
        batch = examples_of(config, task, size)
        ideal, scored = task.ideal_loss(batch), batch.targets_BT != IGNORE
        (row,) = (row for row in rows(config, "floor") if row["length"] == size)
        mean = float(ideal[scored].mean())
        assert row == pytest.approx(
            {"length": size, "tokens": int(scored.sum()), "loss": mean, "perplexity": math.exp(mean)}
        )
        by_position = [row for row in rows(config, "floor_positions") if row["length"] == size]
        assert [row["position"] for row in by_position] == list(range(size) if last is None else range(size - 4, size))
        for row in by_position:
            mean = float(ideal[:, int(row["position"])].mean())
            assert row["loss"] == pytest.approx(mean) and row["perplexity"] == pytest.approx(math.exp(mean))
            assert row["tokens"] == 200
    # Beside the model's own, row by row.
    for floor, own in (("floor", "eval"), ("floor_positions", "positions")):
        pairs = list(zip(rows(config, floor), rows(config, own), strict=True))
        for best, got in pairs:
            assert all(best[key] == got[key] for key in ("length", "tokens", "position") if key in best)
            assert best["loss"] < got["loss"]


def test_all_sizes_end_in_the_same_tokens(make_config) -> None:
    keys = {"task.last": 4, "evaluation.lengths": [4, 12, 40], "recipe.train_length": 12}
    config = make_config("markov", "nope", keys)
    task = config.build_task()
    short, long = (examples_of(config, task, size) for size in (4, 40))
    assert torch.equal(short.tokens_BT, long.tokens_BT[:, -4:])
    assert torch.equal(short.targets_BT, long.targets_BT[:, -4:]) and (long.targets_BT[:, :-4] == IGNORE).all()
    # Without what is before them, the first of them are less certain.
    shorter, longer = (task.ideal_loss(batch)[:, -4:] for batch in (short, long))
    assert shorter[:, 0].mean() > longer[:, 0].mean() and torch.equal(shorter[:, 1:], longer[:, 1:])


def test_tasks_without_a_floor_have_no_such_tables(make_config) -> None:
    for name in ("copy", "bytes"):
        config = make_config(name, "nope")
        tables = evaluate(config, config.build_task(), build_model(config), torch.device("cpu"))
        assert not {"floor", "floor_positions"} & tables.keys()


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"types": 257}, "types must be at most 256, got 257"),
        ({"order": 0}, "order must be at least 1, got 0"),
        ({"order": 5}, r"types \*\* order must be at most 4096, got 8 \*\* 5"),
        ({"order": 10**9}, r"types \*\* order must be at most 4096, got 8 \*\* 1000000000"),
        ({"concentration": 0.0}, "concentration must be more than 0, got 0.0"),
        ({"source_seed": -1}, r"source_seed must be from 0 to 2\*\*32 - 1, got -1"),
        ({"last": 0}, "last must be at least 1, or null for all, got 0"),
    ],
)
def test_impossible_options_are_refused(make_config, options: dict[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        Markov(**options)
    with pytest.raises(ConfigError, match=f"^task=markov: {said}$"):
        make_config("markov", "nope", {f"task.{key}": value for key, value in options.items()})
