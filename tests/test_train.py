import math
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from support import encodings_for

from rpe_bench import catalogue
from rpe_bench.components import load_class
from rpe_bench.config import Config, Recipe
from rpe_bench.encodings.base import DistanceBias, Encoding
from rpe_bench.evaluate import loss_of
from rpe_bench.model import Transformer
from rpe_bench.run import build_model
from rpe_bench.schedule import learning_rate
from rpe_bench.seeds import stream, torch_stream
from rpe_bench.tasks.base import IGNORE, Batch
from rpe_bench.train import Data, Progress, add_gradient, make_optimiser, train

CPU = torch.device("cpu")


def data_of(config: Config) -> Data:
    return Data(config.build_task(), config.build_positions(), config.recipe, config.seed)


def same(one: Batch, other: Batch) -> bool:
    return torch.equal(one.tokens_BT, other.tokens_BT) and torch.equal(one.targets_BT, other.targets_BT)


def trained(config: Config, model: Transformer | None = None) -> tuple[Transformer, list[Progress]]:
    model = model or build_model(config)
    rows: list[Progress] = []
    train(config, config.build_task(), model, CPU, rows.append)
    return model, rows


# Data


def test_sizes_are_uniform_up_to_the_training_length(make_config) -> None:
    config = make_config("copy", overrides={"recipe.batch_size": 1, "recipe.train_length": 9})
    data = data_of(config)
    counts = Counter((data.batch(step).tokens_BT.shape[1] - 1) // 2 for step in range(1200))
    assert sorted(counts) == [4, 5, 6, 7, 8, 9]
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 20.5  # chi-square's 0.1 % for 6 values


def test_fixed_sizes(make_config) -> None:
    data = data_of(make_config("copy", overrides={"recipe.lengths": "fixed"}))
    assert {data.batch(step).tokens_BT.shape for step in range(20)} == {(8, 33)}


@pytest.mark.parametrize("task", catalogue.choices("task"))
def test_batches_are_a_function_of_seed_and_step(make_config, task: str) -> None:
    config = make_config(task, "nope")
    forwards, backwards = data_of(config), data_of(config)
    later = {step: backwards.batch(step) for step in reversed(range(6))}
    assert all(same(forwards.batch(step), later[step]) for step in range(6))
    assert not any(same(one, other) for one, other in pairwise(later.values()))
    assert not same(later[0], data_of(make_config(task, "nope", overrides={"seed": 1})).batch(0))


def test_streams_are_the_same_in_every_process() -> None:
    """Numbers that must never change: results made with another version would no longer compare."""
    assert [int(stream("train", 0, step).integers(1000)) for step in range(3)] == [429, 366, 387]
    assert int(stream("evaluation", "copy", 0, 16).integers(1000)) == 268
    drawn = [torch.randint(1000, (1,), generator=torch_stream("trunk", seed)) for seed in range(3)]
    assert [int(number) for number in drawn] == [132, 562, 754]


def test_two_encodings_see_the_same_batches(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: dict[str, list[Batch]] = {}
    for name in encodings_for("retrieval"):
        seen[name] = []

        def spy(model: Transformer, batch: Batch, name: str = name) -> torch.Tensor:
            seen[name].append(batch)
            return loss_of(model, batch)

        monkeypatch.setattr("rpe_bench.train.loss_of", spy)
        trained(make_config("retrieval", name))
    first, *others = seen.values()
    assert len(first) == 4
    for other in others:
        assert all(same(a, b) for a, b in zip(first, other, strict=True))


POSITIONS = [("copy", "randomised"), ("copy", "offset"), ("addition", "abacus"), ("adjacency_tutorial", "randomised")]


@pytest.mark.parametrize(("task", "positions"), POSITIONS)
def test_positions_are_a_function_of_seed_and_step_alone(make_config, task: str, positions: str) -> None:
    """Not of the encoding, nor of the steps before; and the examples are those that plain positions come with."""
    options = {"positions": catalogue.read("positions", positions)}
    data = {name: data_of(make_config(task, name, options)) for name in ("nope", "learned")}
    other, plain = data_of(make_config(task, "nope", options | {"seed": 1})), data_of(make_config(task, "nope"))
    later = {step: data["learned"].batch(step).positions for step in reversed(range(6))}
    drawn = set()
    for step in range(6):
        batch = data["nope"].batch(step)
        assert batch.positions is not None and torch.equal(batch.positions, later[step])
        assert same(batch, plain.batch(step)) and plain.batch(step).positions is None
        drawn |= {tuple(batch.positions.flatten()[:20].tolist())}
    assert len(drawn) == 6
    assert not torch.equal(later[0], other.batch(0).positions)


def test_the_model_is_trained_at_the_positions_drawn(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config("copy", "rope", {"positions": catalogue.read("positions", "randomised")})
    seen: list[Batch] = []

    def spy(model: Transformer, batch: Batch) -> torch.Tensor:
        seen.append(batch)
        return loss_of(model, batch)

    monkeypatch.setattr("rpe_bench.train.loss_of", spy)
    trained(config)
    data = data_of(config)
    assert len(seen) == 4
    for step, batch in enumerate(seen):
        assert torch.equal(batch.positions, data.batch(step).positions)
        assert torch.equal(batch.positions, config.build_positions().training(batch, stream("positions", 0, step)))


def test_an_epoch_visits_each_example_of_a_finite_set_once(make_config) -> None:
    """In batches of 8, 20 examples make epochs that end within a batch."""
    config = make_config("adjacency_tutorial", overrides={"task.training_examples": 20})
    data = data_of(config)
    examples = data.examples
    assert examples is not None and examples.tokens_BT.shape == (20, 8)
    number = {tuple(row): place for place, row in enumerate(examples.tokens_BT.tolist())}
    assert len(number) == 20
    visited = []
    for step in range(15):
        batch = data.batch(step)
        assert batch.readout_BP is not None and examples.readout_BP is not None
        for tokens, target, readout in zip(batch.tokens_BT, batch.targets_BT, batch.readout_BP, strict=True):
            place = number[tuple(tokens.tolist())]
            assert torch.equal(target, examples.targets_BT[place]) and torch.equal(readout, examples.readout_BP[place])
            visited.append(place)
    epochs = np.array(visited).reshape(6, 20)
    assert (np.sort(epochs) == np.arange(20)).all()
    assert len(np.unique(epochs, axis=0)) == 6


# Optimiser


def test_weight_decay_is_for_matrices_of_the_trunk(make_config) -> None:
    for name in encodings_for("copy"):
        model = build_model(make_config("copy", name))
        optimiser = make_optimiser(model, make_config(overrides={"recipe.weight_decay": 0.3}).recipe)
        decay = {id(p): group["weight_decay"] for group in optimiser.param_groups for p in group["params"]}
        assert sum(len(group["params"]) for group in optimiser.param_groups) == len(decay)
        expected = {}
        for module_name, module in model.named_modules():
            plain = module_name.startswith("encodings") or isinstance(module, torch.nn.LayerNorm)
            for key, parameter in module.named_parameters(recurse=False):
                expected[id(parameter)] = 0.0 if plain or key == "bias" else 0.3
        assert decay == expected


def test_rows_of_a_learned_table_out_of_reach_stay_as_drawn(make_config) -> None:
    config = make_config("copy", "learned", {"recipe.weight_decay": 0.5, "recipe.lr": 0.1})
    before, after = (model.encodings[0].table_LD for model in (build_model(config), trained(config)[0]))
    longest = max(data_of(config).batch(step).tokens_BT.shape[1] for step in range(config.recipe.steps))
    assert longest <= config.train_tokens == 33 < len(after) == 65
    changed = (before != after).any(dim=1)
    assert changed[:longest].all() and not changed[longest:].any()


def test_gradients_are_clipped(make_config) -> None:
    config = make_config(overrides={"recipe.grad_clip": 0.01, "recipe.log_every": 1})
    model, rows = trained(config)
    norm = torch.stack([p.grad.square().sum() for p in model.parameters()]).sum().sqrt()
    assert norm.item() == pytest.approx(0.01, rel=1e-3)
    assert all(row.grad_norm > 0.1 for row in rows)  # logged as they were


# The loop


def test_what_is_logged(make_config) -> None:
    config = make_config("copy", overrides={"recipe.steps": 5, "recipe.log_every": 2})
    data, model = data_of(config), build_model(config)
    _, rows = trained(config)
    _, each = trained(make_config("copy", overrides={"recipe.steps": 5, "recipe.log_every": 1}))
    assert [row.step for row in rows] == [2, 4, 5]
    assert [row.step for row in each] == [1, 2, 3, 4, 5]
    assert each[0].loss == pytest.approx(loss_of(model, data.batch(0)).item(), rel=1e-6)
    for field in ("loss", "grad_norm"):
        single = [getattr(row, field) for row in each]
        means = [np.mean(single[:2]), np.mean(single[2:4]), single[4]]
        assert [getattr(row, field) for row in rows] == pytest.approx(means, rel=1e-6)
    sizes = [data.batch(step).tokens_BT.numel() for step in range(5)]
    assert [row.tokens for row in rows] == [sum(sizes[:n]) for n in (2, 4, 5)]
    assert [row.lr for row in each] == pytest.approx([learning_rate(config.recipe, step) for step in range(5)])
    assert all(row.tokens_per_second > 0 for row in rows)


@pytest.mark.parametrize("optimiser", ["adamw", "adam", "sgd"])
def test_the_loop_by_hand(make_config, optimiser: str) -> None:
    """Each step: the gradient of its own batch, clipped, into the optimiser's formula at its own learning rate."""
    keys = {"grad_clip": 0.5, "weight_decay": 0.1, "optimiser": optimiser, "lr": 0.01, "warmup_steps": 1}
    config = make_config("copy", "t5", {f"recipe.{key}": value for key, value in keys.items()})
    recipe, data, model = config.recipe, data_of(config), build_model(config)
    decayed = {id(p) for n, p in model.named_parameters() if p.dim() > 1 and not n.startswith("encodings")}
    moments = [(torch.zeros_like(p), torch.zeros_like(p)) for p in model.parameters()]
    for step in range(recipe.steps):
        gradients = torch.autograd.grad(loss_of(model, data.batch(step)), list(model.parameters()))
        norm = torch.stack([g.square().sum() for g in gradients]).sum().sqrt()
        lr = learning_rate(recipe, step)
        with torch.no_grad():
            for p, g, (first, second) in zip(model.parameters(), gradients, moments, strict=True):
                decay = 0.1 if id(p) in decayed else 0
                g = g * min(1.0, 0.5 / norm.item())
                if optimiser != "adamw":  # of the loss plus decay / 2 times the squared weights
                    g = g + decay * p
                if optimiser == "sgd":
                    first.mul_(0.9).add_(g)
                    p -= lr * first
                    continue
                b1, b2 = recipe.betas
                first.lerp_(g, 1 - b1)
                second.lerp_(g.square(), 1 - b2)
                if optimiser == "adamw":
                    p.mul_(1 - lr * decay)
                p -= lr * (first / (1 - b1 ** (step + 1))) / ((second / (1 - b2 ** (step + 1))).sqrt() + 1e-8)
    for found, expected in zip(trained(config)[0].parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize("optimiser", ["adamw", "adam", "sgd"])
def test_every_optimiser_lowers_the_loss(make_config, optimiser: str) -> None:
    keys = {"recipe.optimiser": optimiser, "recipe.steps": 60, "recipe.log_every": 20, "recipe.lengths": "fixed"}
    _, rows = trained(make_config("copy_repeated", "rope", keys | {"recipe.lr": 0.1 if optimiser == "sgd" else 0.01}))
    assert rows[-1].loss < rows[0].loss - 0.3


# Gradient accumulation


def gradients(model: Transformer, batch: Batch, recipe: Recipe) -> tuple[float, list[torch.Tensor]]:
    model.zero_grad()
    loss = add_gradient(model, batch, recipe, CPU)
    return loss.item(), [torch.zeros_like(p) if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize(
    ("task", "positions"), [("copy", "plain"), ("copy", "randomised"), ("adjacency_tutorial", "plain")]
)
@pytest.mark.parametrize("accumulate", [2, 4, 8])
def test_micro_batches_add_up_to_the_gradient_of_the_whole(
    make_config, task: str, positions: str, accumulate: int
) -> None:
    """Though they differ in how many tokens are scored, and in one of them none is."""
    options = {"positions": catalogue.read("positions", positions)}
    config = make_config(task, "rope", options)
    batch = data_of(config).batch(1)
    targets_BT = batch.targets_BT.clone()
    targets_BT[0] = targets_BT[1] = IGNORE
    targets_BT[2, -3:] = IGNORE  # of the tutorial's one answer, nothing is left
    batch = replace(batch, targets_BT=targets_BT)
    model = build_model(config).double()
    whole, expected = gradients(model, batch, config.recipe)
    assert whole == pytest.approx(loss_of(model, batch).item(), rel=1e-6)
    parts, found = gradients(model, batch, make_config(task, "rope", {"recipe.accumulate": accumulate}).recipe)
    assert parts == pytest.approx(whole, rel=1e-6)
    # The loss is taken in float32, whatever the model is.
    largest = max(gradient.abs().max() for gradient in expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6 * float(largest))


def test_a_step_in_micro_batches_is_the_step_of_the_batch(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []

    def spy(model: Transformer, batch: Batch) -> torch.Tensor:
        sizes.append(len(batch))
        return loss_of(model, batch)

    monkeypatch.setattr("rpe_bench.train.loss_of", spy)
    keys = {"recipe.log_every": 1, "recipe.optimiser": "sgd", "recipe.lr": 0.1}  # Adam divides by gradients near 0
    whole, rows = trained(make_config("retrieval", "t5", keys))
    assert sizes == [8] * 4
    sizes.clear()
    parts, found = trained(make_config("retrieval", "t5", keys | {"recipe.accumulate": 4}))
    assert sizes == [2] * 16
    for one, other in zip(found, rows, strict=True):
        assert (one.step, one.tokens, one.lr) == (other.step, other.tokens, other.lr)
        assert (one.loss, one.grad_norm) == pytest.approx((other.loss, other.grad_norm), rel=1e-4)
    for one, other in zip(parts.parameters(), whole.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_training_twice_gives_the_same_bits(make_config) -> None:
    config = make_config("retrieval", "t5")
    one, other = (trained(config)[0].state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)
    start = build_model(config).state_dict()
    assert not any(torch.equal(one[name], start[name]) for name in one)


def test_a_small_set_is_learned_by_heart(make_config) -> None:
    keys = {"task.training_examples": 8, "recipe.steps": 80, "recipe.lr": 0.01}
    _, rows = trained(make_config("adjacency_tutorial", "rope", keys))
    assert rows[0].loss > 0.4
    assert rows[-1].loss < 0.05


def test_a_loss_that_is_not_finite_ends_the_run(make_config) -> None:
    config = make_config(overrides={"recipe.steps": 9, "recipe.log_every": 3})
    model = build_model(config)
    with torch.no_grad():
        model.answers.weight[0, 0] = math.nan
    with pytest.raises(FloatingPointError, match="loss is nan between steps 0 and 2"):
        trained(config, model)


def test_mixed_precision(make_config) -> None:
    results = {}
    for precision in ("fp32", "bf16-mixed"):
        keys = {"recipe.precision": precision, "recipe.log_every": 1}
        results[precision] = trained(make_config("copy", "rope", keys))
    model, rows = results["bf16-mixed"]
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    full = [row.loss for row in results["fp32"][1]]
    assert [row.loss for row in rows] == pytest.approx(full, rel=0.05)
    assert [row.loss for row in rows] != full


MIXED = [("grid_lookup" if name not in encodings_for("copy") else "copy", name) for name in catalogue.encodings()]


@pytest.mark.parametrize(("task", "encoding"), MIXED)
def test_every_encoding_trains_in_mixed_precision(
    make_config, monkeypatch: pytest.MonkeyPatch, task: str, encoding: str
) -> None:
    """Matrix products of the trunk in bfloat16; all that an encoding does in attention in float32."""
    config = make_config(task, encoding, {"recipe.precision": "bf16-mixed", "recipe.steps": 2, "recipe.log_every": 1})
    cls = load_class("encoding", config.encoding.target)
    seen: list[torch.dtype] = []

    def spied(method: Callable[..., object]) -> Callable[..., object]:
        def spy(encoding: Encoding, *given: object) -> object:
            assert not torch.is_autocast_enabled("cpu")
            found = method(encoding, *given)
            of_result = found if isinstance(found, tuple) else (found,)
            seen.extend(x.dtype for x in (*given, *of_result) if isinstance(x, torch.Tensor) and x.is_floating_point())
            return found

        return spy

    places = set(cls.changes()) - {"embed"}
    for place in places:
        monkeypatch.setattr(cls, place, spied(getattr(cls, place)))
    model = build_model(config)
    linear: set[torch.dtype] = set()
    for module in model.blocks.modules():
        if isinstance(module, torch.nn.Linear):
            module.register_forward_hook(lambda module, given, output: linear.add(output.dtype))
    _, rows = trained(config, model)
    assert linear == {torch.bfloat16}
    assert set(seen) <= {torch.float32}
    assert seen or not places or issubclass(cls, DistanceBias)  # which are asked by way of `of_offset`
    assert all(math.isfinite(row.loss) and math.isfinite(row.grad_norm) for row in rows)
    assert {tensor.dtype for p in model.parameters() for tensor in (p, p.grad) if tensor is not None} == {torch.float32}
    monkeypatch.undo()
    whole, expected = trained(make_config(task, encoding, {"recipe.steps": 2, "recipe.log_every": 1}))
    assert [row.loss for row in rows] == pytest.approx([row.loss for row in expected], rel=0.02)
    assert not torch.equal(model.tokens.weight, whole.tokens.weight)
