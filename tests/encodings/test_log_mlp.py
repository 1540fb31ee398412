import math

import numpy as np
import pytest
import torch

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.log_mlp import LogMLP
from rpe_bench.encodings.nope import NoPE


def network(encoding: LogMLP, x: float) -> np.ndarray:
    values = np.array([x])
    for weight, constant in zip(encoding.weights, encoding.constants, strict=True):
        values = values @ weight.detach().double().numpy() + constant.detach().double().numpy()
        values = values / (1 + np.exp(-values))
    return values @ encoding.out.detach().double().numpy()


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    "options", [{}, {"per_head": False}, {"log": False}, {"depth": 1, "width": 7}, {"depth": 3, "width": 4}], ids=str
)
def test_formula(make, reference_equals_formula, causal: bool, options: dict[str, int]) -> None:
    encoding = make(LogMLP, causal=causal, **options)

    def logit(h, i, j, q, k) -> float:
        distance = i - j
        x = math.copysign(math.log(1 + abs(distance)), distance) if options.get("log", True) else distance
        return q @ k / 2 + network(encoding, x)[h if options.get("per_head", True) else 0]

    reference_equals_formula(encoding, logit)


def test_the_two_sides_differ(make, bias_matrix) -> None:
    bias = bias_matrix(make(LogMLP, causal=False), 9)
    assert (bias - bias.mT).abs().max() > 0.01


def test_a_zero_network_is_no_position(make) -> None:
    encoding, none = make(LogMLP), make(NoPE)
    encoding.out.data.zero_()
    q = torch.randn(1, 2, 5, 4)
    assert torch.equal(attention_logits(encoding, q, q), attention_logits(none, q, q))


def test_far_distances_do_not_run_together_before_the_logarithm(make) -> None:
    """2^24 + 1 does not exist in float32; in float64 the network still tells it from 2^24."""
    encoding = make(LogMLP, log=False).double()
    bias = encoding.of_offset(torch.tensor([-(2**24), -(2**24) - 1]))
    assert not torch.equal(bias[0], bias[1])


def test_initial_values_are_within_the_bound_of_a_linear_layer(make) -> None:
    encoding = make(LogMLP, width=400, heads=64)
    bounds = (1, 0.05, 1, 0.05, 0.05)
    parameters = (*encoding.weights, *encoding.constants, encoding.out)
    for parameter, bound in zip(parameters, bounds, strict=True):
        assert 0.95 * bound < parameter.abs().max().item() <= bound
        assert parameter.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.1)


@pytest.mark.parametrize(("parameters", "message"), [({"width": 0}, "width=0"), ({"depth": 0}, "depth=0")])
def test_impossible_options_are_refused(make, parameters: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=f"{message} must be at least 1"):
        make(LogMLP, **parameters)
