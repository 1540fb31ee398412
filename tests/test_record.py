"""The run directory: what is in it, when, and what happens where a run fails, is repeated or meets an odd machine."""

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from rpe_bench import catalogue
from rpe_bench import record as record_module
from rpe_bench.config import Config
from rpe_bench.files import atomic, damage, is_whole, read_record, status
from rpe_bench.ledger import now
from rpe_bench.record import NOTES, Record, peak_memory_bytes, revision, to_csv

EVALUATION = {
    "length": 8,
    "split": "train_lengths",
    "examples": 32,
    "tokens": 256,
    "loss": 0.1,
    "perplexity": math.exp(0.1),
    "token_accuracy": 1 / 3,
    "exact_match": 0.0,
}


def progress(step: int, loss: float = 0.1) -> dict[str, Any]:
    return {"step": step, "tokens": 64 * step, "loss": loss, "lr": 1e-3, "grad_norm": 1.0, "tokens_per_second": 5e4}


def facts(config: Config) -> dict[str, Any]:
    return json.loads((config.run_dir / "run.json").read_text())


@pytest.fixture
def config(make_config: Callable[..., Config]) -> Config:
    return make_config()


def test_a_finished_run(config: Config) -> None:
    with Record(config) as record:
        assert facts(config)["status"] == status(config.run_dir) == "running"
        record.note(parameters=1234, encoding_parameters=0)
        record.train(progress(1))
        record.train(progress(2))
        record.table("eval", [EVALUATION])
        record.table("slices", [])
        record.checkpoint({"model": {"weight": torch.ones(2)}, "step": 2})

    names = {file.name for file in config.run_dir.iterdir()}
    assert names == {"config.yaml", "run.json", "train.csv", "eval.csv", "slices.csv", "checkpoint.pt"}
    assert Config.load(config.run_dir / "config.yaml") == config
    assert (config.run_dir / "train.csv").read_bytes() == (
        b"step,tokens,loss,lr,grad_norm,tokens_per_second\n1,64,0.1,0.001,1.0,50000.0\n2,128,0.1,0.001,1.0,50000.0\n"
    )
    assert (config.run_dir / "slices.csv").read_text() == "length,slice,value,examples,tokens,loss,accuracy\n"
    assert torch.load(config.run_dir / "checkpoint.pt")["step"] == 2

    run = facts(config)
    assert run["status"] == status(config.run_dir) == "finished"
    assert run["run_id"] == config.run_id and run["format"] == 1 and run["exception"] is None
    assert run["parameters"] == 1234 and run["encoding_parameters"] == 0 and run["max_tokens"] is None
    assert run["started"] <= run["finished"] and run["started"].endswith("+00:00") and 0 < run["seconds"] < 60
    assert run["versions"]["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}")
    assert run["versions"]["torch"] and run["versions"]["wandb"] and "rpe_bench" in run["versions"]
    assert run["threads"] == torch.get_num_threads() and run["device"] == "cpu" and run["cpu"]
    assert run["peak_memory_bytes"] > 2**24
    assert set(NOTES) | {"commit", "dirty"} <= set(run)


def test_floats_read_back_exactly() -> None:
    numbers = [0.1, 1 / 3, 1e-30, 2.0**60, math.pi, math.inf, 5.0, 0.0]
    header, *lines = to_csv(["x"], [{"x": number} for number in numbers]).splitlines()
    assert header == "x"
    assert lines[:2] == ["0.1", "0.3333333333333333"]
    assert [float(line) for line in lines] == numbers


@pytest.mark.parametrize("scalar", [np.float32, torch.tensor])
def test_numbers_of_numpy_and_torch_are_written_as_python_writes_them(config: Config, scalar: Callable) -> None:
    with Record(config) as record:
        record.table("baselines", [{"length": np.int64(8), "chance": scalar(0.1), "majority": np.float64(0.5)}])
    widened = float(np.float32(0.1))
    assert (config.run_dir / "baselines.csv").read_text() == f"length,chance,majority\n8,{widened!r},0.5\n"


@pytest.mark.parametrize("row", [{"length": 8, "chance": 0.1}, {"length": 8, "chance": 0.1, "majority": 1, "more": 2}])
def test_a_row_with_other_columns_is_refused(config: Config, row: dict[str, Any]) -> None:
    with Record(config) as record:
        with pytest.raises(ValueError, match="baselines.csv has the columns length, chance, majority"):
            record.table("baselines", [row])
        assert not (config.run_dir / "baselines.csv").exists()


