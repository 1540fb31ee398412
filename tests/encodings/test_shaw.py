import numpy as np
import pytest
import torch

from rpe_bench.attention import attend, attention_logits, logits
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.nope import NoPE
from rpe_bench.encodings.shaw import Shaw


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula_of_keys(make, reference_equals_formula, causal: bool, per_head: bool) -> None:
    encoding = make(Shaw, k=5, std=1.0, values=False, causal=causal, per_head=per_head)
    table = encoding.keys.detach().double().numpy()

    def logit(h, i, j, q, k) -> float:
        row = min(max(j - i, -5), 5) + 5
        return q @ (k + (table[h, row] if per_head else table[row])) / 2  # sqrt(K) = 2

    reference_equals_formula(encoding, logit)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("keys", [True, False])
@pytest.mark.parametrize("per_head", [True, False])
def test_formula_of_values(make, causal: bool, keys: bool, per_head: bool) -> None:
    encoding, T = make(Shaw, k=3, std=1.0, keys=keys, causal=causal, per_head=per_head).double(), 11
    q, k, v = torch.randn(3, 2, 2, T, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    context = Context(T, causal)
    scores = logits(encoding, q, k, context)
    if causal:
        scores = scores.masked_fill(context.hidden_QS, -torch.inf)
    weights = scores.softmax(-1).detach().numpy()
    table = encoding.values.detach().numpy()
    expected = np.zeros((2, 2, T, 4))
    for b, h, i, j in np.ndindex(2, 2, T, T):
        row = min(max(j - i, -3), 3) + 3
        expected[b, h, i] += weights[b, h, i, j] * (v[b, h, j].numpy() + (table[h, row] if per_head else table[row]))
    for positions in (None, torch.arange(T)):
        found = attend(encoding, q, k, v, context.with_(positions=positions)).detach().numpy()
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("causal", [True, False])
def test_zero_tables_are_no_position(make, causal: bool) -> None:
    encoding, none = make(Shaw, std=0.0, causal=causal), make(NoPE, causal=causal)
    q, k, v = torch.randn(3, 1, 2, 40, 4)
    assert torch.equal(attention_logits(encoding, q, k), attention_logits(none, q, k))
    context = Context(40, causal)
    torch.testing.assert_close(attend(encoding, q, k, v, context), attend(none, q, k, v, context))


def rows_met(encoding: Shaw, context: Context) -> list[list[int]]:
    """The row of the table of each pair: aK[n] = (n, 0, 0, 0), and q = (2, 0, 0, 0), whose root of K is 2."""
    table = torch.zeros(2 * encoding.k + 1, 4)
    table[:, 0] = torch.arange(2 * encoding.k + 1.0)
    encoding.keys.data.copy_(table)
    rows = len(range(context.length)[context.rows])
    q, k = torch.tensor([2.0, 0, 0, 0]).expand(1, 2, rows, 4), torch.zeros(1, 2, context.length, 4)
    return logits(encoding, q, k, context)[0, 0].long().tolist()


def test_golden_rows(make) -> None:
    expected = [[2, 3, 4, 4, 4], [1, 2, 3, 4, 4], [0, 1, 2, 3, 4], [0, 0, 1, 2, 3], [0, 0, 0, 1, 2]]
    assert rows_met(make(Shaw, k=2, causal=False), Context(5, False)) == expected


def test_the_last_query_sees_its_distances(make) -> None:
    """One query of three tokens, as in decoding: distances 2, 1, 0, rather than three times 0."""
    assert rows_met(make(Shaw, k=4), Context(3, True, rows=slice(2, 3))) == [[2, 3, 4]]


def test_more_keys_than_queries(make) -> None:
    assert rows_met(make(Shaw, k=2), Context(5, True, rows=slice(3, 5))) == [[0, 0, 1, 2, 3], [0, 0, 0, 1, 2]]


def test_three_times_the_clip_distance_works(make) -> None:
    found = torch.tensor(rows_met(make(Shaw, k=4, causal=False), Context(12, False)))
    offset = torch.arange(12)[None, :] - torch.arange(12)[:, None]
    assert torch.equal(found, offset.clamp(-4, 4) + 4)


@pytest.mark.parametrize(("causal", "reached"), [(True, range(1, 5)), (False, range(1, 8))])
def test_rows_that_a_length_does_not_reach_learn_nothing(make, causal: bool, reached: range) -> None:
    """At length 4 with k = 4: offsets -3..0 of a causal model, -3..3 of a bidirectional one."""
    encoding = make(Shaw, k=4, causal=causal)
    q, k, v = torch.randn(3, 1, 2, 4, 4)
    attend(encoding, q, k, v, Context(4, causal)).square().sum().backward()
    for table in (encoding.keys, encoding.values):
        assert table.grad.abs().sum(1).nonzero().flatten().tolist() == list(reached)


def test_initial_values(make) -> None:
    encoding = make(Shaw, heads=4, head_dim=16, k=64, std=0.5, per_head=True)
    for table in (encoding.keys, encoding.values):
        assert table.shape == (4, 129, 16)
        assert table.std().item() == pytest.approx(0.5, rel=0.05)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [({"k": 0}, "k=0"), ({"std": -0.1}, "std=-0.1"), ({"keys": False, "values": False}, "at least one")],
)
def test_impossible_options_are_refused(make, parameters: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(Shaw, **parameters)
