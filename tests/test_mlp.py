"""The feed-forward network is its three layers one after another, in values and gradients, as one function or not."""

import pytest
import torch
from torch import Tensor, nn

from rpe_bench import linear, mlp
from rpe_bench.mlp import MLP

if not linear.HAS_ONEDNN:
    pytest.skip("torch is built without oneDNN", allow_module_level=True)


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> list[torch.dtype]:
    """The dtypes that the one function is called in."""
    dtypes: list[torch.dtype] = []
    original = mlp._MLP.apply

    def spy(*given: object) -> object:
        assert isinstance(given[-1], torch.dtype)
        dtypes.append(given[-1])
        return original(*given)

    monkeypatch.setattr(mlp._MLP, "apply", spy)
    return dtypes


def networks() -> tuple[MLP, nn.Sequential]:
    ours, torchs = MLP.of(16), nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))
    torchs.load_state_dict(ours.state_dict())
    return ours, torchs


def found(network: nn.Module, x: Tensor, toward: Tensor) -> list[Tensor]:
    given = x.detach().requires_grad_()
    out = network(given)
    return [out, *torch.autograd.grad((out * toward).sum(), [given, *network.parameters()])]


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (64, 65), (5,), (0,)], ids=str)
@pytest.mark.parametrize("strided", [False, True], ids=["plain", "strided"])
def test_values_and_gradients(taken: list[torch.dtype], shape: tuple[int, ...], strided: bool) -> None:
    x = torch.randn(16, *shape).movedim(0, -1) if strided else torch.randn(*shape, 16)
    toward = torch.randn_like(x)
    results = [found(network, x, toward) for network in networks()]
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5 * max(1.0, x.numel() / 16) ** 0.5)
    assert taken == [torch.float32]


def test_mixed_precision_is_autocasts_to_rounding(taken: list[torch.dtype]) -> None:
    x, toward = torch.randn(40, 50, 16), torch.randn(40, 50, 16)
    ours, torchs = networks()
    exact = found(torchs, x, toward)
    with torch.autocast("cpu", torch.bfloat16):
        results = [found(network, x, toward) for network in (ours, torchs)]
    for one, other, truth in zip(*results, exact, strict=True):
        assert one.dtype == other.dtype
        errors = [((rounded.double() - truth).norm() / truth.norm()).item() for rounded in (one, other)]
        assert errors[0] < 1.1 * errors[1] < 0.02
    assert taken == [torch.bfloat16]


def test_the_gradient_that_it_is_given_is_left_as_it_is() -> None:
    ours, _ = networks()
    toward = torch.randn(3, 16)
    kept = toward.clone()
    ours(torch.randn(3, 16)).backward(toward)
    assert torch.equal(toward, kept)


def test_where_onednn_is_not_asked_it_is_its_layers(taken: list[torch.dtype], monkeypatch: pytest.MonkeyPatch) -> None:
    ours, torchs = networks()
    x = torch.randn(100, 16)
    for autocast in (False, True):  # which leaves float64 as it is
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            assert torch.equal(ours.double()(x.double()), torchs.double()(x.double()))
    monkeypatch.setattr(linear, "HAS_ONEDNN", False)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ours.float()(x), torchs.float()(x))
    assert torch.equal(ours(x), torchs(x)) and not taken


@pytest.mark.parametrize("mixed", [False, True])
def test_without_gradients(mixed: bool) -> None:
    ours, _ = networks()
    x = torch.randn(100, 16)
    # In bfloat16 gelu is then of what is not yet rounded.
    tolerance = {"rtol": 0.02, "atol": 0.01} if mixed else {"rtol": 1e-5, "atol": 1e-6}
    with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
        expected = ours(x)
        for mode in (torch.no_grad, torch.inference_mode):
            with mode():
                torch.testing.assert_close(ours(x), expected, **tolerance)


REGISTER = {
    "forward_pre": nn.Module.register_forward_pre_hook,
    "forward": nn.Module.register_forward_hook,
    "full_backward_pre": nn.Module.register_full_backward_pre_hook,
    "full_backward": nn.Module.register_full_backward_hook,
}


@pytest.mark.parametrize("layer", range(3))
@pytest.mark.parametrize("kind", REGISTER)
def test_hooks_on_layers_are_called(kind: str, layer: int, taken: list[torch.dtype]) -> None:
    ours, torchs = networks()
    called: list[nn.Module] = []
    handle = REGISTER[kind](ours[layer], lambda module, *given: called.append(module))
    x, toward = torch.randn(40, 16), torch.randn(40, 16)
    for one, other in zip(found(ours, x, toward), found(torchs, x, toward), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)
    assert called == [ours[layer]] and not taken
    handle.remove()
    found(ours, x, toward)
    assert len(called) == 1 and taken == [torch.float32]


def test_hooks_on_all_modules_are_called(taken: list[torch.dtype]) -> None:
    ours, _ = networks()
    called: list[nn.Module] = []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *given: called.append(module))
    try:
        ours(torch.randn(3, 16))
    finally:
        handle.remove()
    assert called == [*ours, ours] and not taken


def test_other_layers_are_called_as_they_are() -> None:
    ours, torchs = networks()
    x = torch.randn(40, 16)
    torch.testing.assert_close(ours[:2](x), torchs[:2](x), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[2:](torchs[:2](x)), torchs(x), rtol=1e-5, atol=1e-6)
    ours[1] = torchs[1] = nn.ReLU()
    torch.testing.assert_close(ours(x), torchs(x), rtol=1e-5, atol=1e-6)


def test_without_gradients_gelu_is_part_of_the_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mlp, "gelu", None)
    with torch.no_grad():
        networks()[0](torch.randn(3, 16))
