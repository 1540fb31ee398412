import math

import pytest
import torch

from rpe_bench.attention import attend
from rpe_bench.encodings.alibi import ALiBi
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.kerple import Kerple

KINDS = ["log", "power"]


def set_values(encoding: Kerple, strength: float, shape: float) -> Kerple:
    """r1 and r2, or a and p, of all heads."""
    encoding.double()
    encoding.strength_H.data.fill_(math.log(math.expm1(strength)))
    of_shape = math.log(math.expm1(shape)) if encoding.kind == "log" else math.log(shape / (2 - shape))
    encoding.shape_H.data.fill_(of_shape)
    return encoding


def test_golden_logarithm(make) -> None:
    """r1 = r2 = 1: minus the logarithms of 1 to 5."""
    encoding = set_values(make(Kerple), 1.0, 1.0)
    bias = encoding.of_offset(torch.tensor([0, -1, -2, -3, -4]))[:, 1]
    assert bias.tolist() == pytest.approx([0, -0.6931, -1.0986, -1.3863, -1.6094], abs=5e-5)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_formula(make, reference_equals_formula, causal: bool, per_head: bool, kind: str) -> None:
    encoding = make(Kerple, heads=3, kind=kind, causal=causal, per_head=per_head)
    strengths, shapes = (values.tolist() for values in encoding.values())
    assert len(strengths) == len(shapes) == (3 if per_head else 1)

    def logit(h, i, j, q, k) -> float:
        s, t = (strengths[h], shapes[h]) if per_head else (strengths[0], shapes[0])
        return q @ k / 2 - (s * math.log(1 + t * abs(i - j)) if kind == "log" else s * abs(i - j) ** t)

    reference_equals_formula(encoding, logit)


def test_power_one_is_alibi(make, bias_matrix) -> None:
    """With the slope a."""
    encoding, alibi = set_values(make(Kerple, kind="power", causal=False), 0.3, 1.0), make(ALiBi, causal=False)
    alibi.slopes = [0.3, 0.3]
    torch.testing.assert_close(bias_matrix(encoding, 20), bias_matrix(alibi, 20), rtol=1e-14, atol=0)


@pytest.mark.parametrize(("kind", "ends"), [("log", (2, 1)), ("power", (1, 2))])
def test_initial_values_are_uniform(make, kind: str, ends: tuple[int, int]) -> None:
    encoding = make(Kerple, heads=4096, head_dim=1, kind=kind)
    for values, end in zip(encoding.values(), ends, strict=True):
        assert 0.01 - 1e-6 <= values.min().item() < 0.02 and end - 0.02 < values.max().item() <= end - 0.01 + 1e-6
        deciles = torch.quantile(values, torch.linspace(0.1, 0.9, 9, dtype=torch.float64))
        torch.testing.assert_close(deciles, end * torch.linspace(0.1, 0.9, 9, dtype=torch.float64), rtol=0, atol=0.06)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("learned", [-30.0, -4.6, 0.0, 4.6, 30.0])
def test_gradients_come_back_from_everywhere(make, kind: str, learned: float) -> None:
    """The edges of the authors' clamp, 0.01 and 2, and far beyond, where a clamp would have none."""
    encoding = make(Kerple, kind=kind).double()
    for parameter in encoding.parameters():
        parameter.data.fill_(learned)
    q, k, v = torch.randn(3, 1, 2, 6, 4, dtype=torch.float64)
    for positions in (None, torch.tensor([0, 1, 1, 4, 9, 2])):  # a distance of 0 beside the diagonal, too
        encoding.zero_grad()
        attend(encoding, q, k, v, Context(6, True, positions)).square().sum().backward()
        for parameter in encoding.parameters():
            assert parameter.grad.isfinite().all() and (parameter.grad != 0).all()


@pytest.mark.parametrize("kind", KINDS)
def test_bias_falls_strictly_whatever_is_learned(make, kind: str) -> None:
    encoding = make(Kerple, heads=64, kind=kind).double()
    for parameter in encoding.parameters():
        parameter.data.normal_(0, 4)
    bias = encoding.of_offset(torch.arange(0, 300))
    assert (bias[0] == 0).all() and (bias.diff(dim=0) < 0).all()
    assert torch.equal(bias, encoding.of_offset(-torch.arange(0, 300)))


@pytest.mark.parametrize("kind", KINDS)
def test_far_distances_are_exact(make, kind: str) -> None:
    """2^24 + 1 does not exist in float32."""
    bias = make(Kerple, kind=kind).of_offset(torch.tensor([-(2**24), -(2**24) - 1]))
    assert bias.dtype == torch.float64 and (bias[1] < bias[0]).all()


def test_an_unknown_kind_is_refused(make) -> None:
    with pytest.raises(ValueError, match="kind=linear is not one of log, power"):
        make(Kerple, kind="linear")
