"""Scores against a computation by loops over numbers, on made-up logits."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from support import encodings_for
from torch import Tensor, nn

from rpe_bench import catalogue, evaluate
from rpe_bench.config import Config
from rpe_bench.evaluate import asked_logits, loss_of, score, summarise
from rpe_bench.run import build_model
from rpe_bench.run import evaluate as evaluate_run
from rpe_bench.schema import TABLES
from rpe_bench.tasks.base import IGNORE, Batch
from rpe_bench.train import training_set

CPU = torch.device("cpu")
B, T, V, C = 13, 6, 9, 4


class Lookup(nn.Module):
    """Logits that depend on the token and its index alone; keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.table = nn.Parameter(3 * torch.randn(T, V, C, generator=generator))
        self.given: list[tuple[int, Tensor | None, bool, bool]] = []
        self.asked: list[Tensor | None] = []

    def forward(self, tokens_BT: Tensor, positions: Tensor | None, asked_N: Tensor | None = None) -> Tensor:
        self.given.append((len(tokens_BT), positions, self.training, torch.is_grad_enabled()))
        self.asked.append(asked_N)
        logits_BTC = self.table[torch.arange(T), tokens_BT]
        return logits_BTC if asked_N is None else logits_BTC.flatten(0, 1)[asked_N]


def made_up(readout: bool = False) -> Batch:
    rng = np.random.default_rng(1)
    tokens = rng.integers(V, size=(B, T))
    slices = {"distance": rng.integers(2, 5, size=B), "operands": rng.integers(2, size=B)}
    if readout:
        pairs = rng.integers(T, size=(B, 2))
        pairs[0] = 3, 3  # one position read twice counts twice
        return Batch.from_numpy(tokens, rng.integers(C, size=(B, 1)), slices, readout_BP=torch.from_numpy(pairs))
    targets = np.where(rng.random((B, T)) < 0.4, rng.integers(C, size=(B, T)), IGNORE)
    targets[:, 0], targets[:, 3] = IGNORE, 2
    likeliest = Lookup()(torch.from_numpy(tokens), None, torch.arange(B * T)).argmax(-1).view(B, T).numpy()
    targets[:4] = np.where(targets[:4] == IGNORE, IGNORE, likeliest[:4])  # four examples that are right throughout
    return Batch.from_numpy(tokens, targets, slices)


def by_loops(batch: Batch, model: Lookup) -> list[dict[str, Any]]:
    """One entry for each scored token."""
    table, entries = model.table.detach().double().numpy(), []
    for b in range(B):
        for t, target in enumerate(batch.targets_BT[b].tolist()):
            if target == IGNORE:
                continue
            read = [t] if batch.readout_BP is None else batch.readout_BP[b].tolist()
            logits = sum(table[at, batch.tokens_BT[b, at]] for at in read)
            loss = math.log(sum(math.exp(value) for value in logits)) - logits[target]
            right = max(range(C), key=lambda c, logits=logits: logits[c]) == target
            entries.append({"b": b, "t": t, "loss": loss, "right": right, "target": target})
    return entries


def mean(entries: list[dict[str, Any]], key: str) -> float:
    return sum(entry[key] for entry in entries) / len(entries)


