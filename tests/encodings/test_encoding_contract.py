"""What holds for every encoding: each file of conf/encoding is enrolled by being there and held to its declarations."""

import copy
import inspect
import io
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from support import VOCABULARY, Case, cases, indices, normal, setting, tokens_of
from torch import Tensor, nn

from rpe_bench import catalogue
from rpe_bench.attention import attend, attention_logits, logits
from rpe_bench.components import arguments, load_class
from rpe_bench.encodings.base import Context, Encoding
from rpe_bench.evaluate import loss_of
from rpe_bench.model import Transformer
from rpe_bench.seeds import torch_stream
from rpe_bench.tasks.base import Batch
from rpe_bench.train import make_optimiser

DIM, HEADS, TRAIN, LONG = 16, 2, 16, 1100
CASES = cases()


def model_of(case: Case, max_length: int = LONG, dtype: torch.dtype = torch.float64) -> Transformer:
    """Two layers, with learned positions far from zero so that no property holds for want of an effect."""
    sizes = {"layers": 2, "dim": DIM, "heads": HEADS}
    encodings = case.encodings(**sizes, train_length=TRAIN, max_length=max_length)
    model = Transformer(**sizes, vocabulary=VOCABULARY, classes=5, causal=case.causal, encodings=encodings)
    model.reset_parameters(0)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.encodings.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)
    return model.to(dtype).eval()


def run(model: Transformer, tokens: Tensor, positions: Tensor | None = None) -> Tensor:
    """The model at given positions, or at those that its encoding takes for granted."""
    if positions is None:
        positions = indices(model.encodings[0], tokens.shape[1], len(tokens))
    return model(tokens, positions)


def parametrised(chosen: list[Case]) -> Any:
    return pytest.fixture(params=chosen, ids=str)(lambda request: request.param)


case = parametrised(CASES)
causal = parametrised([c for c in CASES if c.causal])
bidirectional = parametrised([c for c in CASES if not c.causal])
of_text = parametrised([c for c in CASES if c.axes == 1])


def places(
    encoding: Encoding, length: int, positions: Tensor | None = None, dtype: torch.dtype = torch.float64
) -> dict[str, Tensor]:
    """What an encoding makes of given embeddings, queries, keys and values, at each of its places."""
    given = setting(encoding, length, positions, dtype)
    context = given.context
    embedded = encoding.embed(normal(2, length, DIM, seed=9, dtype=dtype), context.positions, context.tokens_BT)
    with torch.autocast("cpu", enabled=False):  # as in the model
        q, k = encoding.rotate(given.q, given.k, context.positions, context)
        content = encoding.content(q, k, context)
        bias = encoding.bias(q, k, context.with_(content_BHQS=content))
        attended = attend(encoding, given.q, given.k, given.v, context)
    found = {"embed": embedded, "q": q, "k": k, "content": content, "attend": attended}
    return found if bias is None else found | {"bias": bias}


def embedded_logits(encoding: Encoding, length: int, of: list[int] | None = None, explicit: bool = False) -> Tensor:
    """Logits of queries and keys made from a sequence's embeddings, or from those of some of its tokens."""
    chosen = torch.arange(length) if of is None else torch.tensor(of)
    cells = indices(encoding, LONG, batch=1)
    positions = cells[:, chosen] if cells is not None else chosen if explicit else None
    tokens = tokens_of(LONG, batch=1)[:, chosen]
    x = encoding.embed(normal(1, LONG, DIM, seed=2)[:, chosen], positions, tokens)
    project = setting(encoding, 1).context.project
    assert project is not None
    q, k = (part.transpose(1, 2).contiguous() for part in project(4 * x))
    return attention_logits(encoding, q, k, positions, x=x, tokens=tokens, project=project)


def difference(one: Tensor, other: Tensor) -> float:
    """The largest, where a hidden pair may be minus infinity in both."""
    return (one - other).masked_fill(one == other, 0).abs().max().item()


