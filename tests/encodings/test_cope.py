import math

import pytest
import torch
from support import normal, setting

from rpe_bench.attention import attend, attention_logits
from rpe_bench.encodings.base import Context, Geometry
from rpe_bench.encodings.cope import CoPE
from rpe_bench.encodings.nope import NoPE

GOLDEN = [[0.5, 0, 0, 0], [1, 0.5, 0, 0], [1.5, 1, 0.5, 0], [2, 1.5, 1, 0.5]]
"""The counts where all logits are 0: every gate is one half."""


def test_golden_counts(make) -> None:
    p = make(CoPE).count(torch.zeros(1, 2, 4, 4), Context(4, causal=True))
    assert torch.equal(p, torch.tensor(GOLDEN).expand(1, 2, 4, 4))


@pytest.mark.parametrize("npos_max", [4, 64])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula(make, npos_max: int, per_head: bool) -> None:
    """Number by number; with 4 rows most counts lie beyond the table."""
    encoding = make(CoPE, npos_max=npos_max, std=1.0, per_head=per_head).double()
    given, T = setting(encoding, 23), 23
    content = (given.q @ given.k.mT / 2).tolist()
    found = attention_logits(encoding, given.q, given.k)
    beyond = 0
    for b, h, i in ((b, h, i) for b in range(2) for h in range(2) for i in range(T)):
        e = encoding.e_HNK[h if per_head else 0]
        for j in range(i + 1):
            p = sum(1 / (1 + math.exp(-content[b][h][i][t])) for t in range(j, i + 1))
            beyond += p > npos_max - 1
            p = min(p, npos_max - 1)
            w = p - math.floor(p)
            q = given.q[b, h, i]
            expected = content[b][h][i][j] + (1 - w) * (q @ e[math.floor(p)]) + w * (q @ e[math.ceil(p)])
            assert found[b, h, i, j].item() == pytest.approx(expected.item(), abs=1e-11)
    assert (beyond > 0) == (npos_max == 4)


def test_a_zero_table_is_no_position(make) -> None:
    encoding, none = make(CoPE, std=0.0), make(NoPE)
    q, k = normal(2, 1, 2, 9, 4, seed=0)
    assert torch.equal(attention_logits(encoding, q, k), attention_logits(none, q, k))


def test_hidden_keys_are_not_counted(make) -> None:
    """The mask comes before the gates, however large the logits behind it."""
    encoding = make(CoPE, std=1.0)
    content = normal(1, 2, 9, 9, seed=0)
    loud = content + 1e4 * torch.ones(9, 9).triu(1)
    context = Context(9, causal=True)
    assert torch.equal(encoding.count(loud, context), encoding.count(content, context))
    assert (encoding.count(content, context)[..., torch.ones(9, 9).triu(1) > 0] == 0).all()


def test_counts_beyond_the_table_share_its_last_row(make) -> None:
    """And have no gradient to the gates, which no count can move any more; on whole counts it is finite."""
    encoding = make(CoPE, npos_max=3, std=1.0).double()
    q = normal(1, 2, 6, 4, seed=0)
    content = torch.full((1, 2, 6, 6), 800.0, dtype=torch.float64, requires_grad=True)  # every gate is 1
    p = encoding.count(content, Context(6, causal=True))
    assert torch.equal(p[0, 0, -1].long(), torch.tensor([6, 5, 4, 3, 2, 1]))
    bias = encoding.bias(q, q, Context(6, causal=True, content_BHQS=content))
    rows = (q @ encoding.e_HNK.mT)[0, :, -1]
    expected = rows[:, [2, 2, 2, 2, 2, 1]]
    torch.testing.assert_close(bias[0, :, -1], expected, rtol=0, atol=1e-14)
    half = torch.zeros(1, 2, 6, 6, dtype=torch.float64, requires_grad=True)  # counts 3, 2.5, 2, 1.5, 1, 0.5
    bias = encoding.bias(q, q, Context(6, causal=True, content_BHQS=half))
    bias[0, :, -1, :2].sum().backward()
    assert (half.grad == 0).all()


@pytest.mark.parametrize("npos_max", [3, 8])
def test_gradients_equal_finite_differences_within_and_beyond_the_table(make, npos_max: int) -> None:
    encoding = make(CoPE, npos_max=npos_max, std=1.0).double()
    given = setting(encoding, 7, batch=1)

    def logits(q: torch.Tensor, k: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return attention_logits(encoding, q, k).tril()

    assert torch.autograd.gradcheck(logits, (*given.leaves()[:2], encoding.e_HNK))


def test_small_counts_keep_their_digits_in_a_long_sequence(make) -> None:
    """The count of the last keys is a sum of few gates, and no difference of sums over thousands."""
    encoding, T = make(CoPE), 2048
    content = normal(1, 1, 1, T, seed=0) - 9.0
    context = Context(T, causal=True, rows=slice(T - 1, T))
    exact, found = (encoding.count(c, context).double() for c in (content, content.float()))
    assert ((found - exact).abs() / exact).max() < 1e-6


def test_later_keys_do_not_reach_earlier_outputs(make) -> None:
    encoding = make(CoPE, std=1.0)
    given = setting(encoding, 12, dtype=torch.float32)
    before = attend(encoding, given.q, given.k, given.v, given.context)
    k = given.k.clone()
    k[:, :, 7:] = 50.0
    after = attend(encoding, given.q, k, given.v, given.context)
    assert torch.equal(before[:, :, :7], after[:, :, :7]) and not torch.equal(before, after)


def test_one_table_for_all_heads_or_one_a_head_of_a_layer_or_of_all(make) -> None:
    assert make(CoPE, heads=4).e_HNK.shape == (1, 64, 4)
    assert make(CoPE, heads=4, per_head=True, npos_max=5).e_HNK.shape == (4, 5, 4)
    geometry = Geometry(8, 2, 16, 64, causal=True, layers=3)
    assert len(CoPE.build(geometry)) == 3 and len(CoPE.build(geometry, shared=True)) == 1


def test_initial_values(make) -> None:
    assert (make(CoPE).e_HNK == 0).all()
    assert make(CoPE, heads=8, head_dim=16, std=0.5).e_HNK.std().item() == pytest.approx(0.5, rel=0.1)


def test_it_says_what_it_needs(make) -> None:
    q = torch.zeros(1, 2, 3, 4)
    with pytest.raises(ValueError, match="logits of content"):
        make(CoPE).bias(q, q, Context(3, causal=True))


@pytest.mark.parametrize(
    ("parameters", "message"), [({"npos_max": 1}, "npos_max=1 .*at least 2"), ({"std": -0.1}, "std=-0.1")]
)
def test_impossible_options_are_refused(make, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(CoPE, **parameters)
