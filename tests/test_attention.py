"""Every path of attention is the reference path, in values and gradients, and is the path taken where it should be."""

import inspect
import itertools
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from support import Case, Setting, normal, setting
from torch import Tensor, nn

from rpe_bench import attention, catalogue
from rpe_bench.attention import attend, attention_logits, reference
from rpe_bench.components import arguments
from rpe_bench.encodings.base import Context, DistanceBias, Encoding, Geometry

LENGTHS = (1, 2, 7, 257)
HEADS = (1, 6)

Build = Callable[[int, bool], Encoding]
"""From the number of heads, and whether the model is causal, to an encoding."""


class Content(Encoding):
    """Overrides content, bias and value, none of which is a function of distance alone."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        self.keys = nn.Parameter(torch.empty(2 * 4 + 1, geometry.head_dim))
        self.values = nn.Parameter(torch.empty(2 * 4 + 1, geometry.head_dim))

    def reset_parameters(self, generator: torch.Generator) -> None:
        for table in self.parameters():
            nn.init.normal_(table, generator=generator)

    def index(self, context: Context) -> Tensor:
        return context.offset.clamp(-4, 4) + 4

    def content(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        return super().content(q_BHQK, k_BHSK, context).tanh()

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        assert context.content_BHQS is not None
        relative = torch.einsum("bhqk,...qsk->bhqs", q_BHQK, self.keys[self.index(context)])
        return relative + context.content_BHQS.square()

    def value(self, weights_BHQS: Tensor, v_BHSK: Tensor, context: Context) -> Tensor:
        relative = torch.einsum("bhqs,...qsk->bhqk", weights_BHQS, self.values[self.index(context)])
        return weights_BHQS @ v_BHSK + relative


class DistanceAndContent(DistanceBias):
    """A bias of distance alone, and another change besides."""

    def of_offset(self, offset: Tensor) -> Tensor:
        return -offset.abs().double()[..., None].sqrt()

    def content(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        return super().content(q_BHQK, k_BHSK, context).tanh()


class AmendedDistance(DistanceBias):
    """A bias that its class amends: what `of_offset` says is not all of it."""

    def of_offset(self, offset: Tensor) -> Tensor:
        return -offset.abs().double()[..., None].sqrt()

    def bias(self, q_BHQK: Tensor, k_BHSK: Tensor, context: Context) -> Tensor:
        return 0.5 * super().bias(q_BHQK, k_BHSK, context)


class ScalePerHead(Encoding):
    """A softmax scale that is a tensor."""

    def __init__(self, geometry: Geometry) -> None:
        super().__init__(geometry)
        # A buffer, so that it follows the dtype of the module.
        del self.scale
        self.register_buffer("scale", torch.linspace(0.2, 0.7, geometry.heads)[:, None, None], persistent=False)


def own(cls: type[Encoding]) -> Build:
    def build(heads: int, causal: bool) -> Encoding:
        encoding = cls(Geometry(4 * heads, heads, 16, 257, causal))
        encoding.reset_parameters(torch.Generator().manual_seed(0))
        return encoding

    return build


def from_conf(case: Case, **options: Any) -> Build:
    def build(heads: int, causal: bool) -> Encoding:
        sizes = {"dim": 4 * heads, "heads": heads, "train_length": 16, "max_length": 257}
        encoding = Case(case.name, causal).encoding(**sizes, **options)
        with torch.no_grad():
            for parameter in encoding.parameters():
                parameter.normal_(generator=torch.Generator().manual_seed(1))
        return encoding

    return build


def builders() -> dict[str, tuple[type[Encoding], Build]]:
    """Every encoding of conf/, with one column for all heads too where it has that option; and those above."""
    found: dict[str, tuple[type[Encoding], Build]] = {}
    for cls in (Content, DistanceAndContent, AmendedDistance, ScalePerHead):
        found[cls.__name__] = cls, own(cls)
    for name in catalogue.encodings():
        case = Case(name, causal=True)
        found[name] = case.cls, from_conf(case)
        if inspect.signature(case.cls).parameters.get("per_head"):
            other = not arguments("encoding", catalogue.read("encoding", name))["per_head"]
            found[f"{name}-per_head={other}"] = case.cls, from_conf(case, per_head=other)
    return found


BUILDERS = builders()
CASES = list(itertools.product(BUILDERS, (True, False)))
CASES = [(label, causal) for label, causal in CASES if causal or not BUILDERS[label][0].causal_only]


@pytest.fixture(params=CASES, ids=lambda case: f"{case[0]}-{'causal' if case[1] else 'bidirectional'}")
def build(request: pytest.FixtureRequest) -> Callable[[int], Encoding]:
    """A function from the number of heads to an encoding."""
    label, causal = request.param
    return lambda heads: BUILDERS[label][1](heads, causal)


@dataclass
class Taken:
    """What attention did: calls of each function, masks and queries given to the fused kernel, rows of each explicit
    call."""

    calls: Counter[str] = field(default_factory=Counter)
    masks: list[Tensor | None] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    queries: list[int] = field(default_factory=list)

    def path(self) -> str:
        kinds = {name for name in self.calls if name != "scaled_dot_product_attention"}
        return " and ".join(sorted(kinds)) or "fused"


@pytest.fixture
def taken(monkeypatch: pytest.MonkeyPatch) -> Taken:
    record = Taken()

    def spy(name: str) -> None:
        original = getattr(attention, name)

        def spied(*args: Any, **kwargs: Any) -> Tensor:
            record.calls[name] += 1
            if name == "scaled_dot_product_attention":
                record.masks.append(kwargs.get("attn_mask"))
                record.queries.append(args[0].shape[2])
            if name == "_explicit":
                record.rows.append(args[1].shape[2])
            return original(*args, **kwargs)

        monkeypatch.setattr(attention, name, spied)

    for name in ("scaled_dot_product_attention", "_explicit", "_view_of_bias", "_by_rows"):
        spy(name)
    return record


def expected_path(encoding: Encoding, context: Context) -> str:
    """As the documentation of the module says."""
    places = set(encoding.changes()) - {"embed", "rotate"}
    if isinstance(encoding.scale, Tensor):
        return "_explicit"
    if not places:
        return "fused"
    by_distance = isinstance(encoding, DistanceBias) and context.positions is None and encoding.by_offset_alone(context)
    if places != {"bias"} or not by_distance or type(encoding) is AmendedDistance:
        return "_explicit"
    return "_by_rows" if len(list(encoding.parameters())) and torch.is_grad_enabled() else "_view_of_bias"


@pytest.fixture(autouse=True)
def several_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the longest of LENGTHS takes more than one."""
    monkeypatch.setattr(attention, "BLOCK_ROWS", 100)


