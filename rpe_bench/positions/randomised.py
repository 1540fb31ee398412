"""Randomised positions: Ruoss et al. 2023, "Randomized positional encodings" (arXiv 2305.16843)."""

import numpy as np
import torch
from torch import Tensor

from rpe_bench.positions.base import Frame, Remap, coordinates
from rpe_bench.tasks.base import Batch


class Randomised(Remap):
    """p <- I[p], with I the sorted positions drawn for the sequence: as many as it has, without repeats, from 0..N-1.

    Trained on such positions, an encoding has met those of every length up to N. They are drawn anew at each training
    step, and in evaluation too, where scores are means over `draws` of them. Along each axis of a grid, I is another.

    range        N, at least as many as the longest sequence has
    per_example  each example has positions of its own, rather than those of its batch
    draws        how often an evaluation draws
    """

    def __init__(self, frame: Frame, range: int = 2048, per_example: bool = False, draws: int = 5) -> None:
        super().__init__(frame)
        longest = max(*frame.train_extents, *frame.max_extents)
        if range < longest:
            raise ValueError(f"range={range} is too small: {longest} different positions are to be drawn from it")
        if draws < 1:
            raise ValueError(f"draws={draws} must be at least 1")
        self.range = range
        self.per_example = per_example
        self.draws = draws
        self.train_extents = self.max_extents = (range,) * frame.axes

    def training(self, batch: Batch, rng: np.random.Generator) -> Tensor:
        """(T,) or, per example, (B, T); (B, T, A) on a grid."""
        places = coordinates(batch)
        if places.dim() == 1:
            return self._draw(len(places), len(batch), rng).squeeze(0)
        columns = []
        for place_BT in places.unbind(-1):
            drawn = self._draw(int(place_BT.max()) + 1, len(batch), rng)
            columns.append(drawn.expand(len(batch), -1).gather(1, place_BT))
        return torch.stack(columns, dim=-1)

    def evaluation(self, batch: Batch, rng: np.random.Generator) -> Tensor:
        return self.training(batch, rng)

    def _draw(self, count: int, examples: int, rng: np.random.Generator) -> Tensor:
        """I, (1, count) or, per example, (examples, count)."""
        if count > self.range:
            raise ValueError(f"range={self.range} has no {count} different positions")
        times = range(examples if self.per_example else 1)
        drawn = np.stack([rng.choice(self.range, count, replace=False, shuffle=False) for _ in times])
        return torch.from_numpy(np.sort(drawn, axis=1))
