"""Train small Transformers under any positional encoding, and measure how far beyond its training length each works.

- `make_encoding`: an encoding by its id, for any model
- `attention_logits`: what it makes of queries and keys, (B, H, T, T)
- `make_task`: a task by its id
- `build_model`: the model of a config
- `load_results`: finished runs as tidy DataFrames
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpe_bench.attention import attention_logits
    from rpe_bench.components import make_encoding, make_task
    from rpe_bench.report import load_results
    from rpe_bench.run import build_model

__all__ = ["attention_logits", "build_model", "load_results", "make_encoding", "make_task"]

_HOMES = {
    "attention_logits": "rpe_bench.attention",
    "build_model": "rpe_bench.run",
    "load_results": "rpe_bench.report",
    "make_encoding": "rpe_bench.components",
    "make_task": "rpe_bench.components",
}


def __getattr__(name: str) -> Any:
    """Import on first use: `import rpe_bench` alone takes no torch."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
