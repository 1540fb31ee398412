"""The trunk's linear layers are torch's, in values and gradients, by oneDNN or not."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from rpe_bench import linear as module
from rpe_bench.linear import Linear

if not module.HAS_ONEDNN:
    pytest.skip("torch is built without oneDNN", allow_module_level=True)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes of what oneDNN is given."""
    shapes: list[tuple[int, ...]] = []
    original = module.by_onednn

    def spy(x: Tensor, *rest: Tensor) -> Tensor:
        shapes.append(tuple(x.shape))
        return original(x, *rest)

    monkeypatch.setattr(module, "by_onednn", spy)
    return shapes


def layers(bias: bool) -> tuple[Linear, nn.Linear]:
    ours, torchs = Linear(24, 40, bias), nn.Linear(24, 40, bias)
    torchs.load_state_dict(ours.state_dict())
    return ours, torchs


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (64, 65), (5,), (0,), (2, 3, 4)], ids=str)
@pytest.mark.parametrize("kind", ["plain", "strided", "summed"])
def test_values_and_gradients(taken: list[tuple[int, ...]], shape: tuple[int, ...], bias: bool, kind: str) -> None:
    x = torch.randn(24, *shape).movedim(0, -1) if kind == "strided" else torch.randn(*shape, 24)
    toward = torch.randn(*shape, 40)
    results = []
    for layer in layers(bias):
        given = x.detach().requires_grad_()
        out = layer(given)
        # The gradient of a plain sum is one number, expanded.
        score = out.sum() if kind == "summed" else (out * toward).sum()
        results.append((out, *torch.autograd.grad(score, [given, *layer.parameters()])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * max(1.0, x.numel() / 24) ** 0.5)
    assert taken == [(*shape, 24), (*shape, 40)]


def test_in_full_precision(taken: list[tuple[int, ...]]) -> None:
    ours, torchs = layers(True)
    x = torch.randn(100, 24, dtype=torch.float64)
    error = (ours(x.float()) - linear(x, ours.weight.double(), ours.bias.double())).abs().max()
    assert taken and error < 1e-5
    taken.clear()
    assert torch.equal(ours.double()(x), torchs.double()(x)) and not taken


def test_mixed_precision_is_torchs(taken: list[tuple[int, ...]]) -> None:
    ours, torchs = layers(True)
    x = torch.randn(100, 24)
    with torch.autocast("cpu", torch.bfloat16):
        one, other = ours(x), torchs(x)
    assert one.dtype == torch.bfloat16 and torch.equal(one, other) and not taken


def test_without_gradients(taken: list[tuple[int, ...]]) -> None:
    ours, torchs = layers(True)
    x = torch.randn(100, 24)
    for mode in (torch.no_grad, torch.inference_mode):
        with mode():
            torch.testing.assert_close(ours(x), torchs(x))
    assert taken == [(100, 24)] * 2
