"""Interpolation: Chen et al. 2023, "Extending context window of large language models" (arXiv 2306.15595)."""

import numpy as np
import torch
from torch import Tensor

from rpe_bench.positions.base import Frame, Remap, coordinates
from rpe_bench.tasks.base import Batch


class Interpolated(Remap):
    """p <- p L / T in evaluation, for a sequence of T > L tokens, where L is the longest trained on: it is squeezed
    into positions that training reached. Shorter sequences, and all of training, keep their positions.

    Each axis of a grid is squeezed by itself. The positions are fractions: an encoding that looks them up in a table
    refuses them.

    factor  what to divide all positions of an evaluation by instead, whatever the length: the paper's way, with the
            ratio of the context wanted to the one trained on. Without the paper's fine-tuning even short sequences then
            have positions between those trained on.
    """

    fractions = True

    def __init__(self, frame: Frame, factor: float | None = None) -> None:
        super().__init__(frame)
        if factor is not None and factor < 1:
            raise ValueError(f"factor={factor} must be at least 1, or null for the ratio of the lengths")
        self.factor = factor
        if factor is None:
            self.max_extents = frame.train_extents
        else:
            squeezed = (int(-(-extent // factor)) for extent in frame.max_extents)
            self.max_extents = tuple(map(max, frame.train_extents, squeezed))

    def evaluation(self, batch: Batch, rng: np.random.Generator) -> Tensor | None:
        """Float64, (T,) for text and (B, T, A) for a grid; what the task gives where nothing is squeezed."""
        places = coordinates(batch)
        if self.factor is not None:
            return places.double() / self.factor if self.factor > 1 else batch.positions
        extent = places.amax(dim=-1 if places.dim() == 1 else 1, keepdim=True) + 1
        trained = torch.tensor(self.frame.train_extents)
        if bool((extent <= trained).all()):
            return batch.positions
        # In this order, so that whole results are exact.
        return (places * trained.minimum(extent)).double() / extent
