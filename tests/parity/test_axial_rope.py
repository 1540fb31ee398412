"""Axial rotations against transformers' of Qwen2-VL's vision tower: rows first, pairs of half-split layout, base 10000.

https://github.com/huggingface/transformers, models/qwen2_vl. The library forms angles in float32 and rotates in it.
"""

import pytest
import torch
from grids import grid
from transformers.models.qwen2_vl.configuration_qwen2_vl import Qwen2VLVisionConfig
from transformers.models.qwen2_vl.modeling_qwen2_vl import Qwen2VLVisionRotaryEmbedding, apply_rotary_pos_emb_vision

from rpe_bench.attention import attention_logits
from rpe_bench.encodings.axial_rope import AxialRoPE
from rpe_bench.encodings.base import Geometry

SHAPES = [(32, 64), (1, 9), (9, 1), (4, 5), (8, 16), (12, 12), (1, 1), (16, 16)]


@pytest.mark.parametrize(
    ("heads", "head_dim", "shape"),
    list(zip([1, 2, 3, 4, 6, 8, 12, 16], [8, 128, 64, 32, 16, 24, 8, 96], SHAPES, strict=True)),
)
def test_logits(heads: int, head_dim: int, shape: tuple[int, int]) -> None:
    cells = grid(*shape)
    T = cells.shape[1]
    config = Qwen2VLVisionConfig(embed_dim=heads * head_dim, num_heads=heads)
    config.head_dim = head_dim
    rotary = Qwen2VLVisionRotaryEmbedding(config)
    q, k = torch.randn(2, 1, heads, T, head_dim)
    cos, sin = (part[0] for part in rotary(q, cells.mT))
    turned_q, turned_k = apply_rotary_pos_emb_vision(q[0].transpose(0, 1), k[0].transpose(0, 1), cos, sin)
    expected = turned_q.transpose(0, 1) @ turned_k.transpose(0, 1).mT * head_dim**-0.5
    ours = AxialRoPE(Geometry(heads * head_dim, heads, T, T, False, axes=2), base=10_000.0, layout="half")
    found = attention_logits(ours, q, k, cells)[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5 * expected.abs().max().item())