@pytest.mark.parametrize("readout", [False, True])
def test_all_tables(readout: bool) -> None:
    batch, model = made_up(readout), Lookup()
    entries = by_loops(batch, model)
    scores = summarise(77, batch, *score(model, batch, CPU), chance=0.25)

    examples = [[entry for entry in entries if entry["b"] == b] for b in range(B)]
    whole = [all(entry["right"] for entry in example) for example in examples]
    assert 0 < sum(whole) < B and 0 < mean(entries, "right") < 1
    assert scores.evaluation == pytest.approx(
        {
            "length": 77,
            "examples": B,
            "tokens": len(entries),
            "loss": mean(entries, "loss"),
            "perplexity": math.exp(mean(entries, "loss")),
            "token_accuracy": mean(entries, "right"),
            "exact_match": sum(whole) / B,
        },
        rel=1e-6,
    )
    assert loss_of(model, batch).item() == pytest.approx(mean(entries, "loss"), rel=1e-6)

    expected = []
    for t in () if readout else sorted({entry["t"] for entry in entries}):
        at = [entry for entry in entries if entry["t"] == t]
        row = {"length": 77, "position": t, "tokens": len(at), "loss": mean(at, "loss")}
        expected.append(row | {"perplexity": math.exp(row["loss"]), "accuracy": mean(at, "right")})
    assert len(scores.positions) == len(expected) == (0 if readout else T - 1)
    for found, row in zip(scores.positions, expected, strict=True):
        assert found == pytest.approx(row, rel=1e-6)

    expected = []
    for name, values in batch.slices.items():
        for value in sorted(set(values.tolist())):
            chosen = [b for b in range(B) if values[b] == value]
            of = [entry for entry in entries if entry["b"] in chosen]
            row = {"length": 77, "slice": name, "value": value, "examples": len(chosen), "tokens": len(of)}
            expected.append(row | {"loss": mean(of, "loss"), "accuracy": mean(of, "right")})
    assert len(scores.slices) == len(expected) == 5
    for found, row in zip(scores.slices, expected, strict=True):
        assert found.pop("slice") == row.pop("slice")
        assert found == pytest.approx(row, rel=1e-6)

    expected = []
    for b in range(B):
        of = [entry for entry in entries if entry["b"] == b]
        row = {"length": 77, "example": b, "tokens": len(of), "loss": mean(of, "loss")}
        row |= {"token_accuracy": mean(of, "right"), "exact_match": float(all(entry["right"] for entry in of))}
        expected.append(row)
    assert scores.examples == [pytest.approx(row, rel=1e-6, abs=1e-6) for row in expected]

    most = Counter(entry["target"] for entry in entries).most_common(1)[0][1]
    assert scores.baselines == pytest.approx({"length": 77, "chance": 0.25, "majority": most / len(entries)})


@pytest.mark.parametrize("readout", [False, True])
@pytest.mark.parametrize(("at_once", "parts"), [(1, 13), (3 * T, 5), (3 * T + T - 1, 5), (13 * T, 1), (10**6, 1)])
def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch, readout: bool, at_once: int, parts: int) -> None:
    batch, model = made_up(readout), Lookup()
    expected = score(model, batch, CPU)
    model.given.clear()
    monkeypatch.setattr(evaluate, "TOKENS_AT_ONCE", at_once)
    assert all(torch.equal(one, other) for one, other in zip(score(model, batch, CPU), expected, strict=True))
    assert len(model.given) == parts and sum(size for size, *_ in model.given) == B


def test_positions_reach_the_model_in_their_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    batch, model = made_up(), Lookup()
    grid = torch.randint(5, (B, T, 2))
    batch = Batch(batch.tokens_BT, batch.targets_BT, positions=grid)
    monkeypatch.setattr(evaluate, "TOKENS_AT_ONCE", 5 * T)
    score(model, batch, CPU)
    assert torch.equal(torch.cat([positions for _, positions, _, _ in model.given]), grid)


def test_scoring_is_evaluation() -> None:
    model = Lookup().train()
    score(model, made_up(), CPU)
    assert [(training, grad) for _, _, training, grad in model.given] == [(False, False)]


def test_a_model_that_is_certain_and_wrong_has_infinite_perplexity() -> None:
    model = Lookup()
    with torch.no_grad():
        model.table.zero_()[..., 0] = 1e5
    scores = summarise(6, made_up(), *score(model, made_up(), CPU), chance=0.25)
    assert scores.evaluation["perplexity"] == math.inf and math.isfinite(scores.evaluation["loss"])


def test_read_positions_are_summed_before_the_softmax() -> None:
    batch, model = made_up(readout=True), Lookup()
    logits, asked = asked_logits(model, batch)
    assert logits.shape == (B, C) and torch.equal(asked, torch.arange(B))
    token = batch.tokens_BT[0, 3]
    torch.testing.assert_close(logits[0], 2 * model.table[3, token])


