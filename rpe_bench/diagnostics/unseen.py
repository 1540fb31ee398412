"""The share of attention that falls on distances longer than any in training."""

import math
from functools import partial
from typing import cast

import pandas as pd
import torch
from torch import Tensor

from rpe_bench.attention import logits
from rpe_bench.encodings.base import Context, Encoding
from rpe_bench.model import Attention, Block
from rpe_bench.run import examples_of
from rpe_bench.trained import Trained

LOGITS_AT_ONCE = 2**21
"""8 MiB in float32, and a few times that in a softmax."""


@torch.no_grad()
def unseen_share(trained: Trained, lengths: list[int], examples: int = 8) -> pd.DataFrame:
    """Columns length, layer, head, unseen_share: sum of the weights w_ij of keys with |j - i| >= N, mean over queries.

    N is the longest sequence trained on, in tokens; the distances are those in the text. Memory grows as length.

    Args:
        lengths: problem sizes, of those evaluated.
        examples: of each length, the first of those that the run was evaluated on.

    Raises:
        ValueError: the task has more than one axis.
        ConfigError: the checkpoint is missing or not the run's own.
    """
    config, model = trained.config, trained.model().eval()
    if config.build_task().axes != 1:
        raise ValueError("attention on a grid")
    rows = []
    for size in lengths:
        batch = examples_of(config, config.build_task(), size).rows(slice(examples))
        shares: list[Tensor] = []
        hooks = [
            cast(Block, block).attention.register_forward_pre_hook(
                partial(_look, trained=config.train_tokens, shares=shares)
            )
            for block in model.blocks
        ]
        try:
            for example in range(len(batch)):
                one = batch.rows(slice(example, example + 1))
                model(one.tokens_BT, one.positions)
        finally:
            for hook in hooks:
                hook.remove()
        share_LH = torch.stack(shares).unflatten(0, (len(batch), -1)).mean(0)
        for layer, share_H in enumerate(share_LH.tolist()):
            for head, share in enumerate(share_H):
                rows.append({"length": size, "layer": layer, "head": head, "unseen_share": share})
    return pd.DataFrame(rows)


def _look(block: Attention, arguments: tuple[Tensor, Encoding, Context], trained: int, shares: list[Tensor]) -> None:
    """Append the shares of a layer's heads that is about to be called with these arguments."""
    x_BTD, encoding, context = arguments
    q, k, _ = block.qkv(x_BTD).unflatten(-1, (3, block.heads, -1)).permute(2, 0, 3, 1, 4)
    context = context.with_(x_BTD=x_BTD, project=block.project)
    q, k = encoding.rotate(q, k, context.positions, context)
    B, H, T, _ = q.shape
    index = torch.arange(T)
    total_H = torch.zeros(H, dtype=torch.float64)
    at_once = max(1, LOGITS_AT_ONCE // (B * H * T))
    for start in range(0, T, at_once):
        rows = slice(start, min(start + at_once, T))
        part = context.with_(rows=rows)
        mask = None
        if (hidden := part.hidden_QS) is not None:
            mask = torch.zeros(hidden.shape, dtype=q.dtype).masked_fill(hidden, -math.inf)
        weights_BHQS = logits(encoding, q[:, :, rows], k, part, mask).softmax(dim=-1)
        far_QS = (index[None, :] - index[rows, None]).abs() >= trained
        total_H += (weights_BHQS * far_QS).sum(dim=(0, 2, 3)).double()
    shares.append(total_H / (B * T))
