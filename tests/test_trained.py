"""What a finished run is taken up from, and how one that cannot be is refused."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rpe_bench.config import Config
from rpe_bench.errors import ConfigError
from rpe_bench.run import build_model, execute
from rpe_bench.trained import Trained


@pytest.fixture
def finished(make_config: Callable[..., Config]) -> Config:
    config = make_config()
    execute(config)
    return config


def test_the_model_is_the_one_that_training_ended_with(finished: Config) -> None:
    trained = Trained.at(finished.run_dir)
    assert trained.config == finished
    kept = torch.load(finished.run_dir / "checkpoint.pt")["model"]
    drawn = build_model(finished).state_dict()
    for name, weight in trained.model().state_dict().items():
        assert torch.equal(weight, kept[name])
    assert any(not torch.equal(drawn[name], kept[name]) for name in kept)


def rewritten(path: Path, **changes: Any) -> None:
    torch.save(torch.load(path) | changes, path)


def marked(run: Path, **changes: Any) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(record | changes))


def retargeted(path: Path, target: str) -> None:
    options = yaml.safe_load(path.read_text())
    options["encoding"]["target"] = target
    path.write_text(yaml.safe_dump(options))


REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "no run": (lambda run: (run / "run.json").unlink(), ": is not the directory of a run"),
    "not finished": (lambda run: marked(run, status="interrupted"), ": the run is not finished, but interrupted"),
    "another results format": (lambda run: marked(run, format=99), ": run.json is of results format 99, not 1"),
    "cut short": (lambda run: os.truncate(run / "checkpoint.pt", 100), ": checkpoint.pt has 100 bytes, not the "),
    "no checkpoint": (lambda run: (run / "checkpoint.pt").unlink(), "/checkpoint.pt: No such file or directory"),
    "damaged": (
        lambda run: (os.truncate(run / "checkpoint.pt", 100), marked(run, bytes=None)),
        "/checkpoint.pt is damaged",
    ),
    "a newer format": (
        lambda run: (rewritten(run / "checkpoint.pt", format=2), marked(run, bytes=None)),
        "/checkpoint.pt is of format 2, not 1",
    ),
    "another run": (
        lambda run: (rewritten(run / "checkpoint.pt", run_id="x"), marked(run, bytes=None)),
        "/checkpoint.pt is of another run, x, not ",
    ),
    "another architecture": (
        lambda run: (rewritten(run / "checkpoint.pt", model={"w": torch.ones(1)}), marked(run, bytes=None)),
        "/checkpoint.pt is of another architecture than config.yaml: ",
    ),
    "no config": (
        lambda run: ((run / "config.yaml").unlink(), marked(run, bytes=None)),
        "/config.yaml: No such file or directory",
    ),
    "no weights": (
        lambda run: (rewritten(run / "checkpoint.pt", model={"w": 1}), marked(run, bytes=None)),
        "/checkpoint.pt holds no weights",
    ),
    "a config cut short": (
        lambda run: ((run / "config.yaml").write_text("seed: [0"), marked(run, bytes=None)),
        "/config.yaml: is damaged: it cannot be read as YAML",
    ),
    "a config of other bytes": (
        lambda run: ((run / "config.yaml").write_bytes(b"\xff\xfe"), marked(run, bytes=None)),
        "/config.yaml: is damaged: it cannot be read as YAML",
    ),
    "an empty config": (
        lambda run: ((run / "config.yaml").write_text(""), marked(run, bytes=None)),
        "/config.yaml: is damaged: it holds no keys",
    ),
    "a config of a class that is gone": (
        lambda run: (retargeted(run / "config.yaml", "gone.Mine"), marked(run, bytes=None)),
        "/config.yaml: encoding.target=gone.Mine: there is no module gone",
    ),
    "a config of something else": (
        lambda run: ((run / "config.yaml").write_text("sneed: 1\n"), marked(run, bytes=None)),
        "/config.yaml: sneed=1: unknown key",
    ),
}


@pytest.mark.parametrize("how", REFUSED)
def test_what_cannot_be_taken_up_is_refused_by_its_path(finished: Config, how: str) -> None:
    spoil, reason = REFUSED[how]
    spoil(finished.run_dir)
    with pytest.raises(ConfigError) as refusal:
        Trained.at(finished.run_dir).model()
    assert f"{finished.run_dir}{reason}" in str(refusal.value)
    assert all(len(line) < 400 for line in refusal.value.errors)
