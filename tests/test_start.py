"""Runs that begin with the weights of a finished one: what they take over, what they are, and what is refused."""

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from rpe_bench import catalogue
from rpe_bench.config import Config, resolve
from rpe_bench.errors import ConfigError
from rpe_bench.evaluate import loss_of
from rpe_bench.model import build_model
from rpe_bench.report import load_results
from rpe_bench.run import execute
from rpe_bench.tasks.base import Batch
from rpe_bench.train import Data
from rpe_bench.trained import Trained

MakeConfig = Callable[..., Config]
ZERO = {"recipe.steps": 0, "recipe.name": "zero_shot"}


@pytest.fixture
def source(make_config: MakeConfig) -> Config:
    config = make_config("copy", "t5")
    execute(config)
    return config


def begun(make_config: MakeConfig, source: Config, overrides: dict[str, Any] | None = None, **choice: str) -> Config:
    """The config of a run that begins with the weights of `source`."""
    options = {"start.run": str(source.run_dir)} | (overrides or {})
    return make_config(choice.get("task", "copy"), choice.get("encoding", "t5"), options)


def weights_of(config: Config) -> dict[str, torch.Tensor]:
    return Trained.at(config.run_dir).weights()


def lines(config: Config, table: str) -> list[str]:
    return (config.run_dir / f"{table}.csv").read_text().splitlines()


# What is taken over


def test_a_run_of_no_steps_has_the_weights_and_the_scores_of_its_source(
    make_config: MakeConfig, source: Config
) -> None:
    config = begun(make_config, source, ZERO | {"evaluation.lengths": [16, 32, 48]})
    execute(config)
    assert config.start.encoding == "kept"
    mine, theirs = weights_of(config), weights_of(source)
    assert mine.keys() == theirs.keys() and all(torch.equal(mine[name], theirs[name]) for name in mine)
    assert len(lines(config, "train")) == 1
    for table in ("eval", "positions", "slices", "baselines"):
        shared = [line for line in lines(source, table) if line.startswith(("length", "16,", "32,"))]
        assert [line for line in lines(config, table) if not line.startswith("48,")] == shared


