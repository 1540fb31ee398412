"""Sinusoids of two axes against transformers' MAE: https://github.com/huggingface/transformers, models/vit_mae.

The library has the rows in the first half of the features, unlike the authors' code and ours.
"""

import pytest
import torch
from grids import grid
from transformers.models.vit_mae.modeling_vit_mae import build_2d_sinusoidal_position_embedding

from rpe_bench.encodings.base import Geometry
from rpe_bench.encodings.sinusoidal_2d import Sinusoidal2D


@pytest.mark.parametrize(("width", "shape", "base"), [(4, (3, 3), 1e4), (64, (8, 16), 1e4), (48, (32, 64), 100.0)])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 1e-5)])
def test_what_is_added(width: int, shape: tuple[int, int], base: float, dtype: torch.dtype, tolerance: float) -> None:
    H, W = shape
    rows, columns = build_2d_sinusoidal_position_embedding(H, W, width, base, dtype=dtype).chunk(2, dim=-1)
    ours = Sinusoidal2D(Geometry(width, 1, H * W, H * W, False, axes=2), base=base)
    found = ours.embed(torch.zeros(1, H * W, width, dtype=dtype), grid(H, W))[0]
    torch.testing.assert_close(found, torch.cat((columns, rows), dim=-1), rtol=tolerance, atol=tolerance)
