"""A run from its config to its directory."""

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
import yaml
from support import encodings_for

from rpe_bench import catalogue, interrupts
from rpe_bench.config import Config
from rpe_bench.evaluate import loss_of
from rpe_bench.model import Transformer
from rpe_bench.run import build_model, evaluate, execute
from rpe_bench.tasks.base import Batch
from rpe_bench.train import State, make_optimiser, train

COLUMNS = {
    "train": "step,tokens,loss,lr,grad_norm,tokens_per_second",
    "eval": "length,split,examples,tokens,loss,perplexity,token_accuracy,exact_match",
    "positions": "length,position,tokens,loss,perplexity,accuracy",
    "slices": "length,slice,value,examples,tokens,loss,accuracy",
    "baselines": "length,chance,majority",
    "examples": "length,example,tokens,loss,token_accuracy,exact_match",
}


def rows(config: Config, table: str) -> list[dict[str, str]]:
    with (config.run_dir / f"{table}.csv").open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(("task", "encoding"), [("copy", "t5"), ("adjacency_tutorial", "relative_bias")])
def test_the_same_run_twice_gives_the_same_bytes(make_config, tmp_path: Path, task: str, encoding: str) -> None:
    configs = [make_config(task, encoding, {"results_dir": str(tmp_path / place)}) for place in ("here", "there")]
    assert configs[0].run_id == configs[1].run_id
    for number, config in enumerate(configs):
        torch.manual_seed(number)  # a generator that nothing should use
        execute(config)
    for table in ("eval", "positions", "slices", "baselines"):
        one, other = ((config.run_dir / f"{table}.csv").read_bytes() for config in configs)
        assert one == other
    memorised = [config.run_dir / "training_set.csv" for config in configs]
    assert all(path.exists() == (task == "adjacency_tutorial") for path in memorised)
    if memorised[0].exists():
        header = "length,examples,tokens,loss,perplexity,token_accuracy,exact_match\n"
        assert memorised[0].read_text().startswith(header)
        assert memorised[0].read_bytes() == memorised[1].read_bytes()
    one, other = ([row | {"tokens_per_second": ""} for row in rows(config, "train")] for config in configs)
    assert one == other


@pytest.mark.parametrize(
    ("task", "encoding", "positions"),
    [("copy", "alibi", "randomised"), ("addition", "learned", "abacus"), ("grid_lookup", "rope", "raster")],
)
def test_a_run_at_remapped_positions(
    make_config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: str, encoding: str, positions: str
) -> None:
    """Chunks of evaluation are of examples; each goes with its positions."""
    options = {"positions": catalogue.read("positions", positions)}
    tables = []
    for place, at_once in (("here", 2**14), ("there", 200)):
        monkeypatch.setattr("rpe_bench.evaluate.TOKENS_AT_ONCE", at_once)
        config = make_config(task, encoding, options | {"results_dir": str(tmp_path / place)})
        execute(config)
        tables.append([pd.read_csv(config.run_dir / f"{table}.csv") for table in ("eval", "positions", "slices")])
    for one, other in zip(*tables, strict=True):
        # A product of a few rows may round otherwise than the same rows among many.
        pd.testing.assert_frame_equal(one, other, check_exact=False, rtol=1e-5)
    assert yaml.safe_load((config.run_dir / "config.yaml").read_text())["positions"]["name"] == positions
    assert Config.load(config.run_dir / "config.yaml") == config


def test_global_generators_are_left_alone(make_config) -> None:
    config = make_config("adjacency_tutorial", "learned")
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    execute(config)
    assert np.array_equal(np.random.get_state()[1], before[1]) and random.getstate() == before[2]
    assert torch.equal(torch.get_rng_state(), before[0])


PARTS = """
import torch
from torch import nn
from rpe_bench.encodings.base import Encoding

class Parts(Encoding):
    def __init__(self, geometry, shared: bool = False):
        super().__init__(geometry)
        self.kept = nn.Linear(4, 4)
        self.common = nn.Parameter(torch.empty(3))
        self.register_buffer("index", torch.arange(5))

    @classmethod
    def build(cls, geometry, **parameters):
        modules = super().build(geometry, **parameters)
        for module in modules[1:]:
            module.common = modules[0].common
        return modules

    def reset_parameters(self, generator):
        self.common.data.normal_(generator=generator)
"""


