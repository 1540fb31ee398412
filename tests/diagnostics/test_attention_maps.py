"""Where heads look: equal to the plain definition for every encoding, closed forms, and memory that stays bounded."""

import math
import subprocess
import sys
from collections.abc import Callable

import pytest
import torch
from support import VOCABULARY, Case, cases, indices, tokens_of
from torch import Tensor

from rpe_bench.attention import attention_logits
from rpe_bench.config import Config
from rpe_bench.diagnostics import attention_maps
from rpe_bench.diagnostics.attention_maps import Maps, maps_of, mean_or_hidden, tables, unseen_share
from rpe_bench.encodings.base import Context, DistanceBias
from rpe_bench.errors import ConfigError
from rpe_bench.model import Transformer
from rpe_bench.run import execute
from rpe_bench.tasks.base import IGNORE, Batch
from rpe_bench.trained import Trained

T, TRAINED = 24, 16
EXTENTS = {1: (TRAINED,), 2: (4, 3)}
"""By axes: less than the examples have."""


def model_of(case: Case, layers: int = 2, heads: int = 2) -> Transformer:
    """In float64, with values of the encoding far from zero."""
    sizes = {"dim": 8 * heads, "heads": heads, "layers": layers}
    encodings = case.encodings(train_length=TRAINED, max_length=2 * T, **sizes)
    model = Transformer(vocabulary=VOCABULARY, classes=4, causal=case.causal, encodings=encodings, **sizes)
    model.reset_parameters(0)
    for number, parameter in enumerate(model.encodings.parameters()):
        parameter.data += 0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(number))
    return model.double()


def batch_of(tokens_BT: Tensor, positions: Tensor | None = None) -> Batch:
    return Batch(tokens_BT, torch.full_like(tokens_BT, IGNORE), positions)


