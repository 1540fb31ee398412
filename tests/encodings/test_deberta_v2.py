from dataclasses import replace
from fractions import Fraction

import pytest
import torch
from torch import Tensor

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.deberta_v2 import DeBERTaV2
from rpe_bench.model import Transformer

GOLDEN = {127: 127, 128: 128, 129: 129, 130: 130, 200: 169, 300: 207, 511: 255}


def test_golden_buckets(make) -> None:
    encoding, distances = make(DeBERTaV2), torch.tensor(list(GOLDEN))
    assert encoding.bucket(distances).tolist() == list(GOLDEN.values())
    assert encoding.bucket(-distances).tolist() == [-bucket for bucket in GOLDEN.values()]


def exact_bucket(distance: int, buckets: int, largest: int) -> int:
    """The formula in rational numbers: ceil(log(a) / log(b) * c) <= m means a^c <= b^m."""
    mid, n = buckets // 2, abs(distance)
    if n <= mid:
        return distance
    grown = 0
    while Fraction(n, mid) ** (mid - 1) > Fraction(largest - 1, mid) ** grown:
        grown += 1
    return (mid + grown) * (1 if distance > 0 else -1)


@pytest.mark.parametrize(("buckets", "largest"), [(8, 16), (8, 17), (16, 33), (4, 33), (32, 257), (8, 7)])
def test_buckets_are_exact(make, buckets: int, largest: int) -> None:
    """A logarithm rounded up at a power, as in float32, would put the last distance of a bucket into the one after."""
    encoding = make(DeBERTaV2, position_buckets=buckets, max_relative_positions=largest)
    distances = range(-2 * largest, 2 * largest)
    expected = [exact_bucket(distance, buckets, largest) for distance in distances]
    assert encoding.bucket(torch.tensor(distances)).tolist() == expected


def test_rows_end_at_the_largest_distance(make) -> None:
    encoding = make(DeBERTaV2)
    assert encoding.row(torch.tensor([-1000, -512, -511, 0, 511, 512, 1000])).tolist() == [0, 0, 1, 256, 511, 511, 511]


def projection(heads: int = 2, dim: int = 8):
    weights = torch.randn(2, dim, dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

    def project(vectors: Tensor) -> tuple[Tensor, Tensor]:
        q, k = ((vectors @ weight.to(vectors.dtype)).unflatten(-1, (heads, -1)) for weight in weights)
        return q, k

    return project


@pytest.mark.parametrize("reading", ["code", "paper"])
@pytest.mark.parametrize("terms", ["c2p", "p2c", "both"])
@pytest.mark.parametrize("share", [True, False])
def test_formula(make, terms: str, reading: str, share: bool) -> None:
    options = {"position_buckets": 8, "max_relative_positions": 16, "p2c_reading": reading, "terms": terms}
    encoding, T = make(DeBERTaV2, share_att_key=share, causal=False, **options).double(), 40
    for number, parameter in enumerate(encoding.parameters()):
        parameter.data.normal_(generator=torch.Generator().manual_seed(number))
    q, k = torch.randn(2, 1, 2, T, 4, dtype=torch.float64)
    P = encoding.positions.table_MD.detach()
    P = (P - P.mean(1, keepdim=True)) / (P.var(1, keepdim=True, correction=0) + 1e-7).sqrt()
    P = P * encoding.positions.norm.weight + encoding.positions.norm.bias
    project = projection()
    of_query, of_key = (vectors.transpose(0, 1) for vectors in project(P))
    if not share:
        of_query, of_key = (None if W is None else P @ W for W in (encoding.query_HDK, encoding.key_HDK))
    expected = torch.zeros(1, 2, T, T, dtype=torch.float64)
    for i in range(T):
        for j in range(T):
            there, back = (min(max(exact_bucket(n, 8, 16) + 8, 0), 15) for n in (i - j, j - i))
            products = [(q[0, :, i] * k[0, :, j]).sum(-1)]
            if terms != "p2c":
                products.append((q[0, :, i] * of_key[:, there]).sum(-1))
            if terms != "c2p":
                products.append((k[0, :, j] * of_query[:, there if reading == "code" else back]).sum(-1))
            expected[0, :, i, j] = sum(products) / (len(products) * 4) ** 0.5
    for positions in (None, torch.arange(T)):
        found = attention_logits(encoding, q, k, positions, project=project)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-10)


def test_a_module_in_float32_is_exact_in_float64(make) -> None:
    """Its numbers are rounded, as they are kept; what is made of them is not, the normalised table included."""
    encoding = make(DeBERTaV2, share_att_key=False)
    q, k = torch.randn(2, 1, 2, 9, 4, dtype=torch.float64)
    found = attention_logits(encoding, q, k)
    torch.testing.assert_close(found, attention_logits(encoding.double(), q, k), rtol=0, atol=1e-14)


def test_without_a_layer_it_says_what_it_lacks(make) -> None:
    q = torch.randn(1, 2, 3, 4)
    with pytest.raises(ValueError, match="uses the projections of a layer, and was given none"):
        attention_logits(make(DeBERTaV2), q, q)
    attention_logits(make(DeBERTaV2, share_att_key=False), q, q)


@pytest.mark.parametrize(
    ("share", "shared", "modules", "tables"), [(True, True, 1, 1), (True, False, 3, 3), (False, True, 3, 1)]
)
def test_what_layers_share(make, share: bool, shared: bool, modules: int, tables: int) -> None:
    geometry = replace(make(DeBERTaV2).geometry, layers=3)
    built = DeBERTaV2.build(geometry, share_att_key=share, shared=shared)
    assert len(built) == modules
    assert len({id(encoding.positions.table_MD) for encoding in built}) == tables


def test_a_layer_lends_its_projections_to_positions(make) -> None:
    """A gradient of positions alone reaches the projection of queries and keys."""
    geometry = replace(make(DeBERTaV2).geometry, layers=2)
    sizes = {"vocabulary": 7, "classes": 7, "layers": 2, "dim": 8, "heads": 2, "causal": True}
    model = Transformer(**sizes, encodings=DeBERTaV2.build(geometry))
    model.reset_parameters(0)
    model(torch.arange(7)[None]).square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.any() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"position_buckets": 2}, "position_buckets=2"),
        ({"position_buckets": 7}, "position_buckets=7"),
        ({"max_relative_positions": 129}, "max_relative_positions=129 must exceed 129"),
        ({"terms": "p2p"}, "terms=p2p is not one of"),
        ({"std": -0.1}, "std=-0.1"),
    ],
)
def test_impossible_options_are_refused(make, parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make(DeBERTaV2, **parameters)
