"""Everything runs on a device other than the CPU, as far as can be told without one: nothing mixes the two.

pytest tests/test_device.py
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from simulated_gpu import OnGPU, back, simulated_gpu
from support import Case, cases, indices, setting, tokens_of
from torch import Tensor

from rpe_bench import attention, catalogue
from rpe_bench.config import Config
from rpe_bench.encodings.base import Context, DistanceBias
from rpe_bench.evaluate import score
from rpe_bench.model import Transformer, build_model
from rpe_bench.run import evaluate
from rpe_bench.tasks.base import Batch
from rpe_bench.train import State, add_gradient, make_optimiser, train

MakeConfig = Callable[..., Config]
SIZES = {"dim": 16, "heads": 2, "layers": 2}
VOCABULARY = 64


# The simulation itself


def test_a_device_of_its_own_with_numbers_of_its_own() -> None:
    with simulated_gpu() as device:
        x = torch.arange(6.0).to(device).unflatten(0, (2, 3))
        assert isinstance(x, OnGPU) and x.device == device and x.dtype == torch.float32
        assert isinstance(torch.zeros(2, device=device), OnGPU) and isinstance(torch.zeros_like(x), OnGPU)
        assert float(x.sum()) == 15 and x[1, 2].item() == 5 and bool((x > -1).all())
        assert type(x.cpu()) is Tensor and x.tolist() == [[0, 1, 2], [3, 4, 5]]
        view = x[:, 1:]
        view += 10
        assert back(x).tolist() == [[0, 11, 12], [3, 14, 15]] and view.stride() == (3, 1)
        weight = torch.nn.Parameter(torch.ones(3).to(device))
        (x @ weight).sum().backward()
        assert isinstance(weight.grad, OnGPU) and back(weight.grad).tolist() == [3, 25, 27]


def test_what_a_gpu_refuses_is_refused() -> None:
    with simulated_gpu() as device:
        x = torch.ones(3, device=device)
        assert back(x * torch.tensor(2.0)).tolist() == [2, 2, 2]  # a number may come from anywhere
        for wrong in (
            lambda: x + torch.ones(3),
            lambda: torch.ones(2, 3) @ x,
            lambda: x[torch.tensor([0, 1])].index_add(0, torch.tensor([0]), torch.ones(1)),
            lambda: torch.cat((x, torch.ones(1))),
            lambda: torch.where(x > 0, x, torch.zeros(3)),
        ):
            with pytest.raises(RuntimeError, match="same device"):
                wrong()
        with pytest.raises(RuntimeError, match="generator"):
            x.normal_(generator=torch.Generator())
        with pytest.raises(Exception, match="numpy|Numpy|NumPy"):
            x.numpy()


# All of it on such a device


def model_of(case: Case, longest: int) -> Transformer:
    encodings = case.encodings(**SIZES, train_length=40, max_length=longest)
    model = Transformer(**SIZES, vocabulary=VOCABULARY, classes=VOCABULARY, causal=case.causal, encodings=encodings)
    model.reset_parameters(0)
    return model


def batch_of(model: Transformer, length: int, examples: int) -> Batch:
    tokens = tokens_of(length, examples)
    return Batch(tokens, tokens.roll(1, 1), indices(model.encodings[0], length, examples))


@pytest.mark.parametrize("case", cases(), ids=str)
def test_every_encoding_trains_and_is_evaluated(
    case: Case, make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the CPU, from the same weights; evaluation of more tokens than a block of a mask has, or than a chunk."""
    recipe = make_config("copy", "nope").recipe
    length = 1100 if issubclass(case.cls, DistanceBias) else 40
    monkeypatch.setattr(attention, "CHUNK_ELEMENTS", SIZES["heads"] * length * (length // 3))

    def observe(device: torch.device) -> tuple[list[Tensor], Tensor]:
        model = model_of(case, length).to(device)
        losses, _, _ = score(model, batch_of(model, length, 1), device)
        optimiser = make_optimiser(model.train(), recipe)
        add_gradient(model, batch_of(model, 40, 2), recipe, device)
        gradients = [parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None]
        torch.nn.utils.clip_grad_norm_(model.parameters(), recipe.grad_clip)
        optimiser.step()
        assert all(parameter.device == device for parameter in model.parameters())
        assert type(losses) is Tensor
        return gradients, losses

    expected = observe(torch.device("cpu"))
    with simulated_gpu() as device:
        found = observe(device)
    assert len(found[0]) == len(expected[0]) > 10
    largest = max(float(gradient.abs().max()) for gradient in expected[0])
    for mine, theirs in zip(found[0], expected[0], strict=True):
        torch.testing.assert_close(back(mine), theirs, rtol=1e-3, atol=1e-5 * largest)
    torch.testing.assert_close(found[1], expected[1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("causal", [True, False])
def test_masks_are_given_in_rows_that_cuda_takes(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Tensor] = []
    kernel = attention.scaled_dot_product_attention

    def noted(*given: Tensor, attn_mask: Tensor, **options: Any) -> Tensor:
        masks.append(attn_mask)
        return kernel(*given, attn_mask=attn_mask, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", noted)
    with simulated_gpu() as device, torch.no_grad():
        model = model_of(Case("alibi", causal), 1101).to(device)
        model(batch_of(model, 1101, 1).tokens_BT.to(device))
    assert masks
    for mask in masks:
        assert mask.stride(-1) == 1 and all(stride % 8 == 0 for stride in mask.stride()[:-1])


@pytest.mark.parametrize("name", ["nope", "rope", "fox", "alibi", "t5", "shaw"])
def test_bfloat16_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a bias the fused kernel is given bfloat16, but for sums that bfloat16 is too coarse for."""
    given_to_kernel: list[torch.dtype] = []
    kernel = attention.scaled_dot_product_attention

    def noted(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        given_to_kernel.extend({q.dtype, k.dtype, v.dtype})
        return kernel(q, k, v, **options)

    monkeypatch.setattr(attention, "scaled_dot_product_attention", noted)
    encoding = Case(name, True).encoding()
    on_cpu = setting(encoding, 150, dtype=torch.float32)
    x_BTD, q, k, v = on_cpu.context.x_BTD, *(x.to(torch.bfloat16) for x in (on_cpu.q, on_cpu.k, on_cpu.v))
    on_cpu.q, on_cpu.k, on_cpu.v = q.float(), k.float(), v.float()
    expected = attention.reference(encoding, on_cpu.q, on_cpu.k, on_cpu.v, on_cpu.context)
    with simulated_gpu() as device:
        encoding = encoding.to(device)
        context = Context(150, True, device=device, x_BTD=x_BTD.to(device))
        q, k, v = (x.to(device).requires_grad_() for x in (q, k, v))
        mixed = attention.attend(encoding, q, k, v, context)
        (gradient,) = torch.autograd.grad(mixed.float().sum(), [q])
    torch.testing.assert_close(back(mixed).float(), expected, rtol=0, atol=0.05)
    assert gradient.dtype == torch.bfloat16
    assert given_to_kernel == {"nope": [torch.bfloat16], "rope": [torch.bfloat16], "fox": [torch.float32]}.get(name, [])


@pytest.mark.parametrize("case", [case for case in cases() if case.causal], ids=str)
def test_positions_that_are_given_come_along(case: Case) -> None:
    with simulated_gpu() as device, torch.no_grad():
        model = model_of(case, 200).to(device)
        batch = batch_of(model, 40, 2)
        positions = torch.arange(40).expand(2, 40) * 3 if batch.positions is None else batch.positions
        logits = model(batch.tokens_BT.to(device), positions.to(device))
    expected = model_of(case, 200)(batch.tokens_BT, positions)
    torch.testing.assert_close(back(logits), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("task", catalogue.choices("task"))
def test_every_task_is_trained_on_and_evaluated(task: str, make_config: MakeConfig) -> None:
    small = {"recipe.steps": 1, "evaluation.examples": 4, "evaluation.multiples": [1]}
    run(make_config(task, "axial_rope" if task == "grid_lookup" else "t5", small))


@pytest.mark.parametrize("positions", catalogue.choices("positions"))
def test_positions_are_remapped(positions: str, make_config: MakeConfig) -> None:
    task = {"abacus": "addition", "raster": "grid_lookup"}.get(positions, "copy")
    overrides = {"recipe.steps": 1, "positions": catalogue.read("positions", positions), "evaluation.examples": 4}
    run(make_config(task, "rope", overrides))


@pytest.mark.parametrize(
    "overrides",
    [
        {"recipe.accumulate": 2},
        {"recipe.optimiser": "sgd", "recipe.momentum": 0.9, "recipe.betas": None},
        {"recipe.early_stop": {"every": 1, "examples": 8, "keep": "best"}},
        {"recipe.early_stop": {"every": 1, "examples": 8, "metric": "exact_match", "threshold": 0.9}},
    ],
)
def test_recipes(overrides: dict[str, Any], make_config: MakeConfig) -> None:
    run(make_config("copy", "alibi", {"recipe.steps": 3} | overrides))


def run(config: Config) -> None:
    """Train, keep the state as a checkpoint does, go on from it, and evaluate."""
    task = config.build_task()
    with simulated_gpu() as device:
        model = build_model(config).to(device)
        state = train(config, task, model, device, lambda progress: None)
        again = State(make_optimiser(model, config.recipe))
        again.load(state.as_dict())
        tables = evaluate(config, task, model, device)
    expected = build_model(config)
    train(config, task, expected, torch.device("cpu"), lambda progress: None)
    on_cpu = evaluate(config, task, expected, torch.device("cpu"))
    assert [row["loss"] for row in tables["eval"]] == pytest.approx([row["loss"] for row in on_cpu["eval"]], rel=1e-2)