def batch_for(case: Case) -> Batch:
    """Text, or two grids of another shape each."""
    positions = indices(case.encoding(), T)
    if positions is not None:
        grids = [torch.cartesian_prod(torch.arange(H), torch.arange(T // H)) for H in (4, 6)]
        positions = torch.stack(grids)
    return batch_of(tokens_of(T), positions)


@torch.no_grad()
def plain_logits(model: Transformer, batch: Batch) -> list[Tensor]:
    """Masked logits of each layer, (B, H, T, T), by the definition and all at once."""
    tokens, positions = batch.tokens_BT, batch.positions
    encodings = list(model.encodings)
    x = encodings[0].embed(model.tokens(tokens), positions, tokens)
    found = []
    for layer, block in enumerate(model.blocks):
        encoding, given = encodings[layer % len(encodings)], block.attention_norm(x)
        weight_q, weight_k, _ = block.attention.qkv.weight.chunk(3)
        q, k = ((given @ w.mT).unflatten(-1, (block.attention.heads, -1)).transpose(1, 2) for w in (weight_q, weight_k))
        scores = attention_logits(encoding, q, k, positions, x=given, tokens=tokens, project=block.attention.project)
        if model.causal:
            scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
        found.append(scores)
        x = block(x, encoding, Context(tokens.shape[1], model.causal, positions, tokens_BT=tokens))
    return found


@pytest.mark.parametrize("case", cases(), ids=str)
def test_every_encoding_by_rows_is_the_plain_definition(case: Case) -> None:
    model, batch = model_of(case), batch_for(case)
    maps = maps_of(model, batch, EXTENTS[case.axes], rows=7)
    logits_LBHTT = torch.stack(plain_logits(model, batch))
    weights = logits_LBHTT.softmax(-1)
    places = torch.arange(T)[None, :, None] if batch.positions is None else batch.positions
    offset = (places[:, None] - places[:, :, None]).expand(2, -1, -1, -1)
    distance = offset.abs().amax(-1)[:, None]
    close = {"rtol": 0, "atol": 1e-9}

    torch.testing.assert_close(maps.weight_LHN.sum(-1), torch.ones(2, 2).double(), **close)
    torch.testing.assert_close(maps.distance_LH, (weights * distance).sum(-1).mean(dim=(1, 3)), **close)
    unseen = (offset.abs() >= torch.tensor(EXTENTS[case.axes])).any(-1)[:, None]
    assert unseen.any()
    torch.testing.assert_close(maps.unseen_LH, (weights * unseen).sum(-1).mean(dim=(1, 3)), **close)
    entropy = torch.special.entr(weights).sum(-1)
    found = torch.stack([heads.entropy_H for heads in maps.layers]) / (2 * T)
    torch.testing.assert_close(found, entropy.mean(dim=(1, 3)), **close)
    seen = torch.arange(1, T + 1) if case.causal else torch.full((T,), T)
    share = entropy[..., seen > 1] / seen[seen > 1].log()
    found = torch.stack([heads.share_H / heads.shares for heads in maps.layers])
    torch.testing.assert_close(found, share.mean(dim=(1, 3)), rtol=0, atol=1e-6)

    visible = torch.ones(T, T, dtype=torch.bool)
    visible = visible.tril() if case.causal else visible
    for d, found in enumerate(maps.by_distance_LHD.unbind(-1)):
        there = (distance[:, 0] == d) & visible
        of_query = (weights * there[:, None]).sum(-1).transpose(2, 3)  # (L, B, T, H)
        torch.testing.assert_close(found, of_query[:, there.any(-1)].mean(1), equal_nan=True, **close)

    means = torch.stack([mean_or_hidden(heads.logit_HN, heads.pairs_HN) for heads in maps.layers])
    for number in range(0, len(maps.pairs.offsets_NA), 5):
        there = (offset == maps.pairs.offsets_NA[number]).all(-1) & visible
        if there.any():
            at = logits_LBHTT.transpose(2, 4).transpose(2, 3)[:, there]  # (L, pairs, H)
            torch.testing.assert_close(means[..., number], at.mean(1), **close)


def plain(model: Transformer, tokens_BT: Tensor, trained: int = TRAINED) -> Maps:
    return maps_of(model, batch_of(tokens_BT), (trained,))


ADDITIVE = [case for case in cases() if issubclass(case.cls, DistanceBias) and set(case.cls.changes()) == {"bias"}]


@pytest.mark.parametrize("case", ADDITIVE, ids=str)
def test_the_kernel_of_a_bias_of_distance_is_the_bias(case: Case) -> None:
    model = model_of(case)
    maps = plain(model, tokens_of(T))
    seen = maps.layout.pairs_N > 0
    for layer, heads in enumerate(maps.layers):
        encoding = model.encodings[layer % len(model.encodings)]
        if not isinstance(encoding, DistanceBias) or not encoding.by_offset_alone(Context(T, case.causal)):
            continue
        offsets = maps.pairs.offsets_NA[:, 0]
        bias_HN = (encoding.of_offset(offsets) - encoding.of_offset(torch.tensor([0]))).mT.expand(2, -1)
        torch.testing.assert_close(heads.kernel.fitted_HN()[:, seen], bias_HN[:, seen], rtol=0, atol=1e-8)


@pytest.mark.parametrize("name", ["nope", "sinusoidal", "learned"])
def test_what_changes_nothing_in_attention_has_no_kernel(name: str) -> None:
    maps = plain(model_of(Case(name, False)), tokens_of(T))
    for heads in maps.layers:
        torch.testing.assert_close(heads.kernel.fitted_HN(), torch.zeros(2, 2 * T - 1).double(), rtol=0, atol=1e-9)


def mean_kernel(model: Transformer, tokens_BT: Tensor, offset: int) -> Tensor:
    """scale * mean(q)^T (R(offset) - 1) mean(k) of the first layer, one number a head."""
    block, encoding = model.blocks[0], model.encodings[0]
    with torch.no_grad():
        q, k, _ = block.attention.heads_of(block.attention_norm(model.tokens(tokens_BT)))
        q, k = (x.mean(dim=(0, 2), keepdim=True).expand(-1, -1, abs(offset) + 1, -1) for x in (q, k))
        turned_q, turned_k = encoding.rotate(q, k)
        last, first = (-1, 0) if offset <= 0 else (0, -1)
        at = (turned_q[0, :, last] * turned_k[0, :, first]).sum(-1)
        return encoding.scale * (at - (q[0, :, 0] * k[0, :, 0]).sum(-1))


def test_the_kernel_of_a_rotation_is_that_of_the_mean_query_and_the_mean_key() -> None:
    """Also where far keys hold other content than near ones."""
    model = model_of(Case("rope", True), layers=1)
    same = plain(model, torch.full((1, T), 3)).layers[0].kernel.fitted_HN()
    halves = (torch.arange(T) >= T // 2).long().expand(600, T)
    apart = plain(model, halves).layers[0].kernel.fitted_HN()
    expected = torch.stack([mean_kernel(model, halves, -d) for d in range(T - 4)], dim=1)
    for d in range(T):
        exact = mean_kernel(model, torch.full((1, T), 3), -d)
        torch.testing.assert_close(same[:, T - 1 - d], exact, rtol=0, atol=1e-9)
    found = apart[:, 4 : T - 1 + 1].flip(-1)[:, : T - 4]
    torch.testing.assert_close(found, expected, rtol=0, atol=0.15 * float(expected.abs().max()))


def without_content(case: Case, heads: int = 2) -> Transformer:
    """A model of one layer whose q.k is 0."""
    model = model_of(case, layers=1, heads=heads)
    model.blocks[0].attention.qkv.weight.data.zero_()
    return model


def test_even_attention_has_the_closed_forms() -> None:
    maps = plain(without_content(Case("nope", True)), tokens_of(T))
    of_query = 1 / torch.arange(1, T + 1).double()
    expected = torch.stack([of_query[d:].mean() for d in range(T)])  # fewer and fewer queries have the distance
    torch.testing.assert_close(maps.by_distance_LHD[0, 0], expected)
    assert maps.distance_LH[0, 0] == pytest.approx((T - 1) / 4)
    assert maps.layout.distance == pytest.approx((T - 1) / 4)
    assert maps.layout.unseen == pytest.approx(float(maps.unseen_LH[0, 0]))
    heads = maps.layers[0]
    torch.testing.assert_close(heads.share_H / heads.shares, torch.ones(2).double())
    assert heads.shares == 2 * (T - 1)  # the first query of each example has no choice


def test_both_sides_count_together_in_a_bidirectional_model() -> None:
    maps = plain(without_content(Case("nope", False)), tokens_of(T))
    sides = torch.tensor([[(i >= d) + (i + d < T) for i in range(T)] for d in range(1, T)]).double()
    expected = sides.sum(1) / (sides > 0).sum(1) / T
    torch.testing.assert_close(maps.by_distance_LHD[0, 0, 1:], expected)


def test_alibi_on_even_content_is_geometric() -> None:
    heads = 2
    maps = plain(without_content(Case("alibi", True), heads), tokens_of(T))
    for head, slope in enumerate((2**-4, 2**-8)):
        decay = [[math.exp(-slope * d) for d in range(i + 1)] for i in range(T)]
        means = [sum(d * w for d, w in enumerate(row)) / sum(row) for row in decay]
        assert float(maps.distance_LH[0, head]) == pytest.approx(sum(means) / T)


def test_a_window_is_never_left() -> None:
    maps = plain(model_of(Case("sliding_window", False)), tokens_of(T))
    inside = maps.by_distance_LHD[..., :16]
    assert inside.min() > 0 and maps.by_distance_LHD[..., 16:].max() == 0
    assert maps.unseen_LH.max() == 0 and maps.layout.unseen > 0
    kernel = maps.layers[0].kernel.fitted_HN()
    outside = maps.pairs.distance_N >= 16
    assert (kernel[:, outside] == -math.inf).all() and kernel[:, ~outside].abs().max() < 1e-9


def test_nothing_is_unseen_up_to_the_training_length() -> None:
    model = model_of(Case("rope", True))
    assert plain(model, tokens_of(T), trained=T).unseen_LH.max() == 0
    at_the_first = plain(model, tokens_of(T), trained=T - 1)
    weight = torch.stack(plain_logits(model, batch_of(tokens_of(T)))).softmax(-1)[:, :, :, T - 1, 0]
    torch.testing.assert_close(at_the_first.unseen_LH, weight.mean(1) / T)


def test_draws_of_positions_are_averaged_and_distances_stay_those_of_tokens() -> None:
    model, batch = model_of(Case("t5", True)), batch_of(tokens_of(T))
    draws = [torch.arange(T), torch.arange(T) * 2]
    one, other, both = (maps_of(model, batch, (TRAINED,), given) for given in (draws[:1], draws[1:], draws))
    assert not torch.allclose(one.weight_LHN, other.weight_LHN)
    torch.testing.assert_close(both.weight_LHN, (one.weight_LHN + other.weight_LHN) / 2)
    torch.testing.assert_close(one.weight_LHN, maps_of(model, batch, (TRAINED,)).weight_LHN)
    assert torch.equal(both.pairs.offsets_NA, one.pairs.offsets_NA)


@pytest.mark.parametrize("case", [Case("rope", True), Case("swin", False)], ids=str)
def test_a_few_examples_at_a_time_are_all_of_them(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    model, batch = model_of(case), batch_for(case)
    whole = maps_of(model, batch, EXTENTS[case.axes])
    monkeypatch.setattr(attention_maps, "TOKENS_AT_ONCE", T)
    monkeypatch.setattr(attention_maps, "LOGITS_AT_ONCE", 5 * T)
    parts = maps_of(model, batch, EXTENTS[case.axes])
    torch.testing.assert_close(parts.weight_LHN, whole.weight_LHN)
    torch.testing.assert_close(parts.by_distance_LHD, whole.by_distance_LHD, equal_nan=True)
    assert parts.layout.distance == pytest.approx(whole.layout.distance)
    assert not any(block.attention._forward_pre_hooks for block in model.blocks)


def test_memory_at_8192_tokens_is_less_than_half_a_matrix_of_them() -> None:
    code = """
import resource, sys, torch
from rpe_bench.components import make_encoding
from rpe_bench.diagnostics.attention_maps import maps_of
from rpe_bench.model import Transformer
from rpe_bench.tasks.base import Batch

def maps_at(length):
    encoding = make_encoding("kerple", dim=8, heads=1, train_length=64, max_length=8192, causal=True)
    model = Transformer(vocabulary=4, classes=2, layers=1, dim=8, heads=1, causal=True, encodings=[encoding])
    tokens = torch.zeros(1, length, dtype=torch.int64)
    maps_of(model, Batch(tokens, tokens), (64,))

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)

torch.set_num_threads(1)
maps_at(512)
before = peak()
maps_at(8192)
print(peak() - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 4 * 8192**2 / 2  # of one head, in float32


# Of a run


@pytest.fixture
def finished(make_config: Callable[..., Config]) -> Trained:
    config = make_config("copy", "learned", {"evaluation.lengths": [4, 8, 16], "recipe.train_length": 8})
    execute(config)
    return Trained.at(config.run_dir)


def test_the_tables_of_a_run(finished: Trained) -> None:
    found = tables(finished, examples=3)
    heads = found.heads
    assert list(heads["length"].unique()) == [4, 8, 16] and len(heads) == 3 * 2 * 2
    assert list(heads["split"].unique()) == ["train_lengths", "extrapolation"]
    assert set(heads["examples"]) == {3}
    assert (heads.loc[heads["length"] <= 8, "unseen_share"] == 0).all()
    assert (heads.loc[heads["length"] == 16, "unseen_share"] > 0).all()
    [tokens] = heads.loc[heads["length"] == 16, "tokens"].unique()
    one = found.by_distance.query("length == 16 and layer == 1 and head == 1")
    assert list(one["distance"]) == list(range(tokens))
    assert list(one["queries"]) == [3 * (tokens - d) for d in range(tokens)]
    assert list(one["unseen"]) == [d >= finished.config.train_tokens for d in range(tokens)]
    kernel = found.kernel.query("length == 16 and layer == 1 and head == 1")
    assert list(kernel["offset"]) == list(range(1 - tokens, 1))
    assert list(kernel["pairs"]) == list(one["queries"])[::-1]
    share = unseen_share(finished, [16], examples=3)
    assert list(share.columns) == ["length", "layer", "head", "unseen_share"]
    assert list(share["unseen_share"]) == list(heads.loc[heads["length"] == 16, "unseen_share"])


def test_the_examples_are_the_first_of_the_evaluation(finished: Trained, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    monkeypatch.setattr(attention_maps, "maps_of", lambda model, batch, *rest: given.append(batch) or stop())

    class Stop(Exception):
        pass

    def stop() -> None:
        raise Stop

    with pytest.raises(Stop):
        tables(finished)
    expected = attention_maps.examples_of(finished.config, finished.config.build_task(), 16)
    assert torch.equal(given[0].tokens_BT, expected.tokens_BT[:32])


@pytest.mark.parametrize(
    ("lengths", "examples", "said"),
    [
        ([8, 0], None, "--lengths=0: size 0 is too small: "),
        ([8, 64], None, "--lengths=64: position "),
        ([8], 33, "--examples=33: must be from 1 to 32, "),
    ],
)
def test_what_cannot_be_looked_at_is_refused(finished: Trained, lengths: list, examples: int, said: str) -> None:
    with pytest.raises(ConfigError) as refusal:
        tables(finished, lengths, examples)
    assert str(refusal.value).startswith(said) and len(refusal.value.errors) == 1