def assert_same(found: dict[str, Tensor], expected: dict[str, Tensor], tolerance: float = 0.0) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == expected[name].dtype, name
        off = difference(tensor, expected[name])
        assert off <= tolerance, f"{name}: differs by {off}"


# How it is built


@pytest.mark.parametrize("name", catalogue.encodings())
def test_the_yaml_shows_every_option(name: str) -> None:
    """At its default, where it is named after the class's file: others are presets."""
    options = catalogue.read("encoding", name)
    assert options["name"] == name
    values = arguments("encoding", options)
    assert options.keys() - {"name", "target"} == values.keys()
    cls = load_class("encoding", options["target"])
    if cls.__module__.rpartition(".")[2] == name:
        defaults = {key: option.default for key, option in inspect.signature(cls).parameters.items()}
        assert values == {key: value for key, value in defaults.items() if key != "geometry"}


def test_it_says_where_it_comes_from(case: Case) -> None:
    if not case.cls.__module__.startswith("rpe_bench."):
        return  # somebody's own, which owes no paper
    assert case.cls.year is not None and f"{case.cls.year}" in case.cls.source
    assert "arXiv" in case.cls.source or "http" in case.cls.source


def test_it_learns_as_many_numbers_as_it_says(case: Case) -> None:
    for sizes in ({}, {"dim": 48, "heads": 4, "max_length": 400}):
        encoding = case.encoding(**sizes)
        geometry = encoding.geometry
        known = {"D": geometry.dim, "H": geometry.heads, "K": geometry.head_dim, "L": geometry.max_extents[0]}
        known |= arguments("encoding", catalogue.read("encoding", case.name)) | {"geometry": geometry}
        expected = eval(case.cls.learns, {"__builtins__": {}, "max": max, "min": min}, known)
        assert sum(parameter.numel() for parameter in encoding.parameters()) == expected


def test_a_seed_decides_all_values(case: Case) -> None:
    before = torch.get_rng_state()
    one, same, other = case.encoding(seed=3), case.encoding(seed=3), case.encoding(seed=4)
    assert torch.equal(before, torch.get_rng_state())
    assert_same(dict(one.named_parameters()), dict(same.named_parameters()))
    for mine, others in zip(one.parameters(), other.parameters(), strict=True):
        assert not torch.equal(mine, others) or len(mine.unique()) == 1  # some begin at zero


def test_built_without_memory_then_given_some(case: Case) -> None:
    with torch.device("meta"):
        encoding = case.encodings(dim=DIM, heads=HEADS, train_length=TRAIN, max_length=LONG)[0]
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


def test_a_model_is_copied_with_what_its_layers_share(case: Case) -> None:
    model, tokens = model_of(case), tokens_of(9)
    twin = copy.deepcopy(model)
    assert len(list(twin.parameters())) == len(list(model.parameters()))
    assert torch.equal(run(twin, tokens), run(model, tokens))
    other = model_of(case)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(1)
    other.load_state_dict(model.state_dict())
    assert torch.equal(run(other, tokens), run(model, tokens))


def test_two_modules_of_different_sizes_in_turn(case: Case) -> None:
    """What is kept belongs to a module, and not to its class."""
    sizes = ({"dim": 16, "heads": 2}, {"dim": 48, "heads": 4}, {"dim": 16, "heads": 1})
    encodings = [case.encoding(**s) for s in sizes]
    given = [setting(encoding, 20) for encoding in encodings]
    first = [attend(e, g.q, g.k, g.v, g.context) for e, g in zip(encodings, given, strict=True)]
    again = [attend(e, g.q, g.k, g.v, g.context) for e, g in zip(encodings, given, strict=True)]
    fresh = [attend(case.encoding(**s), g.q, g.k, g.v, g.context) for s, g in zip(sizes, given, strict=True)]
    for tensors in zip(first, again, fresh, strict=True):
        assert torch.equal(tensors[0], tensors[1]) and torch.equal(tensors[0], tensors[2])


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
            given = setting(encoding, length, dtype=dtype)
            c = given.context
            found_logits = attention_logits(
                encoding, given.q, given.k, c.positions, x=c.x_BTD, tokens=c.tokens_BT, project=c.project
            )
            assert found_logits.shape == (2, HEADS, length, length) and found_logits.dtype == dtype


