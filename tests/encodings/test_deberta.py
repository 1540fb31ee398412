import copy
import pickle
from dataclasses import replace

import pytest
import torch

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.deberta import DeBERTa
from rpe_bench.encodings.nope import NoPE
from rpe_bench.model import Transformer


def loud(encoding: DeBERTa) -> DeBERTa:
    for number, parameter in enumerate(encoding.parameters()):
        parameter.data.normal_(generator=torch.Generator().manual_seed(number))
    return encoding


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("terms", ["c2p", "p2c", "both"])
@pytest.mark.parametrize("reading", ["code", "paper"])
@pytest.mark.parametrize(("k_max", "per_head"), [(6, True), (512, True), (6, False)])
def test_formula(
    make, reference_equals_formula, causal: bool, terms: str, reading: str, k_max: int, per_head: bool
) -> None:
    encoding = loud(make(DeBERTa, k=k_max, terms=terms, p2c_reading=reading, causal=causal, per_head=per_head))
    P = encoding.positions.table_MD.detach().double().numpy()
    W_k, W_q = (None if p is None else p.detach().double().numpy() for p in (encoding.key_HDK, encoding.query_HDK))

    def d(distance: int) -> int:
        return 0 if distance <= -k_max else 2 * k_max - 1 if distance >= k_max else distance + k_max

    def logit(h, i, j, q, k) -> float:
        products, h = [q @ k], h if per_head else 0
        if terms != "p2c":
            products.append(q @ (P[d(i - j)] @ W_k[h]))
        if terms != "c2p":
            products.append(k @ (P[d(i - j) if reading == "code" else d(j - i)] @ W_q[h]))
        return sum(products) / (len(products) * 4) ** 0.5

    reference_equals_formula(encoding, logit)


def test_golden_rows(make) -> None:
    """k = 3: distances -3 and less have row 0, 2 and more have row 5."""
    encoding = make(DeBERTa, k=3)
    assert encoding.row(torch.arange(-5, 6)).tolist() == [0, 0, 0, 1, 2, 3, 4, 5, 5, 5, 5]


def test_the_two_readings_differ_by_the_side_of_the_key(make) -> None:
    """Of one P, what one reading has of the past the other has of the future."""
    code, paper = (loud(make(DeBERTa, terms="p2c", p2c_reading=name, causal=False)) for name in ("code", "paper"))
    q, k = torch.zeros(1, 2, 7, 4), torch.randn(1, 2, 1, 4).expand(1, 2, 7, 4)
    found = attention_logits(code, q, k)
    torch.testing.assert_close(attention_logits(paper, q, k), found.mT)
    assert (found - found.mT).abs().max() > 0.1


def test_a_zero_table_is_no_position(make) -> None:
    encoding, none = make(DeBERTa, std=0.0), make(NoPE)
    none.scale = encoding.scale
    q, k = torch.randn(2, 1, 2, 9, 4)
    assert torch.equal(attention_logits(encoding, q, k), attention_logits(none, q, k))


@pytest.mark.parametrize(("terms", "products"), [("c2p", 2), ("p2c", 2), ("both", 3)])
def test_scale(make, terms: str, products: int) -> None:
    assert make(DeBERTa, terms=terms).scale == pytest.approx((products * 4) ** -0.5)


def test_initial_values(make) -> None:
    encoding = make(DeBERTa, heads=4, head_dim=16, std=0.5)
    assert encoding.positions.table_MD.std().item() == pytest.approx(0.5, rel=0.05)
    for matrix in (encoding.key_HDK, encoding.query_HDK):
        assert matrix.shape == (4, 64, 16)
        assert (matrix.min().item(), matrix.max().item()) == pytest.approx((-0.125, 0.125), rel=0.02)  # D^-0.5
        assert abs(matrix.mean().item()) < 0.01
    assert not torch.equal(encoding.key_HDK, encoding.query_HDK)


def model(make, **parameters: object) -> Transformer:
    geometry = replace(make(DeBERTa).geometry, layers=3)
    encodings = DeBERTa.build(geometry, k=5, **parameters)
    sizes = {"vocabulary": 7, "classes": 7, "layers": 3, "dim": 8, "heads": 2, "causal": True}
    built = Transformer(**sizes, encodings=encodings)
    built.reset_parameters(0)
    return built


def test_layers_share_the_table_and_not_the_projections(make) -> None:
    shared, apart = model(make), model(make, shared=False)
    matrices, table = 3 * 2 * 8 * 8, 10 * 8
    assert sum(p.numel() for p in shared.encodings.parameters()) == matrices + table
    assert sum(p.numel() for p in apart.encodings.parameters()) == matrices + 3 * table
    assert [encoding.geometry.layer for encoding in shared.encodings] == [0, 1, 2]


def test_the_table_stays_shared(make) -> None:
    """When copied, pickled, moved, or given memory after being built without."""
    plain = model(make)
    with torch.device("meta"):
        empty = model(make)
    empty.to_empty(device="cpu").reset_parameters(0)
    reread = model(make)
    reread.load_state_dict(plain.state_dict())
    tokens = torch.arange(7)[None]
    for other in (copy.deepcopy(plain), pickle.loads(pickle.dumps(plain)), empty, reread, model(make).double().float()):
        assert len({id(encoding.positions.table_MD) for encoding in other.encodings}) == 1
        assert torch.equal(other(tokens), plain(tokens))


def test_rows_that_no_offset_reaches_learn_nothing(make) -> None:
    """Length 4, causal: distances 0..3 of k = 8 are the rows 8..11."""
    encoding = make(DeBERTa, k=8)
    q, k = torch.randn(2, 1, 2, 4, 4)
    hidden = Context(4, True).hidden_QS
    attention_logits(encoding, q, k).masked_fill(hidden, 0).square().sum().backward()
    assert encoding.positions.table_MD.grad.abs().sum(1).nonzero().flatten().tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"k": 0}, "k=0"),
        ({"std": -0.1}, "std=-0.1"),
        ({"terms": "p2p"}, "terms=p2p is not one of c2p, p2c, both"),
        ({"p2c_reading": "other"}, "p2c_reading=other is not one of code, paper"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(DeBERTa, **parameters)
