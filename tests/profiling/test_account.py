"""What a profile leaves behind, and how it goes on from there."""

import json
from pathlib import Path

import pytest

from rpe_bench.errors import ConfigError
from rpe_bench.profiling.account import Account
from rpe_bench.profiling.cells import Cell
from rpe_bench.profiling.first import First

REQUEST = {"model": {"dim": 64, "layers": 2}, "rounds": 3}
CELL = Cell("training", 64, "t5")


def filled(directory: Path) -> Account:
    account = Account(directory, REQUEST)
    account.add_first(CELL, "distance bias", 8, First(0.25, 2**20, 1000, 128))
    account.add_first(CELL._replace(encoding="swin"), "other bias", 8, First(problem="takes 2 axes, and more"))
    row = {"kind": "training", "length": 64, "encoding": "t5"}
    account.add_round([{**row, "round": 0, "seconds": 0.1}])
    account.add_round([{**row, "round": 1, "seconds": 0.3}])
    return account


def test_an_account_is_read_back_as_it_was(tmp_path: Path) -> None:
    account = filled(tmp_path / "a" / "profile")
    again = Account(tmp_path / "a" / "profile", REQUEST)
    assert (again.cells, again.times, again.finished) == (account.cells, account.times, False)
    assert again.cells[CELL]["seconds"] == 0.25 and again.cells[CELL]["peak_bytes"] == 2**20
    assert again.rounds("training", 64) == 2 and again.rounds("evaluation", 64) == again.rounds("training", 65) == 0
    again.leave_out(CELL, "takes too long")
    assert Account(again.directory, REQUEST).cells[CELL] == account.cells[CELL] | {"problem": "takes too long"}


def test_a_finished_one_is_not_replaced_unasked(tmp_path: Path) -> None:
    filled(tmp_path).finish()
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}
    again = Account(tmp_path, REQUEST)
    assert again.finished and len(again.times) == 2
    other = {"model": {"dim": 64, "layers": 3}, "rounds": 3, "threads": 2}
    with pytest.raises(ConfigError) as raised:
        Account(tmp_path, other)
    said = f"--out={tmp_path}: holds a finished profile that differs in model.layers, threads"
    assert raised.value.errors == [f"{said} (give another --out, or --anew to replace it)"]
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before
    anew = Account(tmp_path, other, anew=True)
    assert not anew.finished and not anew.cells and not anew.times


def test_an_unfinished_one_of_another_request_is_begun_again(tmp_path: Path) -> None:
    filled(tmp_path)
    other = Account(tmp_path, REQUEST | {"rounds": 9})
    assert not other.cells and not other.times
    assert json.loads((tmp_path / "profile.json").read_text())["request"]["rounds"] == 9


def test_a_place_that_cannot_be_written_is_said_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="--out=.*: (Not a directory|File exists)"):
        Account(tmp_path / "file", REQUEST)
    with pytest.raises(ConfigError, match="--out=.*: Not a directory"):
        Account(tmp_path / "file" / "below", REQUEST)
