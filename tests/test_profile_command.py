"""`rpe-bench profile` as a user meets it."""

import json
from pathlib import Path

import pandas as pd
import pytest

from rpe_bench.cli import main
from rpe_bench.report.profile import Profile

Capture = pytest.CaptureFixture[str]

SMALL = ["model.dim=16", "model.heads=2", "recipe.batch_size=2", "device=cpu", "--rounds=3", "--seconds=60"]


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished profile."""
    out = tmp_path_factory.mktemp("profile")
    assert main(["profile", *SMALL, "--encodings=rope,t5,swin", "--lengths=16,32,64", f"--out={out}"]) == 0
    return out


def test_a_profile_is_written_and_told(done: Path, capsys: Capture) -> None:
    # Of memory there may be too little for a figure.
    figures = {f"{kind}-time.{form}" for kind in ("training", "evaluation") for form in ("pdf", "svg", "png")}
    tables = ["cells.csv", "times.csv", "profile.csv", "growth.csv", "claims.csv", "profile.md", "profile.json"]
    found = {path.name for path in done.iterdir() if "-memory." not in path.name}
    assert found == {*figures, *tables}
    costs = pd.read_csv(done / "profile.csv")
    assert len(costs) == 2 * 3 * 4 and (costs["n"] == 3).all()
    assert set(costs["encoding"]) == {"nope", "rope", "t5", "swin"}
    assert (costs.loc[costs["encoding"] == "nope", "ratio"] == 1).all()
    text = (done / "profile.md").read_text()
    assert "| t5" in text and "±" in text and "holds" in text and "O(N^2)" in text
    request = json.loads((done / "profile.json").read_text())
    assert request["status"] == "finished" and request["request"]["model"]["dim"] == 16


def test_a_finished_profile_is_told_again_and_not_measured(done: Path, capsys: Capture) -> None:
    before = {path: path.read_bytes() for path in done.iterdir()}
    assert main(["profile", *SMALL, "--encodings=rope,t5,swin", "--lengths=16,32,64", f"--out={done}"]) == 0
    out, err = capsys.readouterr()
    assert "was measured before (--anew measures again)" in err
    assert "training step: time, as a ratio to nope" in out and str(done / "training-time.pdf") in out
    assert "What is said, and what holds here" in out
    assert {path: path.read_bytes() for path in done.iterdir()} == before  # tables and figures follow from the CSVs
    assert main(["profile", *SMALL, "--encodings=rope", "--lengths=16,32,64", f"--out={done}"]) == 2
    [line] = capsys.readouterr().err.splitlines()
    assert "holds a finished profile that differs in encodings.swin, encodings.t5" in line
    assert {path: path.read_bytes() for path in done.iterdir()} == before


def test_a_profile_reads_back_what_was_measured(done: Path) -> None:
    profile = Profile.read(done, "here")
    assert profile.kinds == ["training", "evaluation"] and not profile.left_out
    assert profile.costs["mib"].notna().all()


def test_one_encoding_with_options_of_its_own(tmp_path: Path, capsys: Capture) -> None:
    command = ["profile", *SMALL, "encoding=learned", "encoding.size=20", "--lengths=16,24", "--only=evaluation"]
    assert main([*command, f"--out={tmp_path}"]) == 0
    out, _ = capsys.readouterr()
    assert "left out: learned, evaluation at 24: position 23 lies beyond a learned table of 20 rows, 0 to 19" in out
    assert not (tmp_path / "training-time.pdf").exists()
    costs = pd.read_csv(tmp_path / "profile.csv").set_index(["encoding", "length"])
    assert costs.loc[("learned", 16), "encoding_parameters"] == 20 * 16
    assert costs.loc[("learned", 24), "n"] == 0


def test_where_the_time_goes(tmp_path: Path, capsys: Capture) -> None:
    command = ["profile", "--where", *SMALL, "--encodings=t5", "--lengths=16", f"--out={tmp_path}"]
    assert main(command) == 0
    out, _ = capsys.readouterr()
    assert "nope, 16 tokens" in out and "t5, 16 tokens" in out and "the floor" in out
    assert {path.name for path in tmp_path.iterdir()} == {"shares.csv", "shares.md"}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("--lengths=16,x", "--lengths=x: must be a positive whole number"),
        ("--rounds=0", "--rounds=0: must be a positive whole number"),
        ("--seconds=nan", "--seconds=nan: must be a positive number"),
        ("--only=trainng", "--only=trainng: must be training or evaluation"),
        ("--only=training --where", "--only: has no part in --where, which looks at training"),
        ("--encodings=rpe", "encoding=rpe: no such encoding; did you mean rope? (choose from alibi"),
        ("encoding=rope,alibi", "encoding=rope,alibi: several are given by --encodings rope,alibi"),
        ("encoding=rope --encodings=alibi", "encoding=rope: contradicts --encodings=alibi; give one of them"),
        ("encoding=rope encoding.bse=3", "encoding.bse=3: unknown key; did you mean encoding.base?"),
        ("model.dim=15", "model.heads=4: must divide model.dim=15"),
        ("recipe.batch_sise=15", "recipe.batch_sise=15: unknown key; did you mean recipe.batch_size?"),
        ("positions=randomised", "positions=randomised: is not measured: tokens stand at 0, 1, 2, ..."),
        ("compile=true", "compile=true: is not measured (scripts/gpu_check.py --compile says what it gains)"),
        ("rope", "rope: is no override, which reads key=value"),
        ("--multirun", "unrecognized arguments: --multirun (see rpe-bench profile --help)"),
    ],
)
def test_what_is_wrong_is_said_in_a_line(
    arguments: str, said: str, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["profile", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    [line] = err.splitlines()
    assert not out and line.startswith(f"error: {said}")
    assert not list(tmp_path.iterdir())
