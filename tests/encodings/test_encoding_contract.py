"""What holds for every encoding: each file of conf/encoding is enrolled by being there and held to its declarations."""

import copy
import inspect
import io
import pickle
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from rpe_bench import catalogue
from rpe_bench.attention import attend, attention_logits, logits
from rpe_bench.components import build_encodings, load_class, make_encoding
from rpe_bench.encodings.base import Context, Encoding, Geometry
from rpe_bench.evaluate import loss_of
from rpe_bench.model import Transformer
from rpe_bench.seeds import torch_stream
from rpe_bench.tasks.base import Batch
from rpe_bench.train import make_optimiser

DIM, HEADS, TRAIN, LONG = 16, 2, 16, 1100
VOCABULARY = 64


@dataclass(frozen=True)
class Case:
    """One encoding of conf/encoding in a causal or a bidirectional model."""

    name: str
    causal: bool

    @property
    def cls(self) -> type[Encoding]:
        return load_class("encoding", catalogue.read("encoding", self.name)["target"])

    def geometry(self, max_length: int = LONG, layers: int = 1) -> Geometry:
        return Geometry(DIM, HEADS, TRAIN, max_length, self.causal, layers)

    def encoding(self, seed: int = 0, **parameters: Any) -> Encoding:
        sizes = {"dim": DIM, "heads": HEADS, "train_length": TRAIN, "max_length": LONG} | parameters
        return make_encoding(self.name, causal=self.causal, seed=seed, **sizes)

    def model(self, max_length: int = LONG, dtype: torch.dtype = torch.float64) -> Transformer:
        """Two layers, with learned positions far from zero so that no property holds for want of an effect."""
        encodings = build_encodings(catalogue.read("encoding", self.name), self.geometry(max_length, layers=2))
        sizes = {"vocabulary": VOCABULARY, "classes": 5, "layers": 2, "dim": DIM, "heads": HEADS}
        model = Transformer(**sizes, causal=self.causal, encodings=encodings)
        model.reset_parameters(0)
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in model.encodings.parameters():
                parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
        return model.to(dtype).eval()


CASES = [Case(name, causal) for name in catalogue.choices("encoding") for causal in (True, False)]
CASES = [case for case in CASES if case.causal or not case.cls.causal_only]


def label(case: Case) -> str:
    return f"{case.name}-{'causal' if case.causal else 'bidirectional'}"


