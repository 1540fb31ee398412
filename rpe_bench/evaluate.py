"""Held-out loss and accuracy by length, by position and by what the task slices its examples by."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from rpe_bench.model import Transformer
from rpe_bench.tasks.base import IGNORE, Batch

TOKENS_AT_ONCE = 2**14
"""Tokens of a forward pass in evaluation: bounds memory, whatever the length."""


def asked_logits(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """The logits (N, C) that the scored targets are held against, and which those are, (N,), of all targets in a row.

    Logits of several positions are summed where the task reads them together.
    """
    asked_N = (batch.targets_BT.flatten() != IGNORE).nonzero()[:, 0]
    if batch.readout_BP is None:
        everything = len(asked_N) == batch.tokens_BT.numel()  # in order, so that nothing need be looked up
        logits = model(batch.tokens_BT, batch.positions, None if everything else asked_N)
        return logits.flatten(0, -2).float(), asked_N
    read_NP = asked_N[:, None] * batch.tokens_BT.shape[1] + batch.readout_BP[asked_N]  # one target an example
    logits = model(batch.tokens_BT, batch.positions, read_NP.flatten())
    return logits.unflatten(0, read_NP.shape).sum(1).float(), asked_N


def loss_of(model: Transformer, batch: Batch) -> Tensor:
    """Mean cross-entropy over the scored tokens, in nats."""
    logits_NC, asked_N = asked_logits(model, batch)
    return cross_entropy(logits_NC, batch.targets_BT.flatten()[asked_N])


@dataclass
class Scores:
    """The rows of one length, by the name of the table that they belong to."""

    evaluation: dict[str, float]
    positions: list[dict[str, float]] = field(default_factory=list)
    slices: list[dict[str, float | str]] = field(default_factory=list)
    examples: list[dict[str, float]] = field(default_factory=list)
    baselines: dict[str, float] = field(default_factory=dict)


@dataclass
class Floor:
    """The rows of one length of what the best of all predictors loses."""

    evaluation: dict[str, float]
    positions: list[dict[str, float]]


@torch.no_grad()
def score(model: Transformer, batch: Batch, device: torch.device) -> tuple[Tensor, Tensor, Tensor]:
    """Per token of the targets: loss in nats (float64), whether the likeliest answer is right, whether it is scored.

    Where it is not, the loss is 0 and nothing is right.
    """
    model.eval()
    length = batch.tokens_BT.shape[1]
    at_once = max(1, TOKENS_AT_ONCE // length)
    losses, rights = [], []
    for start in range(0, len(batch), at_once):
        part = batch.rows(slice(start, start + at_once)).to(device)
        logits_NC, asked_N = asked_logits(model, part)
        targets_N = part.targets_BT.flatten()[asked_N]
        losses.append(cross_entropy(logits_NC, targets_N, reduction="none").double().cpu())
        rights.append((logits_NC.argmax(-1) == targets_N).cpu())
    scored = batch.targets_BT != IGNORE
    loss = torch.zeros(scored.shape, dtype=torch.float64)
    right = torch.zeros(scored.shape, dtype=torch.bool)
    loss[scored], right[scored] = torch.cat(losses), torch.cat(rights)
    return loss, right, scored


def summarise(size: int, batch: Batch, loss: Tensor, right: Tensor, scored: Tensor, chance: float) -> Scores:
    """Tables of one length from per-token scores: `scored` (B, T), loss and right (B, T) or, of N draws of positions,
    (N, B, T); loss is zero where not scored. Every score is then the mean over the draws.

    Raises FloatingPointError where the mean loss is not a number: the weights are ruined, and no score means anything.

    `exact_match` is the share of examples whose scored tokens are all right (in one draw). Teacher-forced and
    free-running greedy decoding agree on it: the first error comes at the same place, since everything before it is the
    same.
    """
    exact = (right | ~scored).all(-1).double()
    exact_match, exact_B = float(exact.mean()), exact.reshape(-1, len(batch)).mean(0)
    loss, right = (values.reshape(-1, *scored.shape).double().mean(0) for values in (loss, right))
    tokens = int(scored.sum())
    mean = float(loss.sum()) / tokens
    if math.isnan(mean):
        raise FloatingPointError(f"the loss at size {size} is nan")
    evaluation = {
        "length": size,
        "examples": len(batch),
        "tokens": tokens,
        "loss": mean,
        "perplexity": _exp(mean),
        "token_accuracy": float(right.sum()) / tokens,
        "exact_match": exact_match,
    }
    scores = Scores(evaluation)

    tokens_B = scored.sum(-1)
    scores.examples = _rows(
        size,
        example=torch.arange(len(batch)),
        tokens=tokens_B,
        loss=loss.sum(-1) / tokens_B,
        token_accuracy=right.sum(-1) / tokens_B,
        exact_match=exact_B,
    )

    # A task that sums several positions has no single one to report its answer by.
    if batch.readout_BP is None:
        places = scored.any(0).nonzero()[:, 0]
        counts, losses, rights = (values.sum(0)[places] for values in (scored, loss, right))
        scores.positions = _rows(
            size,
            position=places,
            tokens=counts,
            loss=losses / counts,
            perplexity=(losses / counts).exp(),
            accuracy=rights / counts,
        )

    for name, values_B in batch.slices.items():
        for value in values_B.unique().tolist():
            chosen = values_B == value
            count = int(scored[chosen].sum())
            scores.slices.append(
                {
                    "length": size,
                    "slice": name,
                    "value": value,
                    "examples": int(chosen.sum()),
                    "tokens": count,
                    "loss": float(loss[chosen].sum()) / count,
                    "accuracy": float(right[chosen].sum()) / count,
                }
            )

    frequencies = batch.targets_BT[scored].bincount()
    scores.baselines = {"length": size, "chance": chance, "majority": int(frequencies.max()) / tokens}
    return scores


def floor_of(size: int, batch: Batch, ideal_BT: Tensor) -> Floor:
    """Tables of one length from the ideal loss of each token, (B, T) in nats, over the tokens that are scored."""
    scored = batch.targets_BT != IGNORE
    places = scored.any(0).nonzero()[:, 0]
    counts, losses = (values.sum(0)[places] for values in (scored, ideal_BT.masked_fill(~scored, 0.0)))
    tokens, means = int(counts.sum()), losses / counts
    mean = float(losses.sum()) / tokens
    evaluation = {"length": size, "tokens": tokens, "loss": mean, "perplexity": _exp(mean)}
    return Floor(evaluation, _rows(size, position=places, tokens=counts, loss=means, perplexity=means.exp()))


def _rows(size: int, **columns: Tensor) -> list[dict[str, float]]:
    """A row for each entry of the columns. To take them out one by one is ten times slower."""
    rows = zip(*(column.tolist() for column in columns.values()), strict=True)
    return [{"length": size, **dict(zip(columns, row, strict=True))} for row in rows]


def _exp(loss: float) -> float:
    """Perplexity; infinite rather than an OverflowError for a model that is certain and wrong."""
    return float(torch.tensor(loss, dtype=torch.float64).exp())
