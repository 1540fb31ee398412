"""XLNet's attention, and by it Transformer-XL's, beside transformers' (whose segment term is left out).

The library's logits are what it hands to softmax. Its sinusoids are float32, and angles of far positions in float32 are
not exact: they are compared up to 129 tokens, in float32. Beyond, and in float64, its shift and products are given
sinusoids in float64.
"""

import pytest
import torch
from torch import Tensor
from transformers import XLNetConfig
from transformers.models.xlnet.modeling_xlnet import XLNetModel, XLNetRelativeAttention

from rpe_bench import attention_logits, make_encoding
from rpe_bench.encodings.relative import sinusoid_blocks
from rpe_bench.encodings.transformer_xl import TransformerXL

SHAPES = [(1, 8, 1), (2, 128, 2), (3, 16, 33), (4, 8, 257), (6, 64, 65), (8, 32, 129), (12, 8, 100), (16, 16, 64)]
SHAPES += [(1, 8, 2048)]
"""Heads, width of a head, tokens."""


def build(name: str, heads: int, head_dim: int, length: int, causal: bool, dtype: torch.dtype) -> TransformerXL:
    sizes = {"dim": heads * head_dim, "heads": heads, "train_length": length, "max_length": length, "causal": causal}
    encoding = make_encoding(name, **sizes)
    assert isinstance(encoding, TransformerXL)
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_(0, 0.3)
    return encoding.to(dtype)


def library_logits(encoding: TransformerXL, q: Tensor, k: Tensor, r: Tensor, monkeypatch: pytest.MonkeyPatch) -> Tensor:
    """Of rotations r (N, D), with the encoding's weights."""
    H, K = encoding.geometry.heads, encoding.geometry.head_dim
    library = XLNetRelativeAttention(XLNetConfig(d_model=H * K, n_head=H, dropout=0.0)).to(q.dtype).eval()
    with torch.no_grad():
        library.r_w_bias.copy_(encoding.u_HK)
        library.r_r_bias.copy_(encoding.v_HK)
    seen: list[Tensor] = []
    softmax = torch.nn.functional.softmax

    def noted(logits: Tensor, dim: int) -> Tensor:
        seen.append(logits)
        return softmax(logits, dim=dim)

    first = [tensor.permute(2, 0, 1, 3) for tensor in (q, k)]
    r_heads = torch.einsum("nd,hdk->nhk", r, encoding.weight_HDK)[:, None].expand(-1, len(q), -1, -1)
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", noted)
        library.rel_attn_core(first[0], first[1], first[1], r_heads)
    return seen[0]


def compare(encoding: TransformerXL, q: Tensor, k: Tensor, expected: Tensor, relative: float) -> None:
    found = attention_logits(encoding, q, k)
    if encoding.geometry.causal:  # beyond the diagonal the library's are of other offsets, for its mask to hide
        found, expected = found.tril(), expected.tril()
    tolerance = relative * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


@pytest.mark.parametrize("name", ["xlnet-causal", "xlnet-bidirectional", "transformer_xl-causal"])
@pytest.mark.parametrize(("heads", "head_dim", "length"), SHAPES)
@torch.no_grad()
def test_shift_and_products(name: str, heads: int, head_dim: int, length: int, monkeypatch) -> None:
    causal = name.endswith("causal")
    distances = torch.arange(length, -1 if causal else -length, -1)
    for dtype, relative in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        encoding = build(name.split("-")[0], heads, head_dim, length, causal, dtype)
        q, k = torch.randn(2, 1 if length > 300 else 2, heads, length, head_dim, dtype=dtype)
        r = sinusoid_blocks(distances, heads * head_dim, 10_000.0).to(dtype)
        compare(encoding, q, k, library_logits(encoding, q, k, r, monkeypatch), relative)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("clamp_len", [-1, 10])
@pytest.mark.parametrize(("heads", "head_dim", "length"), [shape for shape in SHAPES if shape[2] < 130])
@torch.no_grad()
def test_its_own_sinusoids(heads: int, head_dim: int, length: int, clamp_len: int, causal: bool, monkeypatch) -> None:
    encoding = build("xlnet", heads, head_dim, length, causal, torch.float32)
    encoding.term.clamp = None if clamp_len < 0 else clamp_len
    config = XLNetConfig(
        vocab_size=1, d_model=heads * head_dim, n_head=heads, n_layer=1, d_inner=1, clamp_len=clamp_len
    )
    config.attn_type = "uni" if causal else "bi"
    r = XLNetModel(config).relative_positional_encoding(length, length)[:, 0]
    q, k = torch.randn(2, 2, heads, length, head_dim)
    compare(encoding, q, k, library_logits(encoding, q, k, r, monkeypatch), 1e-5)