@pytest.fixture(params=CASES, ids=label)
def case(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(params=[c for c in CASES if c.causal], ids=label)
def causal(request: pytest.FixtureRequest) -> Case:
    return request.param


@pytest.fixture(params=[c for c in CASES if not c.causal], ids=label)
def bidirectional(request: pytest.FixtureRequest) -> Case:
    return request.param


def tokens_of(length: int, batch: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def places(
    encoding: Encoding, length: int, positions: Tensor | None = None, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """What an encoding makes of given embeddings, queries, keys and values, at each of its places."""
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(2, length, DIM, generator=generator, dtype=torch.float64).to(dtype)
    q, k, v = torch.randn(3, 2, HEADS, length, DIM // HEADS, generator=generator, dtype=torch.float64).to(dtype)
    context = Context(length, encoding.geometry.causal, positions)
    rotated_q, rotated_k = encoding.rotate(q, k, positions, context)
    bias = encoding.bias(rotated_q, rotated_k, context)
    found = {
        "embed": encoding.embed(x, positions, tokens_of(length)),
        "q": rotated_q,
        "k": rotated_k,
        "attend": attend(encoding, q, k, v, context),
    }
    return found if bias is None else found | {"bias": bias}


def embedded_logits(encoding: Encoding, length: int, of: list[int] | None = None, explicit: bool = False) -> Tensor:
    """Logits of queries and keys made from a sequence's embeddings, or from those of some of its tokens."""
    index = torch.arange(length) if of is None else torch.tensor(of)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(1, LONG, DIM, generator=generator, dtype=torch.float64)[:, index]
    weights = torch.randn(2, DIM, DIM, generator=generator, dtype=torch.float64)
    positions = index if explicit else None
    x = encoding.embed(x, positions, tokens_of(LONG, batch=1)[:, index])
    q, k = ((x @ weight).unflatten(-1, (HEADS, -1)).transpose(1, 2).contiguous() for weight in weights)
    return attention_logits(encoding, q, k, positions)


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        difference = (tensor - expected[name]).abs().max()
        assert tensor.dtype == expected[name].dtype and difference <= tolerance, f"{name}: differs by {difference}"


# How it is built


@pytest.mark.parametrize("name", catalogue.choices("encoding"))
def test_the_yaml_shows_every_option_at_its_default(name: str) -> None:
    options = catalogue.read("encoding", name)
    assert options.pop("name") == name
    cls = load_class("encoding", options.pop("target"))
    signature = inspect.signature(cls).parameters.items()
    assert options == {key: option.default for key, option in signature if key != "geometry"}


def test_a_seed_decides_all_values(case: Case) -> None:
    before = torch.get_rng_state()
    one, same, other = case.encoding(seed=3), case.encoding(seed=3), case.encoding(seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert_same(dict(one.named_parameters()), dict(same.named_parameters()))
    for mine, others in zip(one.parameters(), other.parameters(), strict=True):
        assert not torch.equal(mine, others) or len(mine.unique()) == 1  # some begin at zero


def test_built_without_memory_then_given_some(case: Case) -> None:
    with torch.device("meta"):
        encoding = build_encodings(catalogue.read("encoding", case.name), case.geometry())[0]
    encoding.to_empty(device="cpu")
    for tensor in (*encoding.parameters(), *encoding.buffers()):
        tensor.data.fill_(float("nan") if tensor.is_floating_point() else -1)
    encoding.reset_parameters(torch_stream("encoding", 0))
    assert_same(places(encoding, 20), places(case.encoding(), 20))


def test_saved_and_loaded(case: Case) -> None:
    encoding, other = case.encoding(), case.encoding(seed=1)
    places(other, 20)  # tables made before loading
    file = io.BytesIO()
    torch.save(encoding.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file))
    assert_same(places(other, 20), places(encoding, 20))


def test_copied(case: Case) -> None:
    encoding = case.encoding()
    expected = places(encoding, 20)
    for twin in (copy.deepcopy(encoding), pickle.loads(pickle.dumps(encoding))):
        assert_same(places(twin, 20), expected)
        for parameter in twin.parameters():
            parameter.data.add_(1)
        assert_same(places(encoding, 20), expected)


# Shapes and positions


def test_shapes_and_types(case: Case) -> None:
    for dtype in (torch.float64, torch.float32):
        for length in (1, 2, 33):
            encoding = case.encoding().to(dtype)
            found = places(encoding, length, dtype=dtype)
            assert found["embed"].shape == (2, length, DIM)
            assert found["q"].shape == found["k"].shape
            assert found["q"].shape[:3] == (2, HEADS, length)
            assert found["attend"].shape == (2, HEADS, length, DIM // HEADS)
            assert {tensor.dtype for tensor in found.values()} == {dtype}
            q = torch.randn(2, HEADS, length, DIM // HEADS, dtype=dtype)
            assert attention_logits(encoding, q, q).shape == (2, HEADS, length, length)


def test_positions_in_all_their_forms(case: Case) -> None:
    encoding, T = case.encoding(), 20
    implied, index = places(encoding, T), torch.arange(T)
    for positions in (index, index.expand(2, T), index.expand(2, T)[..., None]):
        assert_same(places(encoding, T, positions), implied, 1e-12)
        tokens, model = tokens_of(T), case.model()
        torch.testing.assert_close(model(tokens, positions), model(tokens), rtol=0, atol=1e-12)


def test_each_example_has_its_own_positions(case: Case) -> None:
    model, tokens = case.model(), tokens_of(7)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [3, 9, 11, 12, 40, 41, 41]])
    alone = torch.cat([model(tokens[b : b + 1], positions[b]) for b in range(2)])
    for given in (positions, positions[..., None]):
        torch.testing.assert_close(model(tokens, given), alone, rtol=0, atol=1e-12)


def test_tokens_taken_out_of_a_sequence_keep_their_places(case: Case) -> None:
    """Positions are data: neither counted from the first token given, nor looked up in a table of another call."""
    encoding = case.encoding()
    whole = embedded_logits(encoding, 20)
    for chosen in ([0, 3, 4, 19], [19, 2, 2], [5, 6, 7, 8]):
        if 19 not in chosen and not case.cls.prefix_consistent:
            continue  # it may depend on the last position
        part = embedded_logits(encoding, 20, chosen, explicit=True)
        torch.testing.assert_close(part, whole[:, :, chosen][..., chosen], rtol=0, atol=1e-12)


def test_rows_at_hand(case: Case) -> None:
    """The logits of some queries are those rows of the whole."""
    encoding, T = case.encoding(), 20
    q, k = torch.randn(2, 2, HEADS, T, DIM // HEADS, dtype=torch.float64)
    for positions in (None, torch.arange(T) * 3, torch.randint(50, (2, T))):
        context = Context(T, case.causal, positions)
        rotated_q, rotated_k = encoding.rotate(q, k, positions, context)
        whole = logits(encoding, rotated_q, rotated_k, context)
        rows = slice(5, 8)
        part = logits(encoding, rotated_q[:, :, rows], rotated_k, context.with_(rows=rows))
        torch.testing.assert_close(part, whole[:, :, rows], rtol=0, atol=1e-12)


def test_a_short_call_after_a_long_one(case: Case) -> None:
    """A table kept from one length must not serve another."""
    encoding, fresh = case.encoding(), case.encoding()
    places(encoding, 64)
    assert_same(places(encoding, 16), places(fresh, 16))
    assert_same(places(encoding, 64), places(case.encoding(), 64))


# Declared properties


def test_translation_invariance_is_as_declared(case: Case) -> None:
    model, tokens = case.model(), tokens_of(20)
    positions = torch.arange(20)
    shifted = [(model(tokens, positions + shift) - model(tokens)).abs().max() for shift in (1, 17, 1000)]
    assert max(shifted) < 1e-9 if case.cls.translation_invariant else max(shifted) > 1e-3, shifted


def test_prefix_consistency_is_as_declared(case: Case) -> None:
    """Cuts below, at and beyond the training length."""
    encoding = case.encoding()
    whole = embedded_logits(encoding, 64)
    cut = [(embedded_logits(encoding, n) - whole[..., :n, :n]).abs().max() for n in (1, 7, TRAIN, 24)]
    assert max(cut) < 1e-9 if case.cls.prefix_consistent else max(cut) > 1e-3, cut


def test_later_tokens_do_not_change_earlier_outputs(causal: Case) -> None:
    model, tokens = causal.model(dtype=torch.float32), tokens_of(20)
    before = model(tokens)
    for changed in (1, 11, 19):
        other = tokens.clone()
        other[:, changed] = (other[:, changed] + 1) % VOCABULARY
        after = model(other)
        assert torch.equal(after[:, :changed], before[:, :changed])
        assert not torch.equal(after[:, changed], before[:, changed])


def test_no_gradient_comes_from_later_tokens(causal: Case) -> None:
    """Token t has the id t, so that the gradient of its embedding is that of row t of the table."""
    model, T = causal.model().train(), 12
    for positions in (None, torch.arange(T)):
        out = model(torch.arange(T)[None], positions)
        for i in range(T):
            (gradient,) = torch.autograd.grad(out[0, i].square().sum(), model.tokens.weight, retain_graph=True)
            reached = gradient.abs().sum(1) > 0
            assert reached[: i + 1].all() and not reached[i + 1 :].any()


def test_a_bidirectional_model_sees_all_tokens(bidirectional: Case) -> None:
    model, T = bidirectional.model().train(), 12
    out = model(torch.arange(T)[None])
    for i in (0, T - 1):
        (gradient,) = torch.autograd.grad(out[0, i].square().sum(), model.tokens.weight, retain_graph=True)
        assert (gradient[:T].abs().sum(1) > 0).all()


def test_order_enters_through_positions_alone(bidirectional: Case) -> None:
    """f(Px, P positions) = P f(x, positions); with no positions given, f(Px) = P f(x) for no position at all only."""
    model, tokens = bidirectional.model(), tokens_of(20)
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    positions = torch.arange(20) * 2
    expected = model(tokens, positions)[:, order]
    torch.testing.assert_close(model(tokens[:, order], positions[order]), expected, rtol=0, atol=1e-10)
    moved = (model(tokens[:, order]) - model(tokens)[:, order]).abs().max()
    assert moved > 1e-3 if bidirectional.cls.changes() else moved < 1e-10


def test_examples_do_not_mix(case: Case) -> None:
    model, tokens = case.model(dtype=torch.float32), tokens_of(20, batch=3)
    other = tokens.clone()
    other[1:] = (other[1:] + 1) % VOCABULARY
    assert torch.equal(model(tokens)[0], model(other)[0])
    with torch.no_grad():
        assert torch.equal(model(tokens)[0], model(other)[0])


def test_heads_do_not_mix(case: Case) -> None:
    encoding, T = case.encoding(), 20
    q, k, v = torch.randn(3, 2, HEADS, T, DIM // HEADS, dtype=torch.float64)
    for positions in (None, torch.arange(T)):
        context = Context(T, case.causal, positions)
        before = attend(encoding, q, k, v, context)
        changed = (torch.cat((t[:, :1], torch.randn_like(t[:, 1:])), dim=1) for t in (q, k, v))
        after = attend(encoding, *changed, context)
        assert torch.equal(after[:, 0], before[:, 0]) and not torch.equal(after[:, 1], before[:, 1])


# Learning


def test_one_step_of_training_changes_all_it_learns(case: Case, make_config) -> None:
    model = case.model(dtype=torch.float32).train()
    tokens = tokens_of(TRAIN, batch=4)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimiser = make_optimiser(model, make_config().recipe)
    loss_of(model, Batch(tokens, tokens % 5)).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name
    optimiser.step()
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name


def test_gradients_equal_finite_differences(case: Case) -> None:
    encoding = case.encoding(dim=8, train_length=5, max_length=6).double()
    q, k, v = torch.randn(3, 1, 2, 5, 4, dtype=torch.float64)
    x = torch.randn(1, 5, 8, dtype=torch.float64)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    inputs = [tensor.detach().requires_grad_() for tensor in (x, q, k, v)]

    def outputs(x: Tensor, q: Tensor, k: Tensor, v: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        return encoding.embed(x), attend(encoding, q, k, v, Context(5, case.causal))

    assert torch.autograd.gradcheck(outputs, (*inputs, *encoding.parameters()))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_used_without_gradients_first_and_trained_afterwards(case: Case, mode: Any) -> None:
    tokens = tokens_of(TRAIN)
    batch = Batch(tokens, tokens % 5)
    gradients = []
    for used in (False, True):
        model = case.model()
        if used:
            with mode():
                model(tokens)
        loss_of(model.train(), batch).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert_same(gradients[1], gradients[0])


# Lengths and precision


def test_sixteen_times_the_training_length(case: Case) -> None:
    model = case.model(max_length=16 * TRAIN, dtype=torch.float32)
    longest = model.encodings[0].longest
    with torch.no_grad():
        if longest is None or longest >= 16 * TRAIN:
            assert model(tokens_of(16 * TRAIN)).isfinite().all()
        if longest is not None:
            assert model(tokens_of(longest)).isfinite().all()
            # Position `longest` is the first that does not fit.
            with pytest.raises(ValueError, match=rf"\b{longest}\b"):
                model(tokens_of(longest + 1))
            with pytest.raises(ValueError, match=rf"\b{longest + 3}\b.*\b{longest}\b|\b{longest}\b.*\b{longest + 3}\b"):
                model(tokens_of(2), torch.tensor([0, longest + 3]))


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=str)
def half(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """A default dtype in which positions above 256 or 2048 would run together."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def test_the_default_dtype_does_not_touch_positions(case: Case, half: torch.dtype) -> None:
    encoding = case.encoding().float()
    found = {T: places(encoding, T, torch.arange(T) + 1000) for T in (4, 20)} | {300: places(encoding, 300)}
    torch.set_default_dtype(torch.float32)
    plain = case.encoding()
    plain.load_state_dict(encoding.state_dict())
    for T, tensors in found.items():
        assert_same(tensors, places(plain, T, torch.arange(T) + 1000 if T < 300 else None))


def test_casting_the_module_does_not_touch_fixed_tables(case: Case) -> None:
    """Cast to bfloat16 and back, an encoding has lost the low digits of what it learned and of nothing else."""
    encoding, other = case.encoding(), case.encoding()
    places(encoding, 300)
    encoding = encoding.to(torch.bfloat16).float()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.copy_(parameter.to(torch.bfloat16))
    for dtype in (torch.float32, torch.float64):
        assert_same(places(encoding, 300, dtype=dtype), places(other, 300, dtype=dtype))


def test_autocast_does_not_touch_positions(case: Case) -> None:
    encoding, fresh = case.encoding(), case.encoding()
    with torch.autocast("cpu", torch.bfloat16):
        found = places(encoding, 300, dtype=torch.float32)
    expected = places(fresh, 300, dtype=torch.float32)
    for name in found.keys() - {"attend"}:  # its products are the model's to guard
        assert torch.equal(found[name], expected[name]), name
    assert_same(places(encoding, 300), places(fresh, 300))  # tables made under autocast


def test_attention_of_the_model_stays_in_full_precision_under_autocast(case: Case) -> None:
    model, seen = case.model(dtype=torch.float32), []
    model.blocks[0].attention.out.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    tokens = tokens_of(300)
    with torch.autocast("cpu", torch.bfloat16):
        found = model(tokens)
    assert seen == [torch.float32]
    torch.testing.assert_close(found.float(), model(tokens), rtol=0, atol=0.1)