def test_what_an_encoding_is_made_of_stays_as_it_made_it(
    make_config, tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parts that layers share, buffers, and weights that it leaves as torch draws them."""
    (tmp_path / "parts_of_encodings.py").write_text(PARTS)
    monkeypatch.syspath_prepend(tmp_path)
    options = {"encoding.name": "parts", "encoding.target": "parts_of_encodings.Parts"}
    models = [build_model(make_config("copy", "nope", options | {"seed": seed})) for seed in (0, 0, 1)]
    for model in models:
        first, second = model.encodings
        assert first.common is second.common
        assert first.index.tolist() == second.index.tolist() == [0, 1, 2, 3, 4]
    one, same, other = (model.encodings[1].kept.weight for model in models)
    assert torch.equal(one, same) and not torch.equal(one, other)


def test_the_directory_of_a_run(make_config) -> None:
    config = make_config("retrieval", "relative_bias", {"seed": 3})
    execute(config)
    assert config.run_dir == config.results_dir / "runs" / config.run_id
    assert config.run_id.startswith("retrieval-relative_bias-quick-s3-")
    names = {"config.yaml", "run.json", "checkpoint.pt", *(f"{table}.csv" for table in COLUMNS)}
    assert {path.name for path in config.run_dir.iterdir()} == names
    for table, columns in COLUMNS.items():
        assert (config.run_dir / f"{table}.csv").read_text().splitlines()[0] == columns
    assert [row["step"] for row in rows(config, "train")] == ["2", "4"]
    assert [row["length"] for row in rows(config, "eval")] == ["24", "48", "96"]
    assert len(rows(config, "slices")) > 3
    exact = [float(row["exact_match"]) for row in rows(config, "examples") if row["length"] == "48"]
    assert np.mean(exact) == pytest.approx(float(rows(config, "eval")[1]["exact_match"])) and len(exact) == 32
    assert Config.load(config.run_dir / "config.yaml") == config
    assert yaml.safe_load((config.run_dir / "config.yaml").read_text())["model"]["causal"] is True

    facts = json.loads((config.run_dir / "run.json").read_text())
    model = build_model(config)
    expected = {
        "format": 1,
        "run_id": config.run_id,
        "status": "finished",
        "exception": None,
        "device": "cpu",
        "threads": 1,
        "train_length": 48,
        "train_tokens": 49,
        "max_tokens": 97,
        "parameters": sum(p.numel() for p in model.parameters()),
        "encoding_parameters": 2 * 33 * 2,  # layers, rows, heads
    }
    assert {key: facts[key] for key in expected} == expected
    for key in ("seconds", "train_seconds", "evaluation_seconds", "tokens_per_second", "peak_memory_bytes"):
        assert facts[key] > 0, key
    assert facts["seconds"] >= facts["train_seconds"] + facts["evaluation_seconds"]
    tokens = int(rows(config, "train")[-1]["tokens"])
    assert facts["tokens_per_second"] == pytest.approx(tokens / facts["train_seconds"])


def test_the_checkpoint_holds_what_was_evaluated(make_config) -> None:
    config = make_config("copy", "learned")
    execute(config)
    checkpoint = torch.load(config.run_dir / "checkpoint.pt")
    assert checkpoint["step"] == config.recipe.steps
    assert checkpoint["optimiser"]["state"]
    model = build_model(config)
    model.load_state_dict(checkpoint["model"])
    tables = evaluate(config, config.build_task(), model, torch.device("cpu"))
    for table in ("eval", "positions", "baselines"):
        assert [{key: str(value) for key, value in row.items()} for row in tables[table]] == rows(config, table)


def test_a_run_that_fails_is_recorded_as_failed(make_config) -> None:
    config = make_config("copy", "rope", {"recipe.lr": 1e30, "recipe.warmup_steps": 0})
    with pytest.raises(FloatingPointError):
        execute(config)
    facts = json.loads((config.run_dir / "run.json").read_text())
    assert facts["status"] == "failed"
    assert facts["exception"]["type"] == "FloatingPointError"
    assert "the training loss is nan" in facts["exception"]["message"]
    assert "in execute" in facts["exception"]["traceback"] and "in train" in facts["exception"]["traceback"]
    assert facts["parameters"] > 0 and facts["evaluation_seconds"] is None
    assert not (config.run_dir / "eval.csv").exists()


def test_a_last_step_that_ruins_the_weights_is_a_failure(make_config) -> None:
    """Its own loss was fine, and no step follows to notice."""
    config = make_config("copy", "rope", {"recipe.lr": 1e30, "recipe.warmup_steps": 0, "recipe.steps": 1})
    with pytest.raises(FloatingPointError, match="loss"):
        execute(config)
    assert json.loads((config.run_dir / "run.json").read_text())["status"] == "failed"


def test_a_failed_run_may_be_tried_again_a_finished_one_not(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config("copy", "nope")

    def broken(*_: object) -> None:
        raise RuntimeError("no luck")

    with monkeypatch.context() as patch, pytest.raises(RuntimeError, match="no luck"):
        patch.setattr("rpe_bench.run.evaluate", broken)
        execute(config)
    execute(config)
    facts = json.loads((config.run_dir / "run.json").read_text())
    assert (facts["status"], facts["exception"]) == ("finished", None)
    before = (config.run_dir / "eval.csv").read_bytes()
    with pytest.raises(FileExistsError):
        execute(config)
    assert (config.run_dir / "eval.csv").read_bytes() == before
    assert json.loads((config.run_dir / "run.json").read_text()) == facts


def test_an_encoder_where_the_task_allows_one(make_config) -> None:
    """The same question, to a decoder and to an encoder."""
    decoder, encoder = make_config("adjacency"), make_config("adjacency", overrides={"model.causal": False})
    assert decoder.run_id != encoder.run_id
    for config in (decoder, encoder):
        model = build_model(config)
        tokens = torch.randint(10, (1, 6))
        other = tokens.clone()
        other[0, -1] = (other[0, -1] + 1) % 10
        changed = (model(tokens) != model(other)).any(-1)[0].tolist()
        assert changed == ([False] * 5 + [True] if config.model.causal else [True] * 6)


def test_a_run_tells_how_far_it_is(make_config) -> None:
    config = make_config("copy", "nope", {"recipe.steps": 3, "recipe.log_every": 2})
    told: list[str] = []
    execute(config, told.append)
    assert [line.partition(",")[0] for line in told[:2]] == ["step 2/3", "step 3/3"]
    assert all(line.endswith("s of training left") for line in told[:2])
    assert told[2:] == [f"evaluating at lengths {', '.join(map(str, config.evaluation.lengths))}"]


# Cut short, and gone on with

TABLES = ("eval", "positions", "slices", "examples", "baselines", "training_set", "validation")


def results(config: Config) -> dict[str, object]:
    """What must not depend on where a run was cut."""
    found: dict[str, object] = {"train": [row | {"tokens_per_second": ""} for row in rows(config, "train")]}
    for table in TABLES:
        path = config.run_dir / f"{table}.csv"
        found[table] = path.read_bytes() if path.exists() else None
    facts = json.loads((config.run_dir / "run.json").read_text())
    return found | {name: facts[name] for name in ("stopped_at_step", "best_step", "best_validation", "evaluated_step")}


def cut(config: Config, monkeypatch: pytest.MonkeyPatch, step: int, act: Callable[[], object]) -> None:
    """Do something in the middle of a step, after all of its micro-batches but the last."""
    calls = iter(range(1, 100))

    def spy(model: Transformer, batch: Batch) -> torch.Tensor:
        if next(calls) == step * config.recipe.accumulate:
            act()
        return loss_of(model, batch)

    with monkeypatch.context() as patched:
        patched.setattr("rpe_bench.train.loss_of", spy)
        execute(config)


CASES = [
    ("copy", "t5", {}),
    ("adjacency_tutorial", "relative_bias", {}),
    ("copy", "learned", {"recipe.precision": "bf16-mixed"}),
    ("retrieval", "rope", {"positions": catalogue.read("positions", "randomised")}),
    ("copy", "kerple", {"recipe.optimiser": "sgd", "recipe.accumulate": 2, "recipe.schedule": "wsd"}),
    ("copy", "rope", {"recipe.lengths": "curriculum", "recipe.early_stop": {"every": 3, "patience": 9}}),
]


@pytest.mark.parametrize(("task", "encoding", "overrides"), CASES)
def test_an_interrupted_run_goes_on_and_ends_with_the_same_bytes(
    make_config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, task: str, encoding: str, overrides: dict
) -> None:
    overrides = overrides | {"recipe.steps": 7, "recipe.log_every": 3}
    whole = make_config(task, encoding, overrides | {"results_dir": str(tmp_path / "whole")})
    execute(whole)
    config = make_config(task, encoding, overrides)
    for number, step in enumerate((2, 3)):  # the second attempt goes on from step 2
        with pytest.raises(KeyboardInterrupt, match=f"interrupted at step {(2, 5)[number]} of 7"):
            cut(config, monkeypatch, step, lambda: signal.raise_signal(signal.SIGINT))
        facts = json.loads((config.run_dir / "run.json").read_text())
        assert facts["status"] == "interrupted"
    execute(config)
    assert results(config) == results(whole)
    facts = json.loads((config.run_dir / "run.json").read_text())
    assert facts["resumed_from_step"] == 5
    assert facts["tokens_per_second"] == pytest.approx(
        int(rows(config, "train")[-1]["tokens"]) / facts["train_seconds"]
    )


def test_a_run_that_stops_early_ends_with_the_same_bytes_though_it_was_cut_between_checks(
    make_config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """At steps 2, 4 and 5, where checks are after each third and no copy is exact: step 6 is the last."""
    overrides = {"recipe.steps": 9, "recipe.early_stop": {"every": 3, "patience": 1, "metric": "exact_match"}}
    whole = make_config("copy", "t5", overrides | {"results_dir": str(tmp_path / "whole")})
    execute(whole)
    config = make_config("copy", "t5", overrides)
    for step, at in ((2, 2), (2, 4), (1, 5)):
        with pytest.raises(KeyboardInterrupt, match=f"interrupted at step {at} of 9"):
            cut(config, monkeypatch, step, lambda: signal.raise_signal(signal.SIGINT))
    execute(config)
    assert results(config) == results(whole)
    assert results(config)["stopped_at_step"] == 6 and results(config)["evaluated_step"] == 3
    one, other = (torch.load(found.run_dir / "checkpoint.pt")["model"] for found in (whole, config))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize(("checkpoint", "expected"), [({"steps": 2}, 4), ({"minutes": 1e-9}, 5), ({}, None)])
def test_a_killed_run_goes_on_from_its_last_checkpoint(
    make_config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, checkpoint: dict, expected: int | None
) -> None:
    overrides = {"recipe.steps": 7, "recipe.log_every": 3}
    whole = make_config("copy", "alibi", overrides | {"results_dir": str(tmp_path / "whole")})
    execute(whole)
    overrides |= {f"checkpoint.{key}": value for key, value in ({"steps": None, "minutes": None} | checkpoint).items()}
    config = make_config("copy", "alibi", overrides)
    assert config.run_id == whole.run_id
    if (child := os.fork()) == 0:
        cut(config, monkeypatch, 6, lambda: os.kill(os.getpid(), signal.SIGKILL))
    os.waitpid(child, 0)
    assert json.loads((config.run_dir / "run.json").read_text())["status"] == "running"
    execute(config)
    assert results(config) == results(whole)
    assert json.loads((config.run_dir / "run.json").read_text())["resumed_from_step"] == expected


def test_a_run_killed_while_it_is_evaluated_is_not_trained_again(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    config = make_config("copy", "nope")
    with monkeypatch.context() as patched:
        patched.setattr("rpe_bench.run.evaluate", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            execute(config)
    monkeypatch.setattr("rpe_bench.train.loss_of", lambda *_: pytest.fail("trained"))
    execute(config)
    assert len(rows(config, "train")) == 2


@pytest.mark.parametrize("name", encodings_for("copy"))
def test_every_encoding_can_be_gone_on_with(make_config, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    config = make_config("copy", name)
    whole, model = build_model(config), build_model(config)
    train(config, config.build_task(), whole, torch.device("cpu"), lambda progress: None)

    def keep(state: State) -> None:
        if state.step == 2:
            torch.save(state.as_dict() | {"model": model.state_dict()}, kept)
            raise KeyboardInterrupt

    kept = io.BytesIO()
    with pytest.raises(KeyboardInterrupt):
        state = State(make_optimiser(model, config.recipe))
        train(config, config.build_task(), model, torch.device("cpu"), lambda progress: None, state, keep)
    model = build_model(config)
    state = State(make_optimiser(model, config.recipe))
    read = torch.load(io.BytesIO(kept.getvalue()), weights_only=True)
    model.load_state_dict(read["model"])
    state.load(read)
    train(config, config.build_task(), model, torch.device("cpu"), lambda progress: None, state)
    one, other = whole.state_dict(), model.state_dict()
    assert all(torch.equal(one[key], other[key]) for key in one)


def test_an_interrupt_waits_for_the_end_of_a_step_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupts, "PATIENCE", 0.05)
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]
    with pytest.raises(KeyboardInterrupt), interrupts.held_back() as stop:
        signal.raise_signal(signal.SIGTERM)
        assert stop.made
        time.sleep(10)
        pytest.fail("not interrupted")
    with pytest.raises(KeyboardInterrupt), interrupts.held_back() as stop:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        pytest.fail("not interrupted by the second")
    steps = []
    with pytest.raises(KeyboardInterrupt), interrupts.held_back():
        for _ in range(2):  # from a cluster, and from the pool
            signal.raise_signal(signal.SIGTERM)
        steps.append("the step is made to its end")
    assert steps
    with pytest.raises(KeyboardInterrupt), interrupts.held_back():
        signal.raise_signal(signal.SIGINT)
    with interrupts.held_back() as stop:
        pass
    assert not stop.made
    assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM)]


@pytest.mark.parametrize("before", ["default_int_handler", "SIG_IGN"])
def test_ctrl_c_while_libraries_tear_themselves_down_ends_the_process_at_once(before: str) -> None:
    script = f"""
import atexit, os, signal
from rpe_bench.interrupts import ending_at_exit
signal.signal(signal.SIGINT, signal.{before})
atexit.register(os.kill, os.getpid(), signal.SIGINT)
ending_at_exit()
"""
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0 if before == "SIG_IGN" else -signal.SIGINT, "")
