import numpy as np
import pytest
import torch

from rpe_bench.attention import attend, attention_logits
from rpe_bench.encodings.base import Context, Encoding
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.sinusoidal_relative import SinusoidalRelative, SinusoidalRelativeKey

CLASSES = [SinusoidalRelative, SinusoidalRelativeKey]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
@pytest.mark.parametrize("width", [None, 6])
def test_formula_of_the_bias(make, reference_equals_formula, causal: bool, per_head: bool, width: int | None) -> None:
    encoding = make(SinusoidalRelative, std=1.0, causal=causal, per_head=per_head, width=width)
    w, D = encoding.weight_HD.detach().double().numpy(), width or 8

    def logit(h, i, j, q, k) -> float:
        r = np.empty(D)
        for t in range(D // 2):
            angle = (i - j) / 10_000 ** (2 * t / D)
            r[2 * t], r[2 * t + 1] = np.sin(angle), np.cos(angle)
        return q @ k / 2 + w[h if per_head else 0] @ r

    reference_equals_formula(encoding, logit)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
@pytest.mark.parametrize("width", [None, 6])
def test_formula_of_the_key(make, reference_equals_formula, causal: bool, per_head: bool, width: int | None) -> None:
    encoding = make(SinusoidalRelativeKey, std=1.0, causal=causal, per_head=per_head, width=width)
    W, D = encoding.weight_HDK.detach().double().numpy(), width or 8

    def logit(h, i, j, q, k) -> float:
        angles = (i - j) / 10_000 ** (np.arange(0, D, 2) / D)
        return q @ (k + np.concatenate((np.sin(angles), np.cos(angles))) @ W[h if per_head else 0]) / 2

    reference_equals_formula(encoding, logit)


def test_sines_are_odd_and_cosines_even(make, bias_matrix) -> None:
    encoding = make(SinusoidalRelative, causal=False).double()
    for feature, sign in ((0, -1), (1, 1)):
        encoding.weight_HD.data.zero_()
        encoding.weight_HD.data[:, feature] = 1
        bias = bias_matrix(encoding, 6)
        torch.testing.assert_close(bias.mT, sign * bias)
    encoding.weight_HD.data.copy_(torch.eye(2, 8))
    assert bias_matrix(encoding, 6)[0, 3, 1].item() == pytest.approx(np.sin(2))  # the past has positive distances


@pytest.mark.parametrize("cls", CLASSES)
def test_half_steps(make, cls: type[Encoding]) -> None:
    """Fractions are positions: at half steps every second token stands where whole steps would put it."""
    encoding = make(cls, std=1.0).double()
    q, k = torch.randn(2, 1, 2, 9, 4, dtype=torch.float64)
    halves = attention_logits(encoding, q, k, torch.arange(9) / 2)
    torch.testing.assert_close(halves[:, :, ::2, ::2], attention_logits(encoding, q[:, :, ::2], k[:, :, ::2]))
    assert (halves - attention_logits(encoding, q, k)).abs().max() > 0.1


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize("causal", [True, False])
def test_zero_weights_are_no_position(make, cls: type[Encoding], causal: bool) -> None:
    encoding, none = make(cls, std=0.0, causal=causal), make(NoPE, causal=causal)
    q = torch.randn(1, 2, 5, 4)
    assert torch.equal(attention_logits(encoding, q, q), attention_logits(none, q, q))


def test_the_bias_takes_the_fast_paths(make) -> None:
    encoding = make(SinusoidalRelative, std=1.0)
    assert encoding.by_offset_alone(Context(20, True))
    q, k, v = torch.randn(3, 1, 2, 20, 4)
    expected = attend(encoding, q, k, v, Context(20, True, torch.arange(20)))
    torch.testing.assert_close(attend(encoding, q, k, v, Context(20, True)), expected)


@pytest.mark.parametrize("cls", CLASSES)
@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"base": 1.0}, "base=1.0"), ({"std": -0.1}, "std=-0.1"), ({"width": 3}, "width=3"), ({"width": 0}, "width=0")],
)
def test_impossible_options_are_refused(make, cls: type[Encoding], parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(cls, **parameters)
