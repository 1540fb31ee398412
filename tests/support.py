"""A setting in which any encoding can be called: text or grid, of content or of position alone."""

import json
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from rpe_bench import catalogue
from rpe_bench.components import build_encodings, load_class, make_encoding
from rpe_bench.config import Config
from rpe_bench.encodings.base import Context, Encoding, Geometry
from rpe_bench.record import to_csv
from rpe_bench.schema import FORMAT, TABLES

VOCABULARY = 64


def normal(*shape: int, seed: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """The same numbers in every precision."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def tokens_of(length: int, batch: int = 2) -> Tensor:
    return torch.randint(VOCABULARY, (batch, length), generator=torch.Generator().manual_seed(length))


def indices(encoding: Encoding, length: int, batch: int = 2) -> Tensor | None:
    """The positions of a sequence that nothing is known of: none for text; for grids the cells of a square, row by row,
    (B, T, A)."""
    axes = encoding.axes or 1
    if axes == 1:
        return None
    side = next(n for n in range(1, length + 1) if n**axes >= length)
    cells = torch.cartesian_prod(*[torch.arange(side)] * axes)[:length]
    return cells.expand(batch, length, axes)


@dataclass
class Setting:
    """Queries, keys and values (B, H, T, K), and the context that a layer would give with them."""

    q: Tensor
    k: Tensor
    v: Tensor
    context: Context

    def leaves(self) -> list[Tensor]:
        """q, k, v and x, all of which now take gradients."""
        assert self.context.x_BTD is not None
        return [tensor.requires_grad_() for tensor in (self.q, self.k, self.v, self.context.x_BTD)]


def setting(
    encoding: Encoding,
    length: int,
    positions: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    batch: int = 2,
    seed: int = 0,
) -> Setting:
    """A layer's call at `positions`; at `indices` where none are given."""
    sizes = encoding.geometry
    q, k, v = normal(3, batch, sizes.heads, length, sizes.head_dim, seed=seed, dtype=dtype).unbind()
    x = normal(batch, length, sizes.dim, seed=seed + 1, dtype=dtype)
    weight_q, weight_k = normal(2, sizes.dim, sizes.dim, seed=seed + 2, dtype=dtype) * sizes.dim**-0.5

    def project(vectors: Tensor) -> tuple[Tensor, Tensor]:
        q, k = (nn.functional.linear(vectors, w).unflatten(-1, (sizes.heads, -1)) for w in (weight_q, weight_k))
        return q, k

    context = Context(
        length,
        sizes.causal,
        indices(encoding, length, batch) if positions is None else positions,
        x_BTD=x,
        tokens_BT=tokens_of(length, batch),
        project=project,
    )
    return Setting(q, k, v, context)


@dataclass(frozen=True)
class Case:
    """One choice of conf/encoding in a causal or a bidirectional model."""

    name: str
    causal: bool

    def __str__(self) -> str:
        return f"{self.name}-{'causal' if self.causal else 'bidirectional'}"

    @property
    def cls(self) -> type[Encoding]:
        return load_class("encoding", catalogue.read("encoding", self.name)["target"])

    @property
    def axes(self) -> int:
        return self.cls.axes or 1

    def encoding(self, seed: int = 0, **changes: object) -> Encoding:
        """The first layer's module."""
        sizes = {"dim": 16, "heads": 2, "train_length": 16, "max_length": 1100, "axes": self.axes} | changes
        return make_encoding(self.name, causal=self.causal, seed=seed, **sizes)

    def encodings(self, **sizes: int) -> list[Encoding]:
        """The modules of all layers, whose values are not yet drawn."""
        geometry = Geometry(**{"axes": self.axes, "causal": self.causal} | sizes)
        return build_encodings(catalogue.read("encoding", self.name), geometry)


def cases() -> list[Case]:
    """All of conf/encoding, in a causal model and, where they can serve one, in a bidirectional one."""
    every = [Case(name, causal) for name in catalogue.encodings() for causal in (True, False)]
    return [case for case in every if case.causal or not case.cls.causal_only]


def encodings_for(task: str) -> list[str]:
    """The choices of conf/encoding that a task goes with."""
    cls = load_class("task", catalogue.read("task", task)["target"])
    found = [Case(name, cls.causal is not False) for name in catalogue.encodings()]
    return [c.name for c in found if c.cls.axes in (None, cls.axes) and (c.causal or not c.cls.causal_only)]


def finish(config: Config) -> None:
    """Leave what counts as a finished run, with the tables that are looked at once it is."""
    config.run_dir.mkdir(parents=True, exist_ok=True)
    assert config.evaluation.lengths is not None
    for name in ("eval", "baselines"):
        rows = [dict.fromkeys(TABLES[name], 0.25) | {"length": length} for length in config.evaluation.lengths]
        (config.run_dir / f"{name}.csv").write_text(to_csv(TABLES[name], rows))
    record = {"status": "finished", "format": FORMAT, "bytes": {}}
    (config.run_dir / "run.json").write_text(json.dumps(record))
