"""Shaw's term of keys beside the relative keys of transformers' wav2vec2-BERT, which clips either side by itself.

The library has no term of values; tests of the encoding hold that one to a loop.
"""

from types import SimpleNamespace

import pytest
import torch
from transformers.models.wav2vec2_bert.modeling_wav2vec2_bert import _apply_relative_key_position_encoding

from rpe_bench import attention_logits, make_encoding

SHAPES = [(1, 8, 1), (2, 128, 2), (3, 16, 33), (4, 8, 257), (6, 64, 65), (8, 32, 129), (12, 8, 300), (16, 16, 64)]
CASES = [(*shape, causal) for shape in SHAPES for causal in (True, False)] + [
    (1, 8, 2048, causal) for causal in (True, False)
]
"""Heads, width of a head, tokens. The library holds a vector for each pair, which keeps the wide ones short."""


@pytest.mark.parametrize(("heads", "head_dim", "length", "causal"), CASES)
@torch.no_grad()
def test_logits_of_wav2vec2_bert(heads: int, head_dim: int, length: int, causal: bool) -> None:
    sizes = {"dim": heads * head_dim, "heads": heads, "train_length": length, "max_length": length}
    encoding = make_encoding("shaw", **sizes, causal=causal, std=1.0, k=16 if length > 16 else 1)
    library = SimpleNamespace(
        left_max_position_embeddings=encoding.k,
        right_max_position_embeddings=encoding.k,
        distance_embedding=torch.nn.Embedding(2 * encoding.k + 1, head_dim),
        scaling=head_dim**-0.5,
    )
    for dtype, relative in ((torch.float32, 1e-5), (torch.float64, 1e-10)):
        encoding.to(dtype)
        library.distance_embedding.to(dtype).weight.copy_(encoding.keys)
        q, k = torch.randn(2, 1 if length > 300 else 2, heads, length, head_dim, dtype=dtype)
        query, term = _apply_relative_key_position_encoding(library, q, k)
        expected = query @ k.mT * library.scaling + term
        tolerance = relative * max(1.0, expected.abs().max().item())
        torch.testing.assert_close(attention_logits(encoding, q, k), expected, rtol=0, atol=tolerance)
