"""Models as torch.compile takes them: traced, and run without the code that it would make, which takes minutes."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from support import encodings_for
from torch import nn
from torch._dynamo.testing import CompileCounter

from rpe_bench import catalogue
from rpe_bench.config import Config
from rpe_bench.model import Transformer
from rpe_bench.run import execute

QUICK = ("nope", "rope", "t5", "shaw")
NAMES = [pytest.param(name, marks=[] if name in QUICK else pytest.mark.long) for name in catalogue.encodings()]


@pytest.fixture
def counter(monkeypatch: pytest.MonkeyPatch) -> Iterator[CompileCounter]:
    """Of what is compiled."""
    counter = CompileCounter()

    def compile(model: Transformer, **options: Any) -> None:
        nn.Module.compile(model, backend=counter, **options)

    monkeypatch.setattr(Transformer, "compile", compile)
    torch._dynamo.reset()
    yield counter
    torch._dynamo.reset()


@pytest.mark.parametrize("name", NAMES)
def test_a_compiled_run_is_the_same_to_rounding(
    make_config: Callable[..., Config], counter: CompileCounter, tmp_path: Path, name: str
) -> None:
    task = "copy" if name in encodings_for("copy") else "grid_lookup"
    small = {"recipe.steps": 4, "recipe.log_every": 1, "evaluation.examples": 8, "results_dir": str(tmp_path)}
    plain, compiled = (make_config(task, name, small | {"compile": choice}) for choice in (False, True))
    assert plain.run_id != compiled.run_id
    execute(plain)
    assert not counter.frame_count
    execute(compiled)
    assert 2 <= counter.frame_count <= 8  # beyond which torch goes on without
    if name in QUICK:
        assert counter.frame_count == 2  # training, and evaluation: of any length
    for table, columns in (("train", ["loss", "grad_norm"]), ("eval", ["loss"])):
        expected, found = (pd.read_csv(config.run_dir / f"{table}.csv")[columns] for config in (plain, compiled))
        pd.testing.assert_frame_equal(found, expected, rtol=1e-3)
