"""Resized tables against transformers' ViT: https://github.com/huggingface/transformers, models/vit.

The library resizes square tables to any grid, and both axes of it.
"""

import pytest
import torch
from grids import grid
from transformers import ViTConfig
from transformers.models.vit.modeling_vit import ViTEmbeddings

from rpe_bench.encodings.base import Geometry
from rpe_bench.encodings.vit import ViT


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
@pytest.mark.parametrize(
    ("side", "shape"), [(4, (4, 4)), (4, (8, 8)), (8, (8, 16)), (8, (32, 64)), (14, (24, 24)), (3, (7, 5)), (1, (3, 2))]
)
def test_what_is_added(side: int, shape: tuple[int, int], dtype: torch.dtype, tolerance: float) -> None:
    D = 16
    theirs = ViTEmbeddings(ViTConfig(image_size=2 * side, patch_size=2, hidden_size=D)).to(dtype)
    ours = ViT(Geometry(D, 2, side**2, side**2, False, axes=2)).to(dtype)
    ours.tables[0].data.copy_(theirs.position_embeddings[0, 1:])
    H, W = shape
    x = torch.randn(1, H * W, D, dtype=dtype)
    with_class = torch.nn.functional.pad(x, (0, 0, 1, 0))
    expected = x + theirs.interpolate_pos_encoding(with_class, 2 * H, 2 * W)[:, 1:]
    torch.testing.assert_close(ours.embed(x, grid(H, W)), expected, rtol=tolerance, atol=tolerance)
