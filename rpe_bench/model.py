"""A pre-norm Transformer on one page; a causal decoder or a bidirectional encoder, under any positional encoding.

Shapes: B batch, T tokens, D width, H heads, K = D/H, V input token types, C answers, N tokens that are asked for.
"""

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from rpe_bench.attention import attend
from rpe_bench.encodings.base import Context, Encoding, check_positions
from rpe_bench.linear import Linear
from rpe_bench.mlp import MLP
from rpe_bench.seeds import torch_stream

if TYPE_CHECKING:
    from rpe_bench.config import Config


class Attention(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = Linear(dim, 3 * dim, bias=False)
        self.out = Linear(dim, dim, bias=False)

    def forward(self, x_BTD: Tensor, encoding: Encoding, context: Context) -> Tensor:
        q, k, v = self.heads_of(x_BTD)
        context = context.with_(x_BTD=x_BTD, project=self.project)
        with torch.autocast(x_BTD.device.type, enabled=False):
            mixed_BHTK = attend(encoding, q, k, v, context)
        # Some paths give float32, whatever v is; autocast alone would take that for the projection.
        return self.out(mixed_BHTK.to(v.dtype).transpose(1, 2).flatten(2))

    def heads_of(self, x_BTD: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values of the layer's input, (B, H, T, K) each, without any position."""
        parts = self.qkv(x_BTD).chunk(3, dim=-1)
        q, k, v = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        return q, k, v

    def project(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Vectors (..., D) through this layer's query and key projections: two (..., H, K)."""
        weight_q, weight_k, _ = self.qkv.weight.chunk(3)
        weights = weight_q.to(vectors.dtype), weight_k.to(vectors.dtype)
        q, k = (nn.functional.linear(vectors, weight).unflatten(-1, (self.heads, -1)) for weight in weights)
        return q, k


class Block(nn.Module):
    def __init__(self, dim: int, heads: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(dim)
        self.attention = Attention(dim, heads)
        self.mlp_norm = nn.LayerNorm(dim)
        self.mlp = MLP.of(dim)

    def forward(self, x_BTD: Tensor, encoding: Encoding, context: Context, asked_N: Tensor | None = None) -> Tensor:
        """(B, T, D); or (N, D), of the tokens asked for alone."""
        x = x_BTD + self.attention(self.attention_norm(x_BTD), encoding, context)
        if asked_N is not None:
            x = x.flatten(0, 1).index_select(0, asked_N)
        return x + self.mlp(self.mlp_norm(x))


class Transformer(nn.Module):
    """Token ids (B, T) to logits (B, T, C).

    Args:
        vocabulary: input token types, V.
        classes: answers, C.
        encodings: from `Encoding.build`: one module that serves all layers, or one a layer.
        embedding_std: standard deviation of the token embeddings as drawn. A position that is added has a scale of its
            own (a sinusoid has 0.71), so that this sets how loud it is beside the token.
    """

    def __init__(
        self,
        *,
        vocabulary: int,
        classes: int,
        layers: int,
        dim: int,
        heads: int,
        causal: bool,
        encodings: list[Encoding],
        embedding_std: float = 2.0,
    ) -> None:
        super().__init__()
        self.causal = causal
        self.embedding_std = embedding_std
        self.tokens = nn.Embedding(vocabulary, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(dim)
        self.answers = Linear(dim, classes, bias=False)
        self.encodings = nn.ModuleList(encodings)

    @torch.no_grad()
    def reset_parameters(self, seed: int) -> None:
        """Draw all weights. The trunk and the encoding have streams of their own: under one seed every encoding starts
        from the same trunk."""
        generator = torch_stream("trunk", seed)
        self.tokens.weight.normal_(0, self.embedding_std, generator=generator)
        for module in (*self.blocks.modules(), self.norm, self.answers):
            if isinstance(module, nn.Linear):
                # torch's own bound for linear layers. Logits of attention then begin near 0 even without a division by
                # sqrt(K): from larger weights T5, which has none, begins saturated and fits late or not at all.
                bound = module.in_features**-0.5
                module.weight.uniform_(-bound, bound, generator=generator)
                if module.bias is not None:
                    module.bias.zero_()
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        generator = torch_stream("encoding", seed)
        for encoding in self._encodings():
            encoding.reset_parameters(generator)

    def _encodings(self) -> list[Encoding]:
        return cast(list[Encoding], list(self.encodings))  # a ModuleList knows no more than that they are modules

    def forward(self, tokens_BT: Tensor, positions: Tensor | None = None, asked_N: Tensor | None = None) -> Tensor:
        """Logits.

        Args:
            positions: None for 0..T-1, or (T,), (B, T) or (B, T, A).
            asked_N: the tokens whose logits are wanted, by their indices among all B * T. What the last layer would do
                for the others after its attention is left out, since it reaches nothing.

        Returns:
            (B, T, C); (N, C) where some are asked for.
        """
        check_positions(positions, *tokens_BT.shape)
        encodings = self._encodings()
        x = encodings[0].embed(self.tokens(tokens_BT), positions, tokens_BT)
        context = Context(tokens_BT.shape[1], self.causal, positions, device=x.device, tokens_BT=tokens_BT)
        for layer, block in enumerate(self.blocks):
            is_last = layer == len(self.blocks) - 1
            x = block(x, encodings[layer % len(encodings)], context, asked_N if is_last else None)
        return self.answers(self.norm(x))


def build_model(config: "Config") -> Transformer:
    """The model of a resolved config, its weights drawn from the config's seed, on the CPU."""
    task = config.build_task()
    assert config.model.causal is not None  # resolved
    # Modules draw weights from the global generator as they are made; an encoding of a user's may keep some.
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(config.seed)
        model = Transformer(
            vocabulary=task.vocabulary,
            classes=task.classes,
            layers=config.model.layers,
            dim=config.model.dim,
            heads=config.model.heads,
            causal=config.model.causal,
            encodings=config.build_encodings(),
            embedding_std=config.model.embedding_std,
        )
    model.reset_parameters(config.seed)
    return model
