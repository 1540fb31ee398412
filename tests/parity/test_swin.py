"""Swin's bias against transformers, logits and all: https://github.com/huggingface/transformers, models/swin."""

import pytest
import torch
from grids import grid
from torch import Tensor
from transformers import SwinConfig
from transformers.models.swin.modeling_swin import SwinAttention, SwinRelativePositionBias

from rpe_bench.attention import attention_logits, reference
from rpe_bench.encodings.base import Context, Geometry
from rpe_bench.encodings.swin import Swin

HEADS, HEAD_DIMS, WINDOWS = [1, 2, 3, 4, 6, 8, 12, 16], [8, 16, 32, 64, 96, 128, 24, 8], [45, 1, 2, 3, 5, 7, 12, 16]


def built(heads: int, head_dim: int, window: tuple[int, int], causal: bool = False) -> Swin:
    sides = {"train_extents": window, "max_extents": window}
    geometry = Geometry(heads * head_dim, heads, window[0] * window[1], window[0] * window[1], causal, axes=2, **sides)
    encoding = Swin(geometry, std=1.0)
    encoding.reset_parameters(torch.Generator().manual_seed(0))
    return encoding


def logits(theirs: Tensor, q: Tensor, k: Tensor) -> Tensor:
    return q @ k.mT * q.shape[-1] ** -0.5 + theirs


@pytest.mark.parametrize(("heads", "head_dim", "side"), list(zip(HEADS, HEAD_DIMS, WINDOWS, strict=True)))
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_logits(heads: int, head_dim: int, side: int, dtype: torch.dtype, tolerance: float) -> None:
    """Square windows of up to 45 x 45 = 2025 cells, and such as are 8 cells high."""
    for window in {(side, side), (min(side, 8), side)}:
        ours = built(heads, head_dim, window).to(dtype)
        theirs = SwinRelativePositionBias(heads, window).to(dtype)
        theirs.relative_position_bias_table.data.copy_(ours.table_NH)
        cells = grid(*window)
        q, k = torch.randn(2, 1, heads, cells.shape[1], head_dim, dtype=dtype)
        expected = logits(theirs(), q, k)
        torch.testing.assert_close(attention_logits(ours, q, k, cells), expected, rtol=tolerance, atol=tolerance)
        rows = ours.row(Context(cells.shape[1], False, cells).offset)[0]
        assert torch.equal(rows.flatten(), theirs.relative_position_index)


def test_attention() -> None:
    """Whole windows through the library's layer, its projections in both. Its softmax is in float32, whatever comes."""
    config = SwinConfig(attention_probs_dropout_prob=0.0, attn_implementation="eager")
    layer, ours = SwinAttention(config, 32, 4, 5).eval(), built(4, 8, (5, 5))
    layer.relative_position_bias.relative_position_bias_table.data.copy_(ours.table_NH)
    x = torch.randn(3, 25, 32)
    q, k, v = (part(x).unflatten(-1, (4, 8)).transpose(1, 2) for part in (layer.q_proj, layer.k_proj, layer.v_proj))
    mixed = reference(ours, q, k, v, Context(25, False, grid(5, 5, 3)))
    found = layer.o_proj(mixed.transpose(1, 2).flatten(2))
    torch.testing.assert_close(found, layer(x)[0], rtol=1e-5, atol=1e-6)
