"""The shared placement of one score an offset, against loops over pairs, and the encodings that use it."""

import copy
import pickle
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from rpe_bench.attention import attend, attention_logits, logits
from rpe_bench.components import make_encoding
from rpe_bench.encodings import relative
from rpe_bench.encodings.base import Context
from rpe_bench.encodings.relative import SinusoidTerm, add_key_logits, add_query_logits, mixed_values, sinusoid_blocks

OWN = ["shaw", "transformer_xl", "xlnet", "sinusoidal_relative", "sinusoidal_relative_key", "deberta", "deberta_v2"]
"""The encodings whose logit has a term with a vector of the offset."""

SIZES = {"dim": 12, "heads": 2, "train_length": 16, "max_length": 64, "causal": True}


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def project(vectors: Tensor) -> tuple[Tensor, Tensor]:
    q, k = (vectors @ weight.to(vectors.dtype) for weight in normal(2, 12, 12, seed=9))
    return q.unflatten(-1, (2, 6)), k.unflatten(-1, (2, 6))


def drawn(name: str, **changes: object) -> torch.nn.Module:
    """In float64, with values far from zero, so that nothing holds for want of an effect."""
    encoding = make_encoding(name, **(SIZES | changes)).double()
    for number, parameter in enumerate(encoding.parameters()):
        parameter.data.copy_(normal(*parameter.shape, seed=number))
    return encoding


def row_of(table: Tensor, head: int, offset: float, first: int) -> Tensor:
    row = min(max(int(offset) - first, 0), table.shape[-2] - 1)
    return table[row] if table.dim() == 2 else table[min(head, len(table) - 1), row]


def positions_of(context: Context, batch: int) -> list[list[float]]:
    positions = context.key_positions
    return [(positions if positions.dim() == 1 else positions[b].flatten()).tolist() for b in range(batch)]


def query_logits(q: Tensor, table: Tensor, first: int, context: Context) -> Tensor:
    return add_query_logits(q.new_zeros(*q.shape[:3], context.length), q, table, first, context)


def key_logits(k: Tensor, table: Tensor, first: int, context: Context) -> Tensor:
    rows = len(range(context.length)[context.rows])
    return add_key_logits(k.new_zeros(*k.shape[:2], rows, context.length), k, table, first, context)


B, H, K = 2, 3, 4
TABLES = [((9, K), -4), ((H, 200, K), -100), ((1, 3, K), 2), ((H, 5, K), -9)]
"""Shapes, and the offset of the first row."""
CONTEXTS = {
    "one": Context(1, True),
    "short": Context(7, False),
    "several tiles": Context(75, False),
    "a chunk": Context(75, True, rows=slice(30, 69)),
    "one row": Context(75, True, rows=slice(74, 75)),
    "given": Context(9, False, torch.tensor([0, 3, 1, 1, 40, 7, 2, 9, 5])),
    "given each": Context(5, True, torch.tensor([[0, 1, 2, 3, 4], [9, 2, 30, 30, 1]]), rows=slice(2, 5)),
    "given on an axis": Context(3, True, torch.tensor([[[0], [1], [2]], [[5], [0], [1]]]).double()),
}


@pytest.fixture(params=list(CONTEXTS))
def context(request: pytest.FixtureRequest) -> Context:
    return CONTEXTS[request.param]