def test_what_is_not_scored_is_not_asked_for() -> None:
    """Nor has it a loss, in a chunk where something is scored or in one where nothing is."""
    batch, model = made_up(), Lookup()
    batch.targets_BT[5:8] = IGNORE
    logits, asked = asked_logits(model, batch)
    scored = batch.targets_BT != IGNORE
    assert logits.shape == (int(scored.sum()), C)
    assert torch.equal(asked, torch.arange(B * T)[scored.flatten()])
    for rows in (slice(None), slice(5, 8)):
        loss, right, found = score(model, batch.rows(rows), CPU)
        assert torch.equal(found, scored[rows])
        assert torch.equal(loss > 0, found) and not right[~found].any()


@pytest.mark.parametrize("left_out", [0, 1])
def test_what_is_scored_throughout_is_not_looked_up(left_out: int) -> None:
    batch, model = made_up(), Lookup()
    batch.targets_BT.fill_(1)[-1, T - left_out :] = IGNORE
    logits, asked = asked_logits(model, batch)
    assert torch.equal(asked, torch.arange(B * T - left_out))
    assert torch.equal(logits, model(batch.tokens_BT, None, asked))
    assert (model.asked[0] is None) == (left_out == 0)


# Evaluation of a run


def captured(config: Config, monkeypatch: pytest.MonkeyPatch) -> tuple[list[Batch], dict[str, list[dict[str, Any]]]]:
    batches: list[Batch] = []

    def spy(model: nn.Module, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
        batches.append(batch)
        return score(model, batch, device)

    monkeypatch.setattr("rpe_bench.run.score", spy)
    tables = evaluate_run(config, config.build_task(), build_model(config), CPU)
    return batches, tables


def test_all_runs_meet_the_same_examples(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = captured(make_config("copy", "rope"), monkeypatch)
    for encoding in encodings_for("copy"):
        keys = {"seed": 5, "recipe.batch_size": 3, "evaluation.multiples": [0.5, 2, 1, 1]}
        again, _ = captured(make_config("copy", encoding, keys), monkeypatch)
        assert all(torch.equal(one.tokens_BT, other.tokens_BT) for one, other in zip(first, again, strict=True))
    other, _ = captured(make_config("copy", "rope", {"evaluation.seed": 1}), monkeypatch)
    assert not any(torch.equal(one.tokens_BT, more.tokens_BT) for one, more in zip(first, other, strict=True))


def test_rows_of_a_run(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    batches, tables = captured(make_config("retrieval", "alibi", {"evaluation.lengths": [9, 48, 49]}), monkeypatch)
    assert [batch.tokens_BT.shape for batch in batches] == [(32, 10), (32, 49), (32, 50)]
    splits = [(row["length"], row["split"], row["examples"]) for row in tables["eval"]]
    assert splits == [(9, "train_lengths", 32), (48, "train_lengths", 32), (49, "extrapolation", 32)]
    assert [(row["length"], row["position"]) for row in tables["positions"]] == [(9, 9), (48, 48), (49, 49)]
    assert [row["length"] for row in tables["baselines"]] == [9, 48, 49]
    assert [row["chance"] for row in tables["baselines"]] == [1 / 16] * 3
    counts = Counter()
    for row in tables["slices"]:
        counts[row["length"]] += row["examples"]
    assert counts == {9: 32, 48: 32, 49: 32}
    assert "training_set" not in tables


def test_scores_are_means_over_the_draws_of_positions(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the loss, the accuracy and the share of examples that are right throughout; nothing is counted twice."""
    options = {"positions": catalogue.read("positions", "randomised") | {"draws": 3, "range": 300}}
    sizes = {"evaluation.lengths": [4, 20], "evaluation.examples": 400, "task.types": 2}
    config = make_config("copy", "learned", options | sizes)
    batches, tables = captured(config, monkeypatch)
    model = build_model(config)
    assert len(batches) == 2 * 3
    for number, size in enumerate((4, 20)):
        drawn = batches[3 * number : 3 * number + 3]
        assert len({tuple(batch.positions.tolist()) for batch in drawn}) == 3
        assert all(torch.equal(batch.tokens_BT, drawn[0].tokens_BT) for batch in drawn)
        single = [summarise(size, batch, *score(model, batch, CPU), chance=0.5) for batch in drawn]
        assert len({scores.evaluation["loss"] for scores in single}) == 3
        row = tables["eval"][number]
        assert (row["examples"], row["tokens"]) == (400, 400 * size)
        for key in ("loss", "token_accuracy", "exact_match"):
            expected = np.mean([scores.evaluation[key] for scores in single])
            assert row[key] == pytest.approx(expected, rel=1e-12), key
        assert row["perplexity"] == pytest.approx(math.exp(row["loss"]), rel=1e-12)
        positions = [row for row in tables["positions"] if row["length"] == size]
        for place, row in enumerate(positions):
            of_place = [scores.positions[place] for scores in single]
            # The index in the sequence, whatever position it was said to have.
            assert (row["position"], row["tokens"]) == (of_place[0]["position"], 400) == (size + 1 + place, 400)
            assert row["accuracy"] == pytest.approx(np.mean([one["accuracy"] for one in of_place]), rel=1e-12)
    assert 0 < tables["eval"][0]["exact_match"] < 1


def test_a_draw_that_is_all_wrong_halves_the_scores() -> None:
    batch, model = made_up(), Lookup()
    loss, right, scored = score(model, batch, CPU)
    alone = summarise(6, batch, loss, right, scored, 0.25)
    worse = summarise(6, batch, torch.stack((loss, 3 * loss)), torch.stack((right, right & False)), scored, 0.25)
    for key in ("token_accuracy", "exact_match"):
        assert worse.evaluation[key] == pytest.approx(alone.evaluation[key] / 2) and alone.evaluation[key] > 0
    for one, both in zip(alone.slices, worse.slices, strict=True):
        assert both["loss"] == pytest.approx(2 * one["loss"]) and both["accuracy"] == pytest.approx(one["accuracy"] / 2)
        assert (both["examples"], both["tokens"]) == (one["examples"], one["tokens"])


@pytest.mark.parametrize(("task", "positions"), [("copy", "randomised"), ("addition", "abacus"), ("copy", "offset")])
def test_all_runs_are_evaluated_at_the_same_positions(
    make_config, monkeypatch: pytest.MonkeyPatch, task: str, positions: str
) -> None:
    options = {"positions": catalogue.read("positions", positions)}
    if positions == "offset":
        options["positions"]["evaluated"] = 7
    first, _ = captured(make_config(task, "rope", options), monkeypatch)
    keys = {"seed": 5, "recipe.batch_size": 3}
    again, _ = captured(make_config(task, "learned", options | keys), monkeypatch)
    assert first and all(torch.equal(one.positions, two.positions) for one, two in zip(first, again, strict=True))
    if positions == "randomised":
        other, _ = captured(make_config(task, "rope", options | {"evaluation.seed": 1}), monkeypatch)
        assert not any(torch.equal(one.positions, two.positions) for one, two in zip(first, other, strict=True))


def test_a_finite_training_set_is_scored_too(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config("adjacency_tutorial", "rope", {"task.training_examples": 20})
    batches, tables = captured(config, monkeypatch)
    assert [(row["length"], row["split"], row["examples"]) for row in tables["eval"]] == [
        (4, "train_lengths", 32),
        (8, "train_lengths", 32),
        (16, "extrapolation", 32),
    ]
    (row,) = tables["training_set"]
    assert (row["length"], row["examples"]) == (8, 20) and list(row) == list(TABLES["training_set"])
    examples = training_set(config.build_task(), config.seed, 8)
    assert examples is not None and torch.equal(batches[-1].tokens_BT, examples.tokens_BT)
    held_out = {tuple(row) for row in batches[1].tokens_BT.tolist()}
    assert not held_out & {tuple(row) for row in examples.tokens_BT.tolist()}
    assert tables["positions"] == []
    assert len(tables["baselines"]) == 3
