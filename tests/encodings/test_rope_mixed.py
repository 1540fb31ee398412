import math
from dataclasses import replace

import pytest
import torch
from grids import grid

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.axial_rope import AxialRoPE
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.rope_mixed import RoPEMixed


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("layout", ["interleaved", "half"])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula(make, reference_equals_formula, causal: bool, layout: str, per_head: bool) -> None:
    """A logit is the sum over pairs of what turning the key by the offset's angle makes of their product."""
    encoding = make(RoPEMixed, causal=causal, layout=layout, per_head=per_head, head_dim=8).double()
    theta = encoding.theta_2HC.detach().numpy()
    assert theta.shape == (2, 2 if per_head else 1, 4)
    cells = grid(3, 5)[0].tolist()

    def logit(h, i, j, q, k) -> float:
        total = 0.0
        for t in range(4):
            theta_y, theta_x = theta[:, h if per_head else 0, t]
            angle = (cells[j][0] - cells[i][0]) * theta_y + (cells[j][1] - cells[i][1]) * theta_x
            a, b = (2 * t, 2 * t + 1) if layout == "interleaved" else (t, t + 4)
            total += math.cos(angle) * (q[a] * k[a] + q[b] * k[b]) + math.sin(angle) * (q[b] * k[a] - q[a] * k[b])
        return total / math.sqrt(8)

    reference_equals_formula(encoding, logit, 15, grid(3, 5, 2))


def test_one_axis_a_pair_is_the_axial_rotation(make) -> None:
    mixed, axial = make(RoPEMixed, head_dim=8).double(), make(AxialRoPE, head_dim=8, base=50.0)
    frequencies = torch.tensor([1, 50**-0.5], dtype=torch.float64)
    with torch.no_grad():
        mixed.theta_2HC.zero_()
        mixed.theta_2HC[0, :, :2] = mixed.theta_2HC[1, :, 2:] = frequencies
    q, k = torch.randn(2, 1, 2, 20, 8, dtype=torch.float64)
    found, expected = (attention_logits(encoding, q, k, grid(4, 5)) for encoding in (mixed, axial))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-12)


def test_without_frequencies_it_is_no_position(make) -> None:
    mixed = make(RoPEMixed)
    mixed.theta_2HC.data.zero_()
    q, k = torch.randn(2, 1, 2, 20, 4)
    assert torch.equal(attention_logits(mixed, q, k, grid(4, 5)), attention_logits(make(NoPE), q, k))


def test_initial_values(make) -> None:
    """Axial frequencies along two directions at right angles, drawn by each head."""
    theta_2HC = make(RoPEMixed, head_dim=16, heads=50, base=7.0).theta_2HC.detach().double()
    sizes = 7 ** -(torch.arange(0, 16, 4).double() / 16)
    torch.testing.assert_close(theta_2HC.norm(dim=0), sizes.repeat(2).expand(50, 8), rtol=1e-6, atol=0)
    first, second = theta_2HC.chunk(2, dim=-1)
    torch.testing.assert_close((first * second).sum(0), torch.zeros(50, 4).double(), rtol=0, atol=1e-6)
    direction = torch.atan2(*first[:, :, 0])
    assert direction.min() < -math.pi / 2 and direction.max() > math.pi / 2 and len(direction.unique()) == 50


def test_one_set_for_all_layers_or_one_a_layer(make) -> None:
    geometry = replace(make(RoPEMixed).geometry, layers=3)
    assert len(RoPEMixed.build(geometry, shared=True)) == 1
    assert len({id(module.theta_2HC) for module in RoPEMixed.build(geometry)}) == 3


def test_norms_stay_whatever_is_learned(make) -> None:
    encoding = make(RoPEMixed, head_dim=8)
    encoding.theta_2HC.data.normal_(0, 5)
    q = torch.randn(1, 2, 20, 8, dtype=torch.float64)
    torch.testing.assert_close(encoding.rotate(q, q, grid(4, 5))[0].norm(dim=-1), q.norm(dim=-1), rtol=1e-12, atol=0)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"head_dim": 6}, r"head of 6 \(dim 12 / heads 2\) is no multiple of 4"),
        ({"layout": "pairs"}, "layout=pairs is not one of interleaved, half"),
        ({"base": 0.5}, "base=0.5"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(RoPEMixed, **parameters)


def test_an_index_is_no_cell(make) -> None:
    q = torch.randn(1, 2, 4, 4)
    with pytest.raises(ValueError, match="was given none"):
        attention_logits(make(RoPEMixed), q, q)
