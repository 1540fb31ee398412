"""RoPE and its scalings beside transformers, rotary-embedding-torch and x-transformers.

The libraries form their angles in float32, which at position 2000 is off by 1e-4. They are run in float64 here, and
both precisions of ours are held to that; in their own, at lengths at which it is exact enough.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from rotary_embedding_torch import RotaryEmbedding
from torch import Tensor
from transformers import GPTNeoXConfig, LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS
from transformers.models.gpt_neox import modeling_gpt_neox as neox
from transformers.models.llama import modeling_llama as llama
from x_transformers import x_transformers

from rpe_bench import attention_logits, make_encoding

SHAPES = [(1, 8, 1), (2, 128, 2), (3, 16, 33), (4, 8, 257), (6, 64, 65), (8, 32, 129), (12, 8, 300), (16, 16, 64)]
SHAPES += [(1, 8, 2048)]
"""Heads, width of a head, tokens."""

TRAINED = 32
"""Positions, of which the longer shapes have more and the shorter have not."""

OWN = 33
"""Tokens at which the libraries are exact enough in float32."""


@contextmanager
def in_float64() -> Iterator[None]:
    """Libraries that name float32, or take the default, compute in float64 instead."""
    single = torch.float32
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "float", torch.float64)
        patch.setattr(torch, "float32", torch.float64)
        patch.setattr(torch.Tensor, "float", torch.Tensor.double)
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(single)


Library = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Logits of q and k, (B, H, T, K), at positions (T,)."""


def check(name: str, shape: tuple[int, int, int], options: dict[str, Any], library: Library) -> None:
    """Assert that ours, of these options, are the library's logits."""
    heads, head_dim, length = shape
    sizes = {"dim": heads * head_dim, "heads": heads, "train_length": TRAINED, "max_length": max(length, TRAINED)}
    q, k = torch.randn(2, 1, heads, length, head_dim, dtype=torch.float64)
    positions = torch.arange(length)
    with in_float64():
        exact = library(q, k, positions)
    assert exact.dtype == torch.float64
    largest = max(1.0, exact.abs().max().item())
    for causal, given in ((True, None), (False, positions)):
        encoding = make_encoding(name, causal=causal, **sizes, **options)
        assert (attention_logits(encoding, q, k, given) - exact).abs().max() < 1e-10 * largest
        single = attention_logits(encoding, q.float(), k.float(), given)
        assert single.dtype == torch.float32 and (single - exact).abs().max() < 1e-5 * largest
    if length <= OWN:
        assert (single - library(q.float(), k.float(), positions)).abs().max() < 1e-5 * largest