def assert_close(found: Tensor, expected: Tensor, dtype: torch.dtype, relative: float = 1e-5) -> None:
    tolerance = 1e-10 if dtype == torch.float64 else relative * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def outcome(path: Callable[..., Tensor], encoding: Encoding, given: Setting) -> Tensor:
    return path(encoding, given.q, given.k, given.v, given.context.with_(memo={}))


def positions_of(encoding: Encoding, length: int) -> list[Tensor]:
    """Out of order, repeated, with gaps; the same for all examples, and not."""
    generator = torch.Generator().manual_seed(length)
    reach = encoding.geometry.max_extents[0]
    if (encoding.axes or 1) > 1:
        return [torch.randint(reach, (2, length, 2), generator=generator)]
    return [torch.randint(reach, shape, generator=generator) for shape in ((length,), (2, length))]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_values_and_gradients_are_the_reference(build, taken: Taken, dtype: torch.dtype) -> None:
    for heads, length in itertools.product(HEADS, LENGTHS):
        encoding = build(heads).to(dtype)
        given = setting(encoding, length, dtype=dtype)
        leaves = [*given.leaves(), *encoding.parameters()]
        toward = torch.randn(given.v.shape, dtype=dtype)

        expected = outcome(reference, encoding, given)
        taken.calls.clear()
        found = outcome(attend, encoding, given)
        assert taken.path() == expected_path(encoding, given.context)
        assert_close(found, expected, dtype)
        gradients = [torch.autograd.grad((out * toward).sum(), leaves, allow_unused=True) for out in (found, expected)]
        for one, other in zip(*gradients, strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                # The gradient of one number may be a sum of thousands that nearly cancel.
                assert_close(one, other, dtype, relative=1e-4)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@torch.no_grad()
def test_values_without_gradients_are_the_reference(build, taken: Taken, dtype: torch.dtype) -> None:
    for heads, length in itertools.product(HEADS, LENGTHS):
        encoding = build(heads).to(dtype)
        given = setting(encoding, length, dtype=dtype)
        expected = outcome(reference, encoding, given)
        taken.calls.clear()
        assert_close(outcome(attend, encoding, given), expected, dtype)
        assert taken.path() == expected_path(encoding, given.context)


def test_bfloat16_is_the_reference_to_its_rounding(build, taken: Taken) -> None:
    """Of q, k and v in bfloat16 the products of training may be too; whatever else there is is as exact as in float32,
    and without gradients all of it is."""
    for heads, length in itertools.product(HEADS, LENGTHS):
        encoding = build(heads)
        given, exact = (setting(encoding, length, dtype=dtype) for dtype in (torch.float32, torch.float64))
        for name in ("q", "k", "v"):
            setattr(given, name, getattr(given, name).to(torch.bfloat16))
            setattr(exact, name, getattr(given, name).double())
        exact.context = exact.context.with_(x_BTD=given.context.x_BTD.double())
        toward = normal(*given.v.shape, seed=9).to(torch.bfloat16)
        rotated, _ = encoding.rotate(given.q.float(), given.k.float(), given.context.positions, given.context)
        path = expected_path(encoding, given.context)
        if path == "_view_of_bias" or path == "fused" and rotated.shape == given.q.shape:
            path = "_by_rows"

        with torch.no_grad():
            without_gradients = outcome(attend, encoding, given)
        taken.calls.clear()
        leaves = [*given.leaves()[:3], *encoding.parameters()]
        found = outcome(attend, encoding, given)
        assert taken.path() == path
        gradients = torch.autograd.grad((found * toward).sum(), leaves, allow_unused=True)

        encoding = encoding.double()
        leaves = [*exact.leaves()[:3], *encoding.parameters()]
        expected = outcome(reference, encoding, exact)
        expected_gradients = torch.autograd.grad((expected * toward).sum(), leaves, allow_unused=True)
        assert relative_error(without_gradients, expected) < 1e-4
        assert relative_error(found, expected) < (0.01 if path == "_by_rows" else 1e-4)
        for one, other in zip(gradients[:3], expected_gradients[:3], strict=True):
            assert relative_error(one, other) < (0.03 if path == "_by_rows" else 0.005)
        # Those of what an encoding has learned may be sums that nearly cancel; see the next test.
        assert [one is None for one in gradients] == [one is None for one in expected_gradients]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("heads_of_bias", [1, 3])
def test_the_gradient_of_a_bias_in_bfloat16(causal: bool, heads_of_bias: int) -> None:
    q, k, v, toward = normal(4, 2, 3, 150, 4, seed=0, dtype=torch.bfloat16).unbind()
    bias = 3 * normal(heads_of_bias, 150, 150, seed=1, dtype=torch.float32)
    if causal:
        bias += torch.full((150, 150), -math.inf).triu(1)
    found, expected = bias.requires_grad_(), bias.detach().double().requires_grad_()
    mixed = attention._ByRows.apply(q, k, v, found, 0.7, causal)
    (mixed * toward).sum().backward()
    ((0.7 * q.double() @ k.mT.double() + expected).softmax(-1) @ v.double() * toward).sum().backward()
    assert relative_error(found.grad, expected.grad) < 0.02


class Past(DistanceBias):
    """No query sees itself, and the first none at all."""

    def of_offset(self, offset: Tensor) -> Tensor:
        return torch.zeros(offset.shape, dtype=torch.float64).masked_fill(offset == 0, -math.inf)[..., None]


def test_training_outlasts_a_query_that_sees_nothing() -> None:
    encoding = Past(Geometry(8, 2, 16, 257, True))
    for dtype in (torch.float32, torch.bfloat16):
        given = setting(encoding, 70, dtype=torch.float32)
        for name in ("q", "k", "v"):
            setattr(given, name, getattr(given, name).to(dtype).requires_grad_())
        found = outcome(attend, encoding, given)
        assert not found[:, :, 0].any() and found[:, :, 1:].isfinite().all()
        assert all(x.isfinite().all() for x in torch.autograd.grad(found.sum(), [given.q, given.k, given.v]))


class SumsAndDistance(DistanceBias):
    """Sums beside the features of q and k, as a forget gate's, and a bias of distance."""

    def __init__(self, geometry: Geometry, learned: bool) -> None:
        super().__init__(geometry)
        self.slope = nn.Parameter(torch.tensor(-0.1), requires_grad=learned)

    def of_offset(self, offset: Tensor) -> Tensor:
        return self.slope * offset.abs().double()[..., None]

    def rotate(
        self, q_BHTK: Tensor, k_BHTK: Tensor, positions: Tensor | None = None, context: Context | None = None
    ) -> tuple[Tensor, Tensor]:
        sums = -0.7 * torch.arange(q_BHTK.shape[2], dtype=q_BHTK.dtype)[:, None].expand(*q_BHTK.shape[:3], 1)
        one, scale = torch.ones_like(sums), self.geometry.head_dim**-0.5
        return torch.cat((sums / scale, one / scale, q_BHTK), -1), torch.cat((one, -sums, k_BHTK), -1)


@pytest.mark.parametrize("learned", [True, False])
def test_sums_beside_a_bias_are_not_rounded_to_bfloat16(learned: bool) -> None:
    encoding = SumsAndDistance(Geometry(8, 2, 16, 257, True), learned)
    given = setting(encoding, 257, dtype=torch.float32)
    for name in ("q", "k", "v"):
        setattr(given, name, getattr(given, name).to(torch.bfloat16))
    found = outcome(attend, encoding, given)
    for name in ("q", "k", "v"):
        setattr(given, name, getattr(given, name).float())
    assert relative_error(found, outcome(reference, encoding, given)) < 1e-4


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Of all numbers together."""
    found, expected = found.detach(), expected.detach()
    return float((found.double() - expected).norm() / expected.norm().clamp_min(1e-6))


@pytest.mark.parametrize("name", ["nope", "rope", "alibi"])
def test_weights_are_not_kept_beyond_what_is_set(taken: Taken, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    encoding = from_conf(Case(name, True))(2, True)
    given = setting(encoding, 9, dtype=torch.bfloat16)
    for kept, path in (
        (2 * 2 * 9 * 9, "_by_rows"),
        (2 * 2 * 9 * 9 - 1, "_view_of_bias" if name == "alibi" else "fused"),
    ):
        monkeypatch.setattr(attention, "KEPT_ELEMENTS", kept)
        taken.calls.clear()
        outcome(attend, encoding, given)
        assert taken.path() == path


def test_given_positions(build, taken: Taken) -> None:
    encoding = build(2).double()
    for positions in positions_of(encoding, 6):
        given = setting(encoding, 6, positions)
        expected = outcome(reference, encoding, given)
        taken.calls.clear()
        assert_close(outcome(attend, encoding, given), expected, torch.float64)
        assert taken.path() == expected_path(encoding, given.context)


@torch.no_grad()
def test_long_sequences_are_taken_in_chunks(build, taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    length, rows = 64, 10
    monkeypatch.setattr(attention, "CHUNK_ELEMENTS", 2 * 4 * length * rows + 5)
    encoding = build(4).double()
    for positions in (None, *positions_of(encoding, length)):
        given = setting(encoding, length, positions)
        expected = outcome(reference, encoding, given)
        taken.rows.clear()
        assert_close(outcome(attend, encoding, given), expected, torch.float64)
        chunked = expected_path(encoding, given.context) == "_explicit"
        assert taken.rows == ([10, 10, 10, 10, 10, 10, 4] if chunked else [])


def test_one_row_at_a_time_where_even_that_is_too_long(taken: Taken, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "CHUNK_ELEMENTS", 1)
    encoding = own(Content)(2, True).double()
    given = setting(encoding, 5)
    with torch.no_grad():
        found = outcome(attend, encoding, given)
        assert taken.rows == [1] * 5
        assert_close(found, outcome(reference, encoding, given), torch.float64)


def test_the_mask_takes_memory_in_proportion_to_length(build, taken: Taken) -> None:
    encoding, length = build(4), 257
    with torch.no_grad():
        outcome(attend, encoding, setting(encoding, length, dtype=torch.float32))
    for mask in taken.masks:
        if mask is not None:
            assert mask.untyped_storage().nbytes() <= 4 * (2 * length - 1) * 4
    if taken.calls["_view_of_bias"]:
        rows = [mask.shape[2] for mask in taken.masks]
        assert rows == ([100, 100, 57] if encoding.geometry.causal else [257])
    assert taken.masks or taken.calls["_explicit"]


@torch.no_grad()
@pytest.mark.parametrize(("length", "rows"), [(99, 99), (1700, 106), (4000, 250), (40_000, 1024)])
def test_blocks_of_a_causal_mask_grow_with_the_length(monkeypatch: pytest.MonkeyPatch, length: int, rows: int) -> None:
    taken: list[int] = []

    def note(q: Tensor, k: Tensor, v: Tensor, **_: object) -> Tensor:
        taken.append(q.shape[2])
        return v[:, :, : q.shape[2]]

    monkeypatch.setattr(attention, "scaled_dot_product_attention", note)
    encoding = from_conf(Case("alibi", True))(1, True)
    x = torch.zeros(1, 1, length, 4)
    attend(encoding, x, x, x, Context(length, True))
    assert taken == [rows] * (length // rows) + [length % rows] * (length % rows > 0)


@pytest.mark.parametrize("name", ["nope", "rope", "alibi"])
@pytest.mark.parametrize(("length", "rows"), [(1, [1]), (128, [128]), (129, [64, 64, 1]), (200, [64, 64, 64, 8])])
def test_blocks_in_training(
    taken: Taken, monkeypatch: pytest.MonkeyPatch, name: str, length: int, rows: list[int]
) -> None:
    monkeypatch.setattr(attention, "BLOCK_ROWS", 256)
    encoding = from_conf(Case(name, True))(2, True)
    given = setting(encoding, length, dtype=torch.float32)
    found = outcome(attend, encoding, given)
    assert taken.queries == rows
    assert_close(found, outcome(reference, encoding, given), torch.float32)


def test_layers_share_what_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Within one forward pass the biases of a module are made once; two modules, and two passes, have their own."""
    encodings = [from_conf(Case("relative_bias", True))(2, True) for _ in range(2)]
    encodings[1].table_NH.data.neg_()
    given, built = setting(encodings[0], 7, dtype=torch.float32), []
    q, k, v, context = given.q, given.k, given.v, given.context
    original = DistanceBias.of_all_offsets
    monkeypatch.setattr(DistanceBias, "of_all_offsets", lambda self, *args: built.append(self) or original(self, *args))
    for encoding in (*encodings, *encodings):
        for layer in (context, context.with_(x_BTD=None)):
            assert_close(attend(encoding, q, k, v, layer), outcome(reference, encoding, given), torch.float32)
    assert built == encodings
    encodings[0].table_NH.data.add_(torch.randn_like(encodings[0].table_NH))
    assert_close(outcome(attend, encodings[0], given), outcome(reference, encodings[0], given), torch.float32)


def test_logits_are_what_softmax_is_given(build) -> None:
    """attention_logits, masked and put through softmax, are the weights of the reference."""
    encoding = build(2).double()
    given = setting(encoding, 9)
    c = given.context
    given_with = {"x": c.x_BTD, "tokens": c.tokens_BT, "project": c.project}
    logits = attention_logits(encoding, given.q, given.k, c.positions, **given_with)
    if encoding.geometry.causal:
        logits = logits.masked_fill(torch.ones(9, 9, dtype=torch.bool).triu(1), -math.inf)
    mixed = encoding.value(logits.softmax(-1), given.v, c)
    assert_close(mixed, outcome(reference, encoding, given), torch.float64)


def test_the_scale_of_an_encoding_is_used() -> None:
    for name in ("nope", "alibi", "t5"):
        encoding = from_conf(Case(name, True))(2, True).double()
        encoding.scale = 3.0
        given = setting(encoding, 9)
        plain = Encoding.content(encoding, given.q, given.k, given.context)
        torch.testing.assert_close(plain, 3 * given.q @ given.k.mT)
        for enabled, length in itertools.product((True, False), (9, 150)):
            with torch.set_grad_enabled(enabled):
                given = setting(encoding, length)
                assert_close(outcome(attend, encoding, given), outcome(reference, encoding, given), torch.float64)


def test_the_first_row_of_a_causal_model_sees_itself_alone(build) -> None:
    encoding = build(2)
    if encoding.geometry.causal and "value" not in encoding.changes():
        given = setting(encoding, 5, dtype=torch.float32)
        for enabled in (True, False):
            with torch.set_grad_enabled(enabled):
                # Logits beyond any finite number that a mask might have in place of minus infinity.
                mixed = attend(encoding, 1e15 * given.q, 1e15 * given.k, given.v, given.context)
            assert_close(mixed[:, :, 0], given.v[:, :, 0], torch.float32)
            assert mixed.isfinite().all()