def test_an_unknown_fact_is_refused(config: Config) -> None:
    with Record(config) as record, pytest.raises(ValueError, match="run.json has no paramters"):
        record.note(paramters=1)


def test_train_csv_follows_the_run_and_no_more_often_than_it_should(
    config: Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(record_module.time, "monotonic", lambda: now)
    with Record(config) as record:

        def steps() -> list[int]:
            return pd.read_csv(config.run_dir / "train.csv")["step"].tolist()

        record.train(progress(1))
        assert steps() == [1]
        now += 0.9 * record_module.FLUSH_SECONDS
        record.train(progress(2))
        assert steps() == [1]
        now += 0.2 * record_module.FLUSH_SECONDS
        record.train(progress(3))
        assert steps() == [1, 2, 3]
        record.train(progress(4))
    assert steps() == [1, 2, 3, 4]


def test_a_failed_run_says_why_and_raises_on(config: Config) -> None:
    with pytest.raises(FloatingPointError), Record(config) as record:
        record.train(progress(1))
        raise FloatingPointError("the loss is\nnan")
    run = facts(config)
    assert run["status"] == "failed" and run["finished"] is not None
    assert run["exception"]["type"] == "FloatingPointError" and run["exception"]["message"] == "the loss is\nnan"
    assert __file__ in run["exception"]["traceback"]
    assert (config.run_dir / "train.csv").exists()


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, SystemExit])
def test_an_interrupted_run_is_not_called_failed(config: Config, interrupt: type[BaseException]) -> None:
    with pytest.raises(interrupt), Record(config):
        raise interrupt
    assert facts(config)["status"] == "interrupted"
    assert facts(config)["exception"]["type"] == interrupt.__name__


def test_a_checkpoint_of_a_run_that_was_cut_short_is_there_for_the_next_attempt(config: Config) -> None:
    with pytest.raises(KeyboardInterrupt), Record(config) as record:
        assert record.kept is None
        record.train(progress(1))
        record.checkpoint({"model": {"weight": torch.ones(2)}, "step": 1})
        record.train(progress(2))
        raise KeyboardInterrupt
    with Record(config) as record:
        assert record.kept is not None and record.kept["step"] == 1
        assert torch.equal(record.kept["model"]["weight"], torch.ones(2))
        record.train(progress(2, loss=0.2))
    table = pd.read_csv(config.run_dir / "train.csv")
    assert (table["step"].tolist(), table["loss"].tolist()) == ([1, 2], [0.1, 0.2])


@pytest.mark.parametrize(("error", "kept"), [(OSError("full"), True), (ValueError("wrong"), False)])
def test_what_a_wrong_run_computed_is_not_gone_on_from(config: Config, error: Exception, kept: bool) -> None:
    with pytest.raises(type(error)), Record(config) as record:
        record.checkpoint({"step": 1})
        raise error
    with Record(config) as record:
        assert (record.kept is not None) == kept


SPOILT: dict[str, tuple[Callable[[Path], Any], str]] = {
    "empty": (lambda path: path.write_bytes(b""), "is damaged"),
    "no checkpoint": (lambda path: path.write_text("step: 1"), "is damaged"),
    "truncated": (lambda path: os.truncate(path, path.stat().st_size - 100), "is damaged"),
    # Of where the list of what is in the file begins, near its end: zipfile seeks to before the file.
    "a false offset": (
        lambda path: path.write_bytes(path.read_bytes()[:-49] + b"\xff" + path.read_bytes()[-48:]),
        "is damaged",
    ),
    "a flipped bit": (
        lambda path: path.write_bytes(path.read_bytes().replace(b"\x00\x00\x80?", b"\x00\x00\x80>", 1)),
        "is damaged",
    ),
    "a list": (lambda path: torch.save([1], path), "is of format None, not 1"),
    "another format": (lambda path: torch.save({"format": 0}, path), "is of format 0, not 1"),
    "another run": (lambda path: torch.save({"format": 1, "run_id": "x"}, path), "is of another run, x"),
}


