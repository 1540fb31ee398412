"""What a trained model loses at unseen positions, and at unseen distances, one without the other.

In a longer sequence the two come together: a token at position t is itself at a position as far out as its farthest key
is away. They come apart in sequences of the training length N whose tokens are the same and whose positions are set:

    plain     0 .. N-1                                    as in training
    shifted   G .. N-1+G                                  positions unseen; distances and number of keys as in training
    parted    0 .. N/2-1, then N/2+G .. N-1+G             distances across the gap unseen; number of keys as in training

G is what the longest sequence evaluated has beyond N, so that no position exceeds those evaluated. Losses are over the
last quarter of the tokens, which have a quarter of the sequence between them and the gap.
"""

from dataclasses import replace

import pandas as pd
import torch

from rpe_bench.config import PLAIN, Config
from rpe_bench.evaluate import score
from rpe_bench.run import examples_of
from rpe_bench.tasks.base import IGNORE, Batch
from rpe_bench.trained import Trained

INTERVENTIONS = ("plain", "shifted", "parted")


def refusal(config: Config) -> str | None:
    """Why the positions of a run cannot be set so; None where they can."""
    if config.build_task().axes != 1:
        return "positions on a grid"
    if config.positions != PLAIN:
        return f"positions={config.positions.name}"
    if config.max_tokens <= config.train_tokens:
        return "evaluated at no longer length"
    return None


def losses_under_intervention(trained: Trained) -> pd.DataFrame:
    """Columns intervention (of INTERVENTIONS), example, loss: mean over its scored tokens, in nats.

    The examples are those that the run is evaluated on at the training length; those without a scored token in the last
    quarter are left out.

    Raises:
        ValueError: the run refuses, as `refusal` says.
        ConfigError: its checkpoint is missing or not its own.
    """
    config = trained.config
    if (reason := refusal(config)) is not None:
        raise ValueError(reason)
    assert config.recipe.train_length is not None  # resolved
    model = trained.model()
    batch = _last_quarter(examples_of(config, config.build_task(), config.recipe.train_length))
    tables = []
    for name, positions_T in _positions(batch.tokens_BT.shape[1], config.max_tokens).items():
        loss_BT, _, scored_BT = score(model, replace(batch, positions=positions_T), torch.device("cpu"))
        counts_B = scored_BT.sum(1)
        loss_B = (loss_BT.sum(1) / counts_B)[counts_B > 0]
        frame = pd.DataFrame({"example": counts_B.nonzero().flatten().tolist(), "loss": loss_B.tolist()})
        tables.append(frame.assign(intervention=name))
    return pd.concat(tables, ignore_index=True)[["intervention", "example", "loss"]]


def _positions(length: int, longest: int) -> dict[str, torch.Tensor]:
    """The positions of `length` tokens under each intervention, none of them `longest` or more."""
    plain, gap = torch.arange(length), longest - length
    return {"plain": plain, "shifted": plain + gap, "parted": plain + gap * (plain >= length // 2)}


def _last_quarter(batch: Batch) -> Batch:
    """The same with the targets of the last quarter alone, or the one answer that is read from several positions."""
    if batch.readout_BP is not None:
        return batch
    targets_BT = batch.targets_BT.clone()
    targets_BT[:, : 3 * targets_BT.shape[1] // 4] = IGNORE
    return replace(batch, targets_BT=targets_BT)
