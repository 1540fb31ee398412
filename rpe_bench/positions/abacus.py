"""Abacus: McLeish et al. 2024, "Transformers can do arithmetic with the right embeddings" (arXiv 2405.17399)."""

import numpy as np
import torch
from torch import Tensor

from rpe_bench.positions.base import Frame, Remap
from rpe_bench.tasks.base import Batch


class Abacus(Remap):
    """A digit's position is its place in its number, from 1, plus k; that of any other token is 0.

    A number is a run of digits. With numbers written from their least significant digit, digits of one significance
    share a position, wherever the numbers stand and however long they are. In training, k is drawn for each batch
    uniformly from 0..K, so that places beyond those of the trained numbers are trained too; in evaluation it is 0.

    The paper's own is encoding=learned with positions=abacus: a learned vector per position, added to the token's. A
    place depends on the tokens before it alone, so that it is known as a number is being written.

    most  K, 99 in the authors' code
    """

    def __init__(self, frame: Frame, most: int = 99) -> None:
        super().__init__(frame)
        if not frame.digits:
            raise ValueError("counts the digits of numbers, but the task has none")
        if most < 0:
            raise ValueError(f"most={most} must not be negative")
        self.most = most
        # All tokens could be digits of one number, and the others' 0 is one position more.
        self.train_extents = (frame.train_extents[0] + 1 + most,)
        self.max_extents = (max(frame.max_extents[0] + 1, *self.train_extents),)

    def training(self, batch: Batch, rng: np.random.Generator) -> Tensor:
        """(B, T)."""
        place_BT = self.evaluation(batch, rng)
        return place_BT + (place_BT > 0) * int(rng.integers(self.most, endpoint=True))

    def evaluation(self, batch: Batch, rng: np.random.Generator) -> Tensor:
        """(B, T)."""
        is_digit_BT = torch.isin(batch.tokens_BT, torch.tensor(self.frame.digits))
        index = torch.arange(batch.tokens_BT.shape[1])
        before_BT = torch.where(is_digit_BT, -1, index).cummax(dim=1).values  # the last token that is no digit
        return index - before_BT