def test_positions_in_all_their_forms(of_text: Case) -> None:
    encoding, model, T = of_text.encoding(), model_of(of_text), 20
    implied, index, tokens = places(encoding, T), torch.arange(T), tokens_of(T)
    for positions in (index, index.expand(2, T), index.expand(2, T)[..., None]):
        assert_same(places(encoding, T, positions), implied, 1e-12)
        torch.testing.assert_close(model(tokens, positions), model(tokens), rtol=0, atol=1e-12)


def test_each_example_has_its_own_positions(case: Case) -> None:
    model, tokens = model_of(case), tokens_of(7)
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [3, 9, 11, 12, 30, 31, 31]])
    forms = [positions, positions[..., None]]
    if case.axes == 2:
        forms = [torch.stack((positions, positions.flip(0)), dim=-1)]
    for given in forms:
        alone = torch.cat([model(tokens[b : b + 1], given[b : b + 1]) for b in range(2)])
        torch.testing.assert_close(model(tokens, given), alone, rtol=0, atol=1e-12)


def test_a_logit_is_that_of_its_pair_as_declared(case: Case) -> None:
    """Tokens taken out of a sequence keep their places: positions are data, neither counted from the first token given,
    nor looked up in a table of another call."""
    encoding = case.encoding().double()
    randomise(encoding)
    whole, differences = embedded_logits(encoding, 20), []
    for chosen in ([0, 3, 4, 19], [2, 5, 19], [5, 6, 7, 8]) + (([19, 2, 2],) if encoding.pairwise else ()):
        if 19 not in chosen and not encoding.prefix_consistent:
            continue  # it may depend on the last position
        part = embedded_logits(encoding, 20, chosen, explicit=True)
        expected, seen = whole[:, :, chosen][..., chosen], visible(encoding, len(chosen))
        differences.append(difference(part[..., seen], expected[..., seen]))
    assert max(differences) < 1e-12 if encoding.pairwise else max(differences) > 1e-5, differences


def visible(encoding: Encoding, length: int) -> Tensor:
    """(T, T): what the mask leaves; a causal encoding owes nothing for the rest."""
    everything = torch.ones(length, length, dtype=torch.bool)
    return everything.tril() if encoding.geometry.causal else everything


