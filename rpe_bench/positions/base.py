"""What a remap is: between task and model, it says at which positions the tokens of a batch stand.

Shapes: B examples, T tokens, A axes of position.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor

from rpe_bench.tasks.base import Batch


@dataclass(frozen=True)
class Frame:
    """The positions of a task before any remapping, and what else a remap may go by."""

    train_extents: tuple[int, ...]
    """Positions met in training along each axis, 0 to one less."""
    max_extents: tuple[int, ...]
    """Positions met in training or evaluation along each axis."""
    digits: tuple[int, ...] = ()
    """The token ids that are digits of numbers, where the task has any."""

    @property
    def axes(self) -> int:
        return len(self.train_extents)


class Remap:
    """Positions as the task gives them, and the base of every remap.

    Positions are data: a remap turns a batch into the positions that the model is given with it, and every encoding
    takes them as it takes any. What it draws for a training step comes from a generator of (seed, step), and what it
    draws for an evaluation from one of (task, size, evaluation seed, draw), so that under one seed all encodings are
    given the same positions.
    """

    fractions: ClassVar[bool] = False
    """Whether positions may lie between whole ones; a table has no rows for those."""

    draws: int = 1
    """How many times the examples of an evaluation are scored, each with positions drawn anew. Every score is the mean
    over the draws; the number of examples remains that of different ones."""

    def __init__(self, frame: Frame) -> None:
        """Extents are of the positions that the model meets; override them where these are not the task's."""
        self.frame = frame
        self.train_extents = frame.train_extents
        self.max_extents = frame.max_extents

    @property
    def axes(self) -> int:
        """Columns of the positions that the model is given."""
        return len(self.train_extents)

    def training(self, batch: Batch, rng: np.random.Generator) -> Tensor | None:
        """Positions for a training step: None for 0..T-1, or (T,), (B, T) or (B, T, A), integers or float64."""
        return batch.positions

    def evaluation(self, batch: Batch, rng: np.random.Generator) -> Tensor | None:
        """Positions for one draw of an evaluation, as for training."""
        return batch.positions


def coordinates(batch: Batch) -> Tensor:
    """The task's positions: (T,) for text, (B, T, A) for a grid."""
    return torch.arange(batch.tokens_BT.shape[1]) if batch.positions is None else batch.positions