@pytest.mark.parametrize(("table", "first"), TABLES)
def test_each_pair_meets_the_row_of_its_offset(context: Context, table: tuple[int, ...], first: int) -> None:
    rows = range(context.length)[context.rows]
    q, k, R = normal(B, H, len(rows), K), normal(B, H, context.length, K, seed=1), normal(*table, seed=2)
    weights, v = normal(B, H, len(rows), context.length, seed=3), normal(B, H, context.length, K, seed=4)
    of_query, of_key = (torch.zeros(B, H, len(rows), context.length, dtype=torch.float64) for _ in range(2))
    mixed = torch.zeros(B, H, len(rows), K, dtype=torch.float64)
    places = positions_of(context, B)
    for b in range(B):
        for h in range(H):
            # An offset's row, by offset: pairs are many, offsets few.
            vectors = {d: row_of(R, h, d, first) for p in places[b] for d in (p - p2 for p2 in places[b])}
            for r, i in enumerate(rows):
                by_query = torch.stack([vectors[p - places[b][i]] for p in places[b]])
                of_query[b, h, r] = by_query @ q[b, h, r]
                mixed[b, h, r] = weights[b, h, r] @ (v[b, h] + by_query)
                by_key = torch.stack([vectors[places[b][i] - p] for p in places[b]])
                of_key[b, h, r] = (by_key * k[b, h]).sum(-1)
    torch.testing.assert_close(query_logits(q, R, first, context), of_query)
    torch.testing.assert_close(key_logits(k, R, first, context), of_key)
    torch.testing.assert_close(mixed_values(weights, v, R, first, context), mixed)


@pytest.mark.parametrize(
    ("table", "first"), [*TABLES, ((75, K), -74), ((H, 74, K), -73), ((40, K), -39), ((40, K), -33)]
)
@pytest.mark.parametrize("rows", [slice(None), slice(30, 69), slice(74, 75), slice(0, 3)])
def test_where_a_mask_follows_what_is_seen_stays(table: tuple[int, ...], first: int, rows: slice) -> None:
    """Of hidden pairs anything may be said, and their weights and gradients are 0.

    Some tables reach to the first of 75 keys, and one to all but that; one to a key more than a tile has rows.
    """
    context = Context(75, True, rows=rows)
    seen = ~context.hidden_QS
    Q = len(seen)
    given = normal(B, H, Q, K), normal(B, H, 75, K, seed=1), normal(*table, seed=2), normal(B, H, Q, 75, seed=3)

    def outcomes(context: Context) -> list[Tensor]:
        q, k, R, weights = (tensor.clone().requires_grad_() for tensor in given)
        logits = query_logits(q, R, first, context) + key_logits(k, R, first, context)
        mixed = mixed_values(weights * seen, k, R, first, context)
        total = logits[..., seen].sin().sum() + mixed.sin().sum()
        gradients = torch.autograd.grad(total, (q, k, R, weights))
        return [logits[..., seen], mixed, *gradients]

    for found, expected in zip(outcomes(context.with_(masked=True)), outcomes(context), strict=True):
        torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("masked", [True, False])
@pytest.mark.parametrize("table", [(9, K), (H, 9, K)])
def test_no_examples(table: tuple[int, ...], masked: bool) -> None:
    context, R = Context(40, True, masked=masked), normal(*table).requires_grad_()
    q, weights = normal(0, H, 40, K), normal(0, H, 40, 40)
    for out in (query_logits(q, R, -4, context), mixed_values(weights, q, R, -4, context)):
        assert len(out) == 0 and not torch.autograd.grad(out.sum(), R)[0].any()


@pytest.mark.parametrize("table", [(7, K), (H, 7, K), (H, 99, K)])
def test_gradients_by_shift_are_those_by_index(table: tuple[int, ...]) -> None:
    T = 40
    x, weights, v = normal(B, H, T, K), normal(B, H, T, T, seed=1), normal(B, H, T, K, seed=2)
    for function, given in ((query_logits, (x,)), (key_logits, (x,)), (mixed_values, (weights, v))):
        found = []
        for positions in (None, torch.arange(T)):
            inputs = [tensor.clone().requires_grad_() for tensor in (*given, normal(*table, seed=3))]
            out = function(*inputs, -3, Context(T, True, positions))
            found.append(torch.autograd.grad(out.sin().sum(), inputs))
        torch.testing.assert_close(found[0], found[1])


@pytest.mark.parametrize(("table", "first"), [((3, 2), -1), ((2, 9, 2), -4)])
def test_gradients_equal_finite_differences(monkeypatch, table: tuple[int, ...], first: int) -> None:
    """In tiles of two rows."""
    monkeypatch.setattr(relative, "TILE_ROWS", 2)
    context = Context(5, True, rows=slice(1, 5))
    q, k, weights, R = (normal(*s).requires_grad_() for s in ((2, 2, 4, 2), (2, 2, 5, 2), (2, 2, 4, 5), table))

    def outputs(q: Tensor, k: Tensor, weights: Tensor, R: Tensor) -> tuple[Tensor, ...]:
        of_query, of_key = query_logits(q, R, first, context), key_logits(k, R, first, context)
        return of_query, of_key, mixed_values(weights, k, R, first, context)

    assert torch.autograd.gradcheck(outputs, (q, k, weights, R))


