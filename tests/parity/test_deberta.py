"""DeBERTa, versions 1 and 2, beside transformers'; the library's logits are what it hands to softmax.

It takes the row of P in p2c by d(i, j), as the authors' code does. Its projections have constants, which are set to
zero. It divides by a root that it takes in float32, so that in float64 the heads' widths are those with a whole root: K
of 12 and 48 where both terms are in use, 8, 32 and 128 where one is. Its buckets are float32.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DebertaConfig, DebertaV2Config
from transformers.models.deberta import modeling_deberta as v1
from transformers.models.deberta_v2 import modeling_deberta_v2 as v2

from rpe_bench import attention_logits, make_encoding
from rpe_bench.encodings.deberta import DeBERTa
from rpe_bench.encodings.deberta_v2 import DeBERTaV2

BOTH = [(1, 12, 1), (2, 48, 2), (3, 12, 33), (4, 12, 257), (6, 12, 65), (8, 12, 129), (12, 12, 40), (16, 12, 64)]
ONE = [(1, 8, 700), (2, 128, 33), (3, 32, 65), (12, 8, 129)]
IN_FLOAT32 = [(2, 64, 65), (4, 16, 33), (1, 8, 2048)]
CASES = [("both", shape, torch.float64) for shape in BOTH]
CASES += [(terms, shape, torch.float64) for terms in ("c2p", "p2c") for shape in ONE]
CASES += [("both", shape, torch.float32) for shape in [*BOTH, *IN_FLOAT32]]
"""Terms; heads, width of a head and tokens; type."""


def types_of(terms: str) -> list[str]:
    return ["c2p", "p2c"] if terms == "both" else [terms]


def loud(encoding: Any, dtype: torch.dtype) -> Any:
    with torch.no_grad():
        for parameter in encoding.parameters():
            parameter.normal_()
    return encoding.to(dtype)


def noted(monkeypatch: pytest.MonkeyPatch, call: Callable[[], Any]) -> Tensor:
    """What softmax is given meanwhile."""
    seen: list[Tensor] = []
    softmax = torch.nn.functional.softmax

    def noting(logits: Tensor, dim: int) -> Tensor:
        seen.append(logits)
        return softmax(logits, dim=dim)

    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", noting)
        call()
    (found,) = seen
    return found


def compare(found: Tensor, expected: Tensor, visible: Tensor, dtype: torch.dtype) -> None:
    found, expected = found.masked_fill(~visible, 0), expected.masked_fill(~visible, 0)
    tolerance = (1e-5 if dtype == torch.float32 else 1e-10) * max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance)


def mask(length: int, causal: bool) -> Tensor:
    visible = torch.ones(length, length, dtype=torch.bool)
    return visible.tril() if causal else visible


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(("terms", "shape", "dtype"), CASES)
@torch.no_grad()
def test_version_1(terms: str, shape: tuple[int, int, int], dtype: torch.dtype, causal: bool, monkeypatch) -> None:
    H, K, T = shape
    k_max = 512 if T > 64 else 20
    sizes = {"dim": H * K, "heads": H, "train_length": T, "max_length": T, "causal": causal}
    encoding = loud(make_encoding("deberta", **sizes, k=k_max, terms=terms), dtype)
    assert isinstance(encoding, DeBERTa)
    library = v1.DisentangledSelfAttention(
        DebertaConfig(
            hidden_size=H * K,
            num_attention_heads=H,
            relative_attention=True,
            max_relative_positions=k_max,
            pos_att_type=types_of(terms),
        )
    )
    library.to(dtype).eval()
    if terms != "p2c":
        library.pos_proj.weight.copy_(encoding.key_HDK.permute(0, 2, 1).flatten(0, 1))
    if terms != "c2p":
        library.pos_q_proj.weight.copy_(encoding.query_HDK.permute(0, 2, 1).flatten(0, 1))
        library.pos_q_proj.bias.zero_()
    x = torch.randn(1, T, H * K, dtype=dtype)
    q, k, _ = library.transpose_for_scores(library.in_proj(x)).chunk(3, dim=-1)
    distance = v1.build_relative_position(x, x)
    visible = mask(T, causal)
    expected = noted(
        monkeypatch,
        lambda: library(x, visible[None, None], relative_pos=distance, rel_embeddings=encoding.positions.table_MD),
    )
    compare(attention_logits(encoding, q, k), expected, visible, dtype)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize(
    ("terms", "shape", "dtype", "share"), [(*case, True) for case in CASES] + [(*case, False) for case in CASES[::4]]
)
@torch.no_grad()
def test_version_2(
    terms: str, shape: tuple[int, int, int], dtype: torch.dtype, share: bool, causal: bool, monkeypatch
) -> None:
    H, K, T = shape
    buckets = {"position_buckets": 256, "max_relative_positions": 512} if T > 64 else {}
    buckets = buckets or {"position_buckets": 8, "max_relative_positions": 17}
    sizes = {"dim": H * K, "heads": H, "train_length": T, "max_length": T, "causal": causal}
    encoding = make_encoding("deberta_v2", **sizes, **buckets, terms=terms, share_att_key=share)
    assert isinstance(encoding, DeBERTaV2)
    encoding = loud(encoding, dtype)
    library = v2.DisentangledSelfAttention(
        DebertaV2Config(
            hidden_size=H * K,
            num_attention_heads=H,
            relative_attention=True,
            share_att_key=share,
            pos_att_type=types_of(terms),
            **buckets,
        )
    )
    library.to(dtype).eval()
    for name, parameter in library.named_parameters():
        if name.endswith("bias"):
            parameter.zero_()
    if not share and terms != "p2c":
        library.pos_key_proj.weight.copy_(encoding.key_HDK.permute(0, 2, 1).flatten(0, 1))
    if not share and terms != "c2p":
        library.pos_query_proj.weight.copy_(encoding.query_HDK.permute(0, 2, 1).flatten(0, 1))
    norm = encoding.positions.norm
    P = torch.nn.functional.layer_norm(encoding.positions.table_MD, (H * K,), norm.weight, norm.bias, 1e-7)
    x = torch.randn(1, T, H * K, dtype=dtype)

    def project(vectors: Tensor) -> tuple[Tensor, Tensor]:
        q, k = library.query_proj(vectors), library.key_proj(vectors)
        return q.unflatten(-1, (H, K)), k.unflatten(-1, (H, K))

    q, k = (vectors.transpose(1, 2) for vectors in project(x))
    visible = mask(T, causal)
    expected = noted(monkeypatch, lambda: library(x, visible[None, None], rel_embeddings=P))
    compare(attention_logits(encoding, q, k, project=project), expected, visible, dtype)


@pytest.mark.parametrize(("buckets", "largest"), [(256, 512), (8, 17), (32, 512), (256, 4096)])
def test_buckets(buckets: int, largest: int) -> None:
    sizes = {"dim": 8, "heads": 2, "train_length": 16, "max_length": 16, "causal": False}
    encoding = make_encoding("deberta_v2", **sizes, position_buckets=buckets, max_relative_positions=largest)
    distance = torch.arange(-5000, 5001)
    expected = v2.make_log_bucket_position(distance, buckets, largest).long()
    assert torch.equal(encoding.bucket(distance), expected)
