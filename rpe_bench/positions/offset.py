"""Shifted positions: Kiyono et al. 2021, "SHAPE: shifted absolute position embedding" (arXiv 2109.05644)."""

import numpy as np
import torch
from torch import Tensor

from rpe_bench.positions.base import Frame, Remap, coordinates
from rpe_bench.tasks.base import Batch


class Offset(Remap):
    """p <- p + k, with k drawn uniformly from 0..K in training and a constant in evaluation.

    An absolute encoding is to learn from it what a relative one has by construction: that only differences matter. A
    table also gets to train rows that no training sequence is long enough to reach. Each axis of a grid has a k.

    most         K
    per_example  each example has a k of its own, rather than that of its batch
    evaluated    k in evaluation; the paper's 0 leaves positions as the task gives them
    """

    def __init__(self, frame: Frame, most: int = 500, per_example: bool = True, evaluated: int = 0) -> None:
        super().__init__(frame)
        for name, value in (("most", most), ("evaluated", evaluated)):
            if value < 0:
                raise ValueError(f"{name}={value} must not be negative")
        self.most = most
        self.per_example = per_example
        self.evaluated = evaluated
        self.train_extents = tuple(extent + most for extent in frame.train_extents)
        self.max_extents = tuple(
            max(trained, extent + evaluated)
            for trained, extent in zip(self.train_extents, frame.max_extents, strict=True)
        )

    def training(self, batch: Batch, rng: np.random.Generator) -> Tensor:
        """(T,) or, per example, (B, T); (B, T, A) on a grid."""
        places = coordinates(batch)
        examples = len(batch) if self.per_example else 1
        if places.dim() == 1:
            shift_B1 = torch.from_numpy(rng.integers(self.most, size=(examples, 1), endpoint=True))
            return (places + shift_B1).squeeze(0) if not self.per_example else places + shift_B1
        return places + torch.from_numpy(rng.integers(self.most, size=(examples, 1, places.shape[-1]), endpoint=True))

    def evaluation(self, batch: Batch, rng: np.random.Generator) -> Tensor | None:
        return coordinates(batch) + self.evaluated if self.evaluated else batch.positions