def test_golden_shift() -> None:
    """Scores 0..8 of three queries at the offsets -2, -1, 0. A slip by one row would give 0 / 2 0 / 4 5 0."""
    scores = torch.arange(9.0).view(1, 1, 3, 3)
    found = query_logits(scores, torch.eye(3), -2, Context(3, True))[0, 0]
    assert [found[i, : i + 1].tolist() for i in range(3)] == [[2], [4, 5], [6, 7, 8]]


@pytest.mark.parametrize("memory", [0, 3])
def test_keys_before_the_first_query_are_met(memory: int) -> None:
    """Five queries after none or three more keys: each pair at its own offset, the first key included."""
    T = 5 + memory
    q, R = normal(1, 1, 5, 4), normal(2 * T - 1, 4, seed=1)
    found = query_logits(q, R, 1 - T, Context(T, True, rows=slice(memory, T)))[0, 0]
    for i in range(5):
        for j in range(T):
            assert found[i, j] == pytest.approx(float(q[0, 0, i] @ R[j - (i + memory) + T - 1]))


def test_a_chunk_of_queries_costs_no_more_than_its_share() -> None:
    """Each key of a long sequence meets the offsets of the queries at hand, not those of all."""
    (tiles,), ends = relative._key_tiles(4096, 16, 2 * 4096, 4096)
    assert (tiles.start, tiles.stop) == (0, 4096) and not ends
    assert tiles.windows(torch.zeros(2 * 4096, 1), 4096).shape == (4096 // 16, 16 + 16 - 1)


def test_keys_beyond_the_table_cost_a_product_each() -> None:
    """Rows 0..9 of the table, 8 queries after 92 keys, and 50 keys more: key 92 is at the offset 0 of the first."""
    (tiles, rest), ends = relative._key_tiles(150, 8, 10, 92)
    assert ends == [(slice(0, 84), 9), (slice(99, 150), 0)]
    assert (tiles.start, tiles.stop, rest.start, rest.stop) == (84, 92, 92, 99)


def test_blocks_of_sines_then_of_cosines() -> None:
    found = sinusoid_blocks(torch.tensor([1.5, -2.0]), 4, 100.0)
    expected = torch.tensor([[1.5, 0.15], [-2.0, -0.2]], dtype=torch.float64)
    torch.testing.assert_close(found, torch.cat((expected.sin(), expected.cos()), dim=-1))


@pytest.mark.parametrize("clamp", [None, 3])
@pytest.mark.parametrize("positions", [None, torch.tensor([0.0, 0.5, 7.25, 3.0, 1e6, 1e6 + 1])])
def test_a_sinusoid_of_any_distance(clamp: int | None, positions: Tensor | None) -> None:
    q, W = normal(1, 2, 6, 4), normal(2, 8, 4, seed=1)
    found = SinusoidTerm(8, 10_000.0, clamp).add(torch.zeros(1, 2, 6, 6).double(), q, W, Context(6, False, positions))
    places = torch.arange(6.0) if positions is None else positions
    distance = (places[:, None] - places[None, :]).double()
    if clamp is not None:
        distance = distance.clamp(-clamp, clamp)
    r = sinusoid_blocks(distance, 8, 10_000.0)
    expected = torch.einsum("bhqk,hdk,qsd->bhqs", q, W, r)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", OWN)
@pytest.mark.parametrize("given", [False, True])
def test_queries_at_the_end_of_a_longer_sequence(name: str, given: bool) -> None:
    """Queries 5 to 7 of keys 0 to 7, as in decoding: rows 5 to 7 of the full matrix, neither cut nor counted anew."""
    encoding = drawn(name)
    q, k = normal(2, 2, 2, 8, 6)
    context = Context(8, True, torch.arange(8) if given else None, project=project)
    full = logits(encoding, q, k, context)
    part = logits(encoding, q[:, :, 5:8], k, context.with_(rows=slice(5, 8)))
    torch.testing.assert_close(part, full[:, :, 5:8], rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OWN)
def test_what_follows_changes_nothing_before(name: str) -> None:
    encoding = drawn(name)
    q, k, v = normal(3, 1, 2, 40, 6)
    context = Context(40, True, project=project)
    before = attend(encoding, q, k, v, context)
    changed = (torch.cat((t[:, :, :17], -t[:, :, 17:]), dim=2) for t in (q, k, v))
    after = attend(encoding, *changed, context)
    assert torch.equal(after[:, :, :17], before[:, :, :17]) and not torch.equal(after[:, :, 17], before[:, :, 17])


def test_one_table_may_begin_at_two_offsets() -> None:
    context = Context(75, True, masked=True)
    q, R = normal(B, H, 75, K), normal(9, K, seed=1)
    for first in (-8, -3):
        found = query_logits(q, R, first, context)
        expected = query_logits(q, R, first, context.with_(masked=False))
        torch.testing.assert_close(found.tril(), expected.tril())


@pytest.mark.parametrize(
    ("name", "options", "tables"),
    [("shaw", {}, 2), ("deberta", {"terms": "c2p", "per_head": False}, 1), ("transformer_xl", {"per_head": False}, 1)],
)
def test_what_rows_make_of_a_table_is_made_once(
    monkeypatch, name: str, options: dict[str, object], tables: int
) -> None:
    """By a pass over 100 tokens, 32 at a time, for all heads or for each."""
    encoding, made, original = drawn(name, **options), [], relative._of_seen
    monkeypatch.setattr(relative, "_of_seen", lambda *given: made.append(given) or original(*given))
    q, k, v = normal(3, 1, 2, 100, 6)
    attend(encoding, q, k, v, Context(100, True))
    assert len(made) == tables


@pytest.mark.parametrize("name", ["shaw", "deberta", "deberta_v2"])
def test_a_table_has_no_rows_for_fractions(name: str) -> None:
    q = normal(1, 2, 3, 6)
    with pytest.raises(ValueError, match="whole positions only"):
        attention_logits(drawn(name), q, q, torch.tensor([0.0, 0.5, 1.0]), project=project)


@pytest.mark.parametrize("name", OWN)
def test_long_sequences_take_memory_by_the_chunk(name: str, monkeypatch) -> None:
    """Outside training, chunks of rows give what all rows at once give."""
    encoding, (q, k, v) = drawn(name), normal(3, 1, 2, 100, 6)
    with torch.no_grad():
        whole = attend(encoding, q, k, v, Context(100, True, project=project))
        monkeypatch.setattr("rpe_bench.attention.CHUNK_ELEMENTS", 2 * 100 * 7)
        chunks = attend(encoding, q, k, v, Context(100, True, project=project))
    torch.testing.assert_close(chunks, whole, rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", OWN)
def test_copies_are_equal(name: str) -> None:
    encoding, q = drawn(name), normal(1, 2, 9, 6)
    expected = attention_logits(encoding, q, q, project=project)
    for twin in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert torch.equal(attention_logits(twin, q, q, project=project), expected)


@pytest.mark.parametrize("name", OWN)
def test_as_many_numbers_as_declared(name: str) -> None:
    for changes in ({}, {"dim": 32, "heads": 4}):
        encoding = make_encoding(name, **(SIZES | changes))
        geometry = replace(encoding.geometry)
        names = {"D": geometry.dim, "H": geometry.heads, "K": geometry.head_dim, "L": geometry.max_length}
        defaults = {"k": encoding.__dict__.get("k"), "per_head": name != "shaw", "keys": True, "values": True}
        defaults |= {"width": None, "terms": "both", "share_att_key": True, "position_buckets": 256}
        learned = sum(parameter.numel() for parameter in encoding.parameters())
        assert eval(encoding.learns, names | defaults) == learned