@pytest.mark.parametrize("how", SPOILT)
def test_a_checkpoint_that_is_no_good_is_named_and_the_run_starts_again(
    config: Config, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    with pytest.raises(KeyboardInterrupt), Record(config) as record:
        record.checkpoint({"model": {"weight": torch.ones(2)}, "step": 1})
        raise KeyboardInterrupt
    spoil, reason = SPOILT[how]
    spoil(config.run_dir / "checkpoint.pt")
    with Record(config) as record:
        assert record.kept is None
        assert not (config.run_dir / "checkpoint.pt").exists()
    assert capsys.readouterr().err == f"rpe-bench: {config.run_id}: checkpoint.pt {reason}: the run starts again\n"


def test_a_checkpoint_of_other_software_is_not_gone_on_from(
    config: Config, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(KeyboardInterrupt), Record(config) as record:
        record.checkpoint({"step": 1})
        raise KeyboardInterrupt
    monkeypatch.setattr(record_module, "_version", lambda package: "0" if package == "torch" else "1")
    monkeypatch.setattr(record_module.platform, "python_version", lambda: "3")
    with Record(config) as record:
        assert record.kept is None
    assert "checkpoint.pt was written with another version of python, torch, " in capsys.readouterr().err


DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "an empty table": (lambda run: (run / "eval.csv").write_bytes(b""), "eval.csv has 0 bytes, not the "),
    "half a table": (lambda run: os.truncate(run / "train.csv", 60), "train.csv has 60 bytes, not the "),
    "no table": (lambda run: (run / "eval.csv").unlink(), "eval.csv: No such file or directory"),
    "half a checkpoint": (lambda run: os.truncate(run / "checkpoint.pt", 100), "checkpoint.pt has 100 bytes, not the "),
    "an empty config": (lambda run: os.truncate(run / "config.yaml", 0), "config.yaml has 0 bytes, not the "),
    "another format": (
        lambda run: (run / "run.json").write_text('{"status": "finished", "format": 0}'),
        "run.json is of results format 0, not 1",
    ),
}


def whole_run(config: Config) -> None:
    with Record(config) as record:
        record.train(progress(1))
        record.table("eval", [EVALUATION])
        record.table("baselines", [])
        record.table("positions", [])
        record.table("slices", [])
        record.checkpoint({"step": 1})


@pytest.mark.parametrize("how", DAMAGE)
def test_a_finished_run_that_was_damaged_is_named_and_run_again(
    config: Config, capsys: pytest.CaptureFixture[str], how: str
) -> None:
    whole_run(config)
    assert is_whole(config.run_dir)
    spoil, reason = DAMAGE[how]
    spoil(config.run_dir)
    assert not is_whole(config.run_dir)
    with Record(config) as record:
        record.table("eval", [EVALUATION])
    assert capsys.readouterr().err.startswith(f"rpe-bench: {config.run_id}: {reason}")
    assert is_whole(config.run_dir)


@pytest.mark.parametrize("damaged", [None, "eval", "train", "slices"])
def test_a_run_from_before_sizes_were_recorded_is_held_to_begin_and_end_well(
    config: Config, damaged: str | None
) -> None:
    whole_run(config)
    before = facts(config)
    del before["bytes"]
    assert damage(config.run_dir, before) is None
    if damaged:
        file = config.run_dir / f"{damaged}.csv"
        os.truncate(file, file.stat().st_size - 1)
        assert damage(config.run_dir, before) == f"{damaged}.csv is not whole"


def test_a_checkpoint_may_be_removed_to_make_room(config: Config) -> None:
    whole_run(config)
    (config.run_dir / "checkpoint.pt").unlink()
    assert is_whole(config.run_dir)


def test_a_finished_run_is_never_overwritten(config: Config) -> None:
    with Record(config) as record:
        record.train(progress(1))
    before = {file: file.read_bytes() for file in config.run_dir.iterdir()}
    with pytest.raises(FileExistsError, match="finished"), Record(config):
        pytest.fail("entered")
    assert {file: file.read_bytes() for file in config.run_dir.iterdir()} == before


@pytest.mark.parametrize("end", ["failed", "killed", "unreadable"])
def test_nothing_of_an_unfinished_attempt_survives_the_next(config: Config, end: str) -> None:
    with pytest.raises(ValueError, match="no good"), Record(config) as record:
        record.table("eval", [EVALUATION])
        record.table("training_set", [{key: EVALUATION[key] for key in EVALUATION if key != "split"}])
        record.checkpoint({"step": 1})
        raise ValueError("no good")
    if end == "killed":
        (config.run_dir / "run.json").write_text(json.dumps(facts(config) | {"status": "running"}))
        (config.run_dir / f".eval.csv.{os.getpid()}.tmp").touch()
    if end == "unreadable":
        (config.run_dir / "run.json").write_text("")
    with Record(config):
        assert {file.name for file in config.run_dir.iterdir()} == {"config.yaml", "run.json"}
    assert facts(config)["status"] == "finished" and facts(config)["exception"] is None


@pytest.mark.parametrize("content", [b"", b"{", b"{}", b"[]", b"null", b'"finished"', b"\xff\xfe"])
def test_a_record_that_is_none_says_nothing_and_is_replaced(config: Config, content: bytes) -> None:
    config.run_dir.mkdir(parents=True)
    assert read_record(config.run_dir) == {} and status(config.run_dir) is None
    (config.run_dir / "run.json").write_bytes(content)
    assert read_record(config.run_dir) == {} and status(config.run_dir) is None
    with Record(config):
        pass
    assert status(config.run_dir) == read_record(config.run_dir)["status"] == "finished"


def test_a_directory_in_place_of_a_record_is_an_error(config: Config) -> None:
    (config.run_dir / "run.json").mkdir(parents=True)
    with pytest.raises(IsADirectoryError):
        status(config.run_dir)
    with pytest.raises(IsADirectoryError), Record(config):
        pytest.fail("entered")


def test_two_attempts_within_a_second_differ() -> None:
    one, other = now(), None
    while other is None or other == one:
        other = now()
    assert datetime.fromisoformat(other) - datetime.fromisoformat(one) < timedelta(seconds=1)


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("before")
    with pytest.raises(OSError, match="disk full"), atomic(file) as temporary:
        temporary.write_text("half")
        raise OSError("disk full")
    assert file.read_text() == "before"
    assert list(tmp_path.iterdir()) == [file]


def test_without_a_mirror_wandb_is_not_imported(config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert config.logger.mode == "disabled"
    monkeypatch.setitem(sys.modules, "wandb", None)  # importing it now raises
    monkeypatch.delitem(sys.modules, "rpe_bench.wandb_mirror", raising=False)
    with Record(config) as record:
        record.train(progress(1))


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True
    ).stdout.strip()


def test_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = {"commit": None, "dirty": None}
    assert revision(tmp_path) == unknown
    git(tmp_path, "init", "--quiet")
    assert revision(tmp_path) == unknown  # nothing is committed
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "--quiet", "--message", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert revision(tmp_path) == {"commit": commit, "dirty": False}
    (tmp_path / "new").touch()
    assert revision(tmp_path) == {"commit": commit, "dirty": True}
    (tmp_path / "new").unlink()
    (tmp_path / "file").write_text("2")
    assert revision(tmp_path) == {"commit": commit, "dirty": True}

    inside = tmp_path / "site-packages"
    inside.mkdir()
    assert revision(inside) == unknown  # installed into somebody else's repository
    monkeypatch.setenv("PATH", "")
    assert revision(tmp_path) == unknown  # no git


@pytest.mark.skipif(sys.platform != "linux", reason="compares with /proc")
def test_peak_memory_is_that_of_the_process_in_bytes() -> None:
    fields = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    kibibytes = int(fields["VmHWM"].split()[0])
    assert peak_memory_bytes() == pytest.approx(kibibytes * 1024, rel=0.05)


def test_what_is_by_example_is_written_and_not_mirrored(make_config, monkeypatch: pytest.MonkeyPatch) -> None:
    mirrored: list[str] = []

    class Mirror:
        def __init__(self, *arguments: object, **keywords: object) -> None: ...

        def log(self, table: str, rows: list[dict[str, Any]]) -> None:
            mirrored.append(table)

        def close(self, facts: dict[str, Any], exit_code: int, run_dir: Path) -> None: ...

    monkeypatch.setattr("rpe_bench.wandb_mirror.WandbMirror", Mirror)
    config = make_config(overrides={"logger": catalogue.read("logger", "wandb")})
    row = {"length": 8, "example": 0, "tokens": 8, "loss": 0.5, "token_accuracy": 0.875, "exact_match": 0.0}
    with Record(config) as record:
        record.table("eval", [EVALUATION])
        record.table("examples", [row])
    assert mirrored == ["eval"]
    assert (config.run_dir / "examples.csv").read_text() == f"{','.join(row)}\n8,0,8,0.5,0.875,0.0\n"
    assert "examples.csv" in json.loads((config.run_dir / "run.json").read_text())["bytes"]
