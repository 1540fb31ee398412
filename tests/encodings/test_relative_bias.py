from dataclasses import replace

import pytest
import torch

from rpe_bench.attention import attend, attention_logits
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.relative_bias import RelativeBias

GOLDEN_ROWS = [[2, 3, 4, 4, 4], [1, 2, 3, 4, 4], [0, 1, 2, 3, 4], [0, 0, 1, 2, 3], [0, 0, 0, 1, 2]]
"""The row of the table for k = 2: clamp(j - i, -2, 2) + 2."""


def test_golden_rows(make, bias_matrix) -> None:
    encoding = make(RelativeBias, k=2, causal=False)
    table = torch.arange(5.0)[:, None] + torch.tensor([0.0, 100.0])
    encoding.table_NH.data.copy_(table)
    rows = torch.tensor(GOLDEN_ROWS).double()
    assert torch.equal(bias_matrix(encoding, 5), torch.stack((rows, rows + 100)))


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula(make, reference_equals_formula, causal: bool, per_head: bool) -> None:
    encoding = make(RelativeBias, k=5, std=1.0, causal=causal, per_head=per_head)
    table = encoding.table_NH.detach().double().numpy()

    def logit(h, i, j, q, k) -> float:
        return q @ k / 2 + table[min(max(j - i, -5), 5) + 5, h if per_head else 0]

    reference_equals_formula(encoding, logit)


@pytest.mark.parametrize(("causal", "reached"), [(True, range(1, 5)), (False, range(1, 8))])
def test_rows_that_a_length_does_not_reach_learn_nothing(make, causal: bool, reached: range) -> None:
    """At length 4 with k = 4: offsets -3..0 of a causal model, -3..3 of a bidirectional one."""
    encoding = make(RelativeBias, k=4, causal=causal)
    q, k, v = torch.randn(3, 1, 2, 4, 4)
    attend(encoding, q, k, v, Context(4, causal)).square().sum().backward()
    touched = encoding.table_NH.grad.abs().sum(1).nonzero().flatten().tolist()
    assert touched == list(reached)


def test_a_zero_table_is_no_position(make) -> None:
    encoding, none = make(RelativeBias, std=0.0), make(NoPE)
    q = torch.randn(1, 2, 5, 4)
    assert torch.equal(attention_logits(encoding, q, q), attention_logits(none, q, q))


def test_one_table_for_all_layers_or_one_a_layer(make) -> None:
    geometry = replace(make(RelativeBias).geometry, layers=3)
    assert len(RelativeBias.build(geometry, shared=True)) == 1
    modules = RelativeBias.build(geometry, shared=False)
    assert [module.geometry.layer for module in modules] == [0, 1, 2]
    assert len({id(module.table_NH) for module in modules}) == 3


def test_initial_values(make) -> None:
    encoding = make(RelativeBias, heads=64, k=64, std=0.5)
    assert encoding.table_NH.shape == (129, 64)
    assert encoding.table_NH.std().item() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(("parameters", "message"), [({"k": 0}, "k=0"), ({"std": -0.1}, "std=-0.1")])
def test_impossible_options_are_refused(make, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(RelativeBias, **parameters)