def test_training_goes_on_with_the_batch_after_the_last(
    make_config: MakeConfig, source: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = begun(make_config, source, {"recipe.steps": 3})
    assert first.start.steps == 4
    seen: list[Batch] = []

    def spy(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        seen.append(batch)
        return loss_of(model, batch)

    monkeypatch.setattr("rpe_bench.train.loss_of", spy)
    execute(first)
    second = begun(make_config, first, {"recipe.steps": 2})
    assert second.start.steps == 7
    execute(second)
    data = Data(source.build_task(), source.build_positions(), source.recipe, source.seed)
    assert len(seen) == 5
    for step, batch in enumerate(seen):
        assert torch.equal(batch.tokens_BT, data.batch(4 + step).tokens_BT)


@pytest.mark.parametrize("options", [{}, {"start.encoding": "drawn"}])
def test_of_another_class_or_where_that_is_asked_for_the_encoding_is_drawn(
    make_config: MakeConfig, source: Config, options: dict[str, str]
) -> None:
    encoding = "t5" if options else "relative_bias"
    config = begun(make_config, source, ZERO | options, encoding=encoding)
    assert config.start.encoding == "drawn"
    execute(config)
    mine, theirs, drawn = weights_of(config), weights_of(source), build_model(config).state_dict()
    own = [name for name in mine if name.startswith("encodings.")]
    assert own and all(torch.equal(mine[name], drawn[name]) for name in own)
    trunk = mine.keys() - set(own)
    assert trunk and all(torch.equal(mine[name], theirs[name]) for name in trunk)
    assert any(not torch.equal(theirs[name], drawn[name]) for name in trunk)


def test_a_run_that_was_interrupted_goes_on_and_ends_with_the_same_bytes(
    make_config: MakeConfig, source: Config, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    options = {"recipe.steps": 5, "recipe.log_every": 2}
    whole = begun(make_config, source, options | {"results_dir": str(tmp_path / "whole")})
    execute(whole)
    config = begun(make_config, source, options)
    assert config.run_id == whole.run_id
    calls = iter(range(1, 9))

    def cut(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        if next(calls) == 3:
            signal.raise_signal(signal.SIGINT)
        return loss_of(model, batch)

    with monkeypatch.context() as patched:
        patched.setattr("rpe_bench.train.loss_of", cut)
        with pytest.raises(KeyboardInterrupt, match="interrupted at step 3 of 5"):
            execute(config)
    execute(config)
    assert json.loads((config.run_dir / "run.json").read_text())["resumed_from_step"] == 3
    for table in ("eval", "positions", "slices"):
        assert lines(config, table) == lines(whole, table)
    mine, theirs = weights_of(config), weights_of(whole)
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


# What they are


def test_a_run_is_identified_by_what_it_begins_with_and_not_by_where_that_lies(
    make_config: MakeConfig, source: Config, tmp_path: Path
) -> None:
    config = begun(make_config, source)
    assert config.run_id not in (source.run_id, make_config("copy", "t5").run_id)
    assert resolve(config.as_dict()) == config
    shutil.copytree(source.run_dir, tmp_path / "moved")
    moved = begun(make_config, source, {"start.run": str(tmp_path / "moved")})
    assert moved.run_id == config.run_id
    assert begun(make_config, source, {"start.encoding": "drawn"}).run_id != config.run_id


def test_a_source_with_other_weights_makes_another_run(make_config: MakeConfig, source: Config) -> None:
    before = begun(make_config, source)
    path = source.run_dir / "checkpoint.pt"
    kept = torch.load(path)
    kept["model"]["norm.bias"][0] += 1
    torch.save(kept, path)
    record = json.loads((source.run_dir / "run.json").read_text())
    (source.run_dir / "run.json").write_text(json.dumps(record | {"bytes": None}))
    after = begun(make_config, source)
    assert after.start.run_id == before.start.run_id and after.run_id != before.run_id
    with pytest.raises(
        ConfigError, match=rf"start.digest={before.start.digest}: is of another run: .* {after.start.digest}"
    ):
        begun(make_config, source, {"start.digest": before.start.digest})
    with pytest.raises(ConfigError, match=f"its weights have changed, and are no longer {before.start.digest}"):
        execute(before)


def test_runs_that_begin_with_those_of_several_seeds_are_one_line_of_a_report(make_config: MakeConfig) -> None:
    runs = []
    for seed in (0, 1):
        first = make_config("copy", "t5", {"seed": seed})
        execute(first)
        for options in (ZERO, {"recipe.steps": 2, "recipe.name": "fine_tuned"}):
            runs.append(begun(make_config, first, options | {"seed": seed}))
            execute(runs[-1])
    assert runs[0].line == runs[2].line != runs[1].line == runs[3].line
    results = load_results(runs[0].results_dir)
    assert set(results.runs["status"]) == {"finished"}
    seeds = results.evaluations.groupby(["task_label", "encoding_label"])["seed"].nunique()
    assert list(seeds) == [2, 2, 2]
    assert sorted(results.task_labels) == [f"copy (recipe={name})" for name in ("fine_tuned", "quick", "zero_shot")]


# What is refused

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"start.run": "nowhere"}, "start.run=nowhere: is not the directory of a run"),
    ({"start.run": None, "start.digest": "x"}, "start.digest=x: goes with start.run, the directory of a finished run"),
    ({"start.digest": "x"}, "start.digest=x: is of another run: that in "),
    ({"model.dim": 32}, "model.dim=32: must be that of start.run, 16"),
    ({"model.layers": 1}, "model.layers=1: must be that of start.run, 2"),
    ({"model.causal": False, "task": catalogue.read("task", "adjacency_tutorial")}, "model.causal=false: must be that"),
    ({"task.types": 9}, "task=copy: has 11 token types and 9 answers, but the model in start.run is for the 18 and 16"),
    ({"encoding.num_buckets": 16}, "encoding=t5: "),
    ({"recipe.steps": -1}, "recipe.steps=-1: must be at least 0"),
    (
        {"start.encoding": "kept", "encoding": catalogue.read("encoding", "alibi")},
        "encoding=alibi: is of another class",
    ),
    ({"start.sneed": 1}, "start.sneed=1: unknown key"),
]


def test_what_a_run_cannot_begin_with_is_one_line(make_config: MakeConfig, source: Config) -> None:
    for overrides, said in REFUSED:
        with pytest.raises(ConfigError) as refusal:
            begun(make_config, source, overrides)
        assert any(line.startswith(said) for line in refusal.value.errors), refusal.value.errors


def test_a_run_that_is_not_whole_is_refused_by_its_path(make_config: MakeConfig, source: Config) -> None:
    (source.run_dir / "checkpoint.pt").unlink()
    with pytest.raises(ConfigError, match=f"start.run={source.run_dir}/checkpoint.pt: No such file"):
        begun(make_config, source)
    (source.run_dir / "checkpoint.pt").write_bytes(b"")
    with pytest.raises(ConfigError, match=f"start.run={source.run_dir}: checkpoint.pt has 0 bytes"):
        begun(make_config, source)
    os.truncate(source.run_dir / "eval.csv", 5)
    with pytest.raises(ConfigError, match=f"start.run={source.run_dir}: "):
        begun(make_config, source)


def test_a_learned_table_of_another_length_is_refused_unless_it_is_drawn(make_config: MakeConfig) -> None:
    source = make_config("copy", "learned")
    execute(source)
    longer = ZERO | {"evaluation.lengths": [64]}
    with pytest.raises(ConfigError, match=r"encoding=learned: table_LD is 129 x 16, but 65 x 16 in start.run"):
        begun(make_config, source, longer, encoding="learned")
    assert begun(make_config, source, longer | {"start.encoding": "drawn"}, encoding="learned").start.run_id


def test_a_run_cannot_begin_where_it_goes(make_config: MakeConfig, source: Config) -> None:
    place = begun(make_config, source).run_dir
    shutil.copytree(source.run_dir, place)
    with pytest.raises(ConfigError, match=f"start.run={place}: is where the new run goes"):
        begun(make_config, source, {"start.run": str(place)})


def test_no_steps_are_for_runs_that_begin_with_others_alone(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="recipe.steps=0: must be at least 1"):
        make_config(overrides={"recipe.steps": 0})