def randomise(encoding: nn.Module) -> None:
    """Values far from zero, so that no property holds for want of an effect."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter += 0.3 * torch.randn(parameter.shape, generator=generator)


def test_rows_at_hand(case: Case) -> None:
    """The logits of some queries are those rows of the whole."""
    encoding, T = case.encoding().double(), 20
    randomise(encoding)
    cells = torch.randint(30, (2, T, case.axes))
    for positions in (None, cells) if case.axes > 1 else (None, torch.arange(T) * 3, cells[..., 0]):
        given = setting(encoding, T, positions)
        q, k = encoding.rotate(given.q, given.k, given.context.positions, given.context)
        whole = logits(encoding, q, k, given.context)
        rows = slice(5, 8)
        part = logits(encoding, q[:, :, rows], k, given.context.with_(rows=rows))
        seen = visible(encoding, T)[rows]
        assert difference(part[..., seen], whole[:, :, rows][..., seen]) < 1e-12


def test_a_short_call_after_a_long_one(case: Case) -> None:
    """A table kept from one length must not serve another."""
    encoding, fresh = case.encoding(), case.encoding()
    places(encoding, 64)
    assert_same(places(encoding, 16), places(fresh, 16))
    assert_same(places(encoding, 64), places(case.encoding(), 64))


# Declared properties


def test_translation_invariance_is_as_declared(case: Case) -> None:
    """In sequences shorter and longer than in training: a shift may take the first beyond a length that counts."""
    model, shifted = model_of(case), []
    encoding = model.encodings[0]
    for length in (12, 20):
        tokens, index = tokens_of(length), indices(encoding, length)
        positions = torch.arange(length) if index is None else index
        for shift in (1, 17, 1000):
            if encoding.longest is None or encoding.translation_invariant or positions.max() + shift < encoding.longest:
                shifted.append(difference(model(tokens, positions + shift), model(tokens, positions)))
    assert max(shifted) < 1e-9 if encoding.translation_invariant else max(shifted) > 1e-5, shifted


def test_prefix_consistency_is_as_declared(case: Case) -> None:
    """Cuts below, at and beyond the training length."""
    encoding = case.encoding().double()
    randomise(encoding)
    whole = embedded_logits(encoding, 64)
    cut = []
    for n in (1, 7, TRAIN, 24):
        seen = visible(encoding, n)
        cut.append(difference(embedded_logits(encoding, n)[..., seen], whole[..., :n, :n][..., seen]))
    assert max(cut) < 1e-9 if encoding.prefix_consistent else max(cut) > 1e-5, cut


def test_later_tokens_do_not_change_earlier_outputs(causal: Case) -> None:
    model, tokens = model_of(causal, dtype=torch.float32), tokens_of(20)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            before = run(model, tokens)
            for changed in (1, 11, 19):
                other = tokens.clone()
                other[:, changed] = (other[:, changed] + 1) % VOCABULARY
                after = run(model, other)
                assert torch.equal(after[:, :changed], before[:, :changed])
                assert not torch.equal(after[:, changed], before[:, changed])


def test_no_gradient_comes_from_later_tokens(causal: Case) -> None:
    """Token t has the id t, so that the gradient of its embedding is that of row t of the table."""
    model, T = model_of(causal).train(), 12
    implied = indices(model.encodings[0], T, 1)
    for positions in (None, torch.arange(T)) if implied is None else (implied,):
        out = model(torch.arange(T)[None], positions)
        for i in range(T):
            (gradient,) = torch.autograd.grad(out[0, i].square().sum(), model.tokens.weight, retain_graph=True)
            reached = gradient.abs().sum(1) > 0
            assert reached[: i + 1].all() and not reached[i + 1 :].any()


def test_a_bidirectional_model_sees_all_tokens(bidirectional: Case) -> None:
    model, T = model_of(bidirectional).train(), 12
    out = run(model, torch.arange(T)[None])
    for i in (0, T - 1):
        (gradient,) = torch.autograd.grad(out[0, i].square().sum(), model.tokens.weight, retain_graph=True)
        assert (gradient[:T].abs().sum(1) > 0).all()


def test_order_enters_through_positions_alone(bidirectional: Case) -> None:
    """f(Px, P positions) = P f(x, positions), unless what stands between two tokens counts; with no positions given,
    f(Px) = P f(x) for no position at all only."""
    model, tokens = model_of(bidirectional), tokens_of(20)
    encoding = model.encodings[0]
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    positions = indices(encoding, 20)
    if positions is None:
        positions = (torch.arange(20) * 2).expand(2, 20)
    expected = model(tokens, positions)[:, order]
    moved = difference(model(tokens[:, order], positions[:, order]), expected)
    assert moved < 1e-10 if encoding.pairwise else moved > 1e-5
    moved = difference(run(model, tokens[:, order]), run(model, tokens)[:, order])
    assert moved > 1e-5 if bidirectional.cls.changes() else moved < 1e-10


def test_examples_do_not_mix(case: Case) -> None:
    model, tokens = model_of(case, dtype=torch.float32), tokens_of(20, batch=3)
    other = tokens.clone()
    other[1:] = (other[1:] + 1) % VOCABULARY
    assert torch.equal(run(model, tokens)[0], run(model, other)[0])
    with torch.no_grad():
        assert torch.equal(run(model, tokens)[0], run(model, other)[0])


def test_heads_do_not_mix(case: Case) -> None:
    encoding, T = case.encoding(), 20
    for positions in (None, torch.arange(T)) if case.axes == 1 else (None,):
        given, others = setting(encoding, T, positions), setting(encoding, T, positions, seed=7)
        before = attend(encoding, given.q, given.k, given.v, given.context)
        pairs = ((given.q, others.q), (given.k, others.k), (given.v, others.v))
        changed = (torch.cat((mine[:, :1], theirs[:, 1:]), dim=1) for mine, theirs in pairs)
        after = attend(encoding, *changed, given.context)
        assert torch.equal(after[:, 0], before[:, 0]) and not torch.equal(after[:, 1], before[:, 1])


# Learning


def test_one_step_of_training_changes_all_it_learns(case: Case, make_config) -> None:
    model = model_of(case, dtype=torch.float32).train()
    tokens = tokens_of(TRAIN, batch=4)
    before = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    optimiser = make_optimiser(model, make_config().recipe)
    loss_of(model, Batch(tokens, tokens % 5, indices(model.encodings[0], TRAIN, 4))).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any(), name
    optimiser.step()
    for name, parameter in model.named_parameters():
        assert not torch.equal(parameter, before[name]), name


def test_gradients_are_finite_at_its_initial_values(case: Case) -> None:
    """Where logarithms, roots and clamps have their edges: distance 0 and the values that it begins from."""
    encoding = case.encoding()
    given = setting(encoding, 9)
    given.leaves()
    embedded = encoding.embed(normal(2, 9, DIM, seed=5), given.context.positions, given.context.tokens_BT)
    mixed = attend(encoding, given.q, given.k, given.v, given.context)
    (embedded.square().sum() + mixed.square().sum()).backward()
    for tensor in (*given.leaves(), *encoding.parameters()):
        assert tensor.grad is None or tensor.grad.isfinite().all()


def test_gradients_equal_finite_differences(case: Case) -> None:
    encoding = case.encoding(dim=8, train_length=5, max_length=6).double()
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    given = setting(encoding, 5, batch=1)
    positions = given.context.positions

    def outputs(q: Tensor, k: Tensor, v: Tensor, x: Tensor, *_: Tensor) -> tuple[Tensor, Tensor]:
        context = given.context.with_(x_BTD=x, memo={})
        return encoding.embed(x, positions, context.tokens_BT), attend(encoding, q, k, v, context)

    assert torch.autograd.gradcheck(outputs, (*given.leaves(), *encoding.parameters()))


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad])
def test_used_without_gradients_first_and_trained_afterwards(case: Case, mode: Any) -> None:
    tokens = tokens_of(TRAIN)
    gradients = []
    for used in (False, True):
        model = model_of(case)
        batch = Batch(tokens, tokens % 5, indices(model.encodings[0], TRAIN))
        if used:
            with mode():
                run(model, tokens)
        loss_of(model.train(), batch).backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert_same(gradients[1], gradients[0])


# Lengths and precision


def test_sixteen_times_the_training_length(case: Case) -> None:
    model = model_of(case, max_length=16 * TRAIN, dtype=torch.float32)
    longest = model.encodings[0].longest
    reach = 16 * TRAIN if case.axes == 1 else int(indices(model.encodings[0], 16 * TRAIN).max()) + 1
    with torch.no_grad():
        if longest is None or longest >= reach:
            assert run(model, tokens_of(16 * TRAIN)).isfinite().all()
        if longest is not None:
            # Position `longest` is the first that does not fit.
            if case.axes == 1:
                assert model(tokens_of(longest)).isfinite().all()
                with pytest.raises(ValueError, match=rf"\b{longest}\b"):
                    model(tokens_of(longest + 1))
            beyond = torch.tensor([0, longest + 3])[:, None].expand(2, 2, case.axes)
            with pytest.raises(ValueError, match=rf"\b{longest + 3}\b.*\b{longest}\b|\b{longest}\b.*\b{longest + 3}\b"):
                model(tokens_of(2), beyond)


def test_a_million_positions_away(case: Case) -> None:
    """Two neighbours far out are two neighbours: tables are built in float64 and rounded once."""
    encoding = case.encoding().float()
    far = torch.tensor([10**6 - 1, 10**6, 10**6 + 2, 10**6 + 3])
    positions = far if case.axes == 1 else far[:, None].expand(2, 4, case.axes)
    if encoding.longest is not None and not encoding.translation_invariant:
        with pytest.raises(ValueError, match=rf"\b{encoding.longest}\b"):
            places(encoding, 4, positions, torch.float32)
        return
    found, exact = places(encoding, 4, positions, torch.float32), places(encoding.double(), 4, positions)
    for name, tensor in found.items():
        scale = max(1.0, exact[name].abs().masked_fill(exact[name].isinf(), 0).max().item())
        assert difference(tensor.double(), exact[name]) < 1e-5 * scale, name


@pytest.fixture(params=[torch.float16, torch.bfloat16], ids=str)
def half(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """A default dtype in which positions above 256 or 2048 would run together."""
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(torch.float32)


def test_the_default_dtype_does_not_touch_positions(case: Case, half: torch.dtype) -> None:
    encoding = case.encoding().float()
    far = torch.arange(20) + (1000 if case.axes == 1 else 0)
    positions = far if case.axes == 1 else far[:, None].expand(2, 20, case.axes)
    found = [places(encoding, 20, positions), places(encoding, 300)]
    torch.set_default_dtype(torch.float32)
    plain = case.encoding()
    plain.load_state_dict(encoding.state_dict())
    for tensors, expected in zip(found, [places(plain, 20, positions), places(plain, 300)], strict=True):
        assert_same(tensors, expected)


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
    assert_same(found, places(fresh, 300, dtype=torch.float32))
    assert_same(places(encoding, 300), places(fresh, 300))  # tables made under autocast


def test_the_model_under_autocast_is_near_that_in_full_precision(case: Case) -> None:
    model, tokens = model_of(case, dtype=torch.float32), tokens_of(100)
    expected = run(model, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(run(model, tokens).float(), expected, rtol=0, atol=0.1)


@pytest.mark.parametrize("training", [True, False])
def test_a_model_may_be_bfloat16_throughout(case: Case, training: bool) -> None:
    if case.name == "path":
        pytest.skip("torch solves no triangular system in bfloat16")
    model, tokens = model_of(case, dtype=torch.float32), tokens_of(40)
    with torch.set_grad_enabled(training):
        expected, found = run(model, tokens), run(model.to(torch.bfloat16), tokens)
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).norm() < 0.1 * expected.norm()


def test_a_row_that_is_wholly_hidden_gives_no_nan_elsewhere(causal: Case) -> None:
    """Rows far apart in magnitude, all of them finite, leave every output finite."""
    encoding = causal.encoding()
    given = setting(encoding, 12)
    mixed = attend(encoding, 1e4 * given.q, given.k, given.v, given.context)
    assert mixed.isfinite().all()


def test_one_context_serves_the_layers_of_one_pass(case: Case) -> None:
    """What layers share in a pass is by module: another module in the same pass has its own."""
    one, other = case.encoding(), case.encoding(seed=1)
    randomise(other)
    given = setting(one, 20)
    shared, own = given.context, [given.context.with_(memo={}) for _ in range(2)]
    for encoding, context in zip((one, other), own, strict=True):
        expected = attend(encoding, given.q, given.k, given.v, context)
        assert torch.equal(attend(encoding, given.q, given.k, given.v, shared), expected)
        assert torch.equal(attend(encoding, given.q, given.k, given.v, Context(**vars(shared))), expected)