def transformers(module: Any, config: Any, embedding: str, q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
    cos, sin = getattr(module, embedding)(config)(q, positions[None])
    q, k = module.apply_rotary_pos_emb(q, k, cos, sin)
    return q @ k.mT / q.shape[-1] ** 0.5


def of_llama(**parameters: Any) -> Library:
    """Llama's rotation: all of a head, in halves."""

    def logits(q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
        H, K = q.shape[1], q.shape[3]
        rope = {"rope_type": "default", "rope_theta": 10_000.0} | parameters
        sizes = {"hidden_size": H * K, "num_attention_heads": H, "head_dim": K, "max_position_embeddings": TRAINED}
        return transformers(llama, LlamaConfig(**sizes, rope_parameters=rope), "LlamaRotaryEmbedding", q, k, positions)

    return logits


def of_neox(**parameters: Any) -> Library:
    """GPT-NeoX's rotation: part of a head, in halves of that part."""

    def logits(q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
        H, K = q.shape[1], q.shape[3]
        rope = {"rope_type": "default", "rope_theta": 10_000.0} | parameters
        sizes = {"hidden_size": H * K, "num_attention_heads": H, "max_position_embeddings": TRAINED}
        config = GPTNeoXConfig(**sizes, rope_parameters=rope)
        return transformers(neox, config, "GPTNeoXRotaryEmbedding", q, k, positions)

    return logits


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("base", [10_000.0, 500_000.0])
def test_llama(shape: tuple[int, int, int], base: float) -> None:
    check("rope", shape, {"layout": "half", "base": base}, of_llama(rope_theta=base))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rotary", [0.25, 0.5])
def test_partial_rotation_of_neox(shape: tuple[int, int, int], rotary: float) -> None:
    library = of_neox(partial_rotary_factor=rotary)
    check("rope_partial", shape, {"layout": "half", "rotary": rotary}, library)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("proportion", [0.0, 0.3, 0.75])
def test_proportional_rotation(shape: tuple[int, int, int], proportion: float) -> None:
    library = of_llama(rope_type="proportional", partial_rotary_factor=proportion)
    check("p_rope", shape, {"layout": "half", "proportion": proportion}, library)


# Ours, and theirs of the same meaning; `original` is told to those that do not take it from the model.

original = {"original_max_position_embeddings": TRAINED}
SCALINGS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"name": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    ({"name": "dynamic_ntk", "factor": 4.0}, {"rope_type": "dynamic", "factor": 4.0}),
    ({"name": "yarn", "factor": 4.0}, {"rope_type": "yarn", "factor": 4.0, **original}),
    (
        {"name": "yarn", "factor": 16.0, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0},
        {"rope_type": "yarn", "factor": 16.0, "truncate": False, "beta_fast": 16.0, "beta_slow": 2.0, **original},
    ),
    (
        {"name": "yarn", "factor": 8.0, "original_length": 4096, "attention_factor": 1.5},
        {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "attention_factor": 1.5},
    ),
    ({"name": "by_parts", "factor": 8.0}, {"rope_type": "yarn", "factor": 8.0, "attention_factor": 1.0, **original}),
    ({"name": "llama3", "factor": 8.0}, {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
    (
        {"name": "llama3", "factor": 8.0, "original_length": 8192, "low_freq_factor": 2.0, "high_freq_factor": 32.0},
        {
            "rope_type": "llama3",
            "low_freq_factor": 2.0,
            "high_freq_factor": 32.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    ({"name": "longrope", "factor": 32.0}, {"rope_type": "longrope", "factor": 32.0, **original}),
    (
        {"name": "longrope", "factor": 4.0, "attention_factor": 1.25},
        {"rope_type": "longrope", "factor": 4.0, "attention_factor": 1.25, **original},
    ),
]


@pytest.mark.parametrize(("shape", "part"), [(shape, 1.0) for shape in SHAPES] + [(s, 0.5) for s in SHAPES[1:8:3]])
@pytest.mark.parametrize(("ours", "theirs"), SCALINGS, ids=lambda value: value.get("name", ""))
def test_scalings(shape: tuple[int, int, int], part: float, ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    pairs = int(shape[1] * part) // 2
    if ours["name"] == "llama3":
        theirs = {"factor": 8.0, **original, **theirs}
    if ours["name"] == "longrope":
        factors = {"short_factor": [1 + t / 9 for t in range(pairs)], "long_factor": [2.0 + t for t in range(pairs)]}
        ours, theirs = ours | factors, theirs | factors
    library = of_llama(**theirs) if part == 1 else of_neox(partial_rotary_factor=part, **theirs)
    check("rope", shape, {"layout": "half", "rotary": part, "scaling": ours}, library)


def test_every_scaling_of_transformers_has_its_test() -> None:
    tested = {theirs["rope_type"] for _, theirs in SCALINGS} | {"proportional"}
    assert tested == ROPE_INIT_FUNCTIONS.keys()


# Pairs side by side


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("rotary", [1.0, 0.5])
def test_rotary_embedding_torch(shape: tuple[int, int, int], rotary: float) -> None:
    def library(q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
        embedding = RotaryEmbedding(int(rotary * q.shape[-1]), cache_if_possible=False)
        q, k = (embedding.rotate_queries_or_keys(x) for x in (q, k))
        return (q @ k.mT / q.shape[-1] ** 0.5).detach()

    check("rope", shape, {"rotary": rotary}, library)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scaling", [{"name": "ntk", "factor": 4.0}, {"name": "linear", "factor": 4.0}])
def test_scalings_of_x_transformers(shape: tuple[int, int, int], scaling: dict[str, Any]) -> None:
    option = {"ntk": "base_rescale_factor", "linear": "interpolation_factor"}[scaling["name"]]

    def library(q: Tensor, k: Tensor, positions: Tensor) -> Tensor:
        embedding = x_transformers.RotaryEmbedding(q.shape[-1], **{option: scaling["factor"]})
        turns, _ = embedding(positions)
        q, k = (x_transformers.apply_rotary_pos_emb(x, turns) for x in (q, k))
        return q @ k.mT / q.shape[-1] ** 0.5

    check("rope", shape, {"scaling": scaling}, library)
