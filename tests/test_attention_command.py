"""`rpe-bench attention` as a user meets it."""

from pathlib import Path

import pytest

from rpe_bench.cli import main
from rpe_bench.files import is_whole

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run."""
    results = tmp_path_factory.mktemp("results")
    tiny = ["model.dim=8", "model.heads=1", "model.layers=1", "recipe.batch_size=2", "recipe.steps=2"]
    tiny += ["evaluation.examples=2", "evaluation.lengths=[16,20]", "logger=csv", "device=cpu"]
    assert main(["run", "task=copy", "encoding=alibi", *tiny, f"results_dir={results}"]) == 0
    [run] = (results / "runs").iterdir()
    return run


def test_a_run_is_looked_at_and_stays_as_it_was(capsys: Capture, run: Path) -> None:
    before = {path: path.read_bytes() for path in run.iterdir()}
    assert main(["attention", str(run)]) == 0
    table, written = capsys.readouterr().out.split("\n\n")
    head, line = table.splitlines()
    assert "distance at 16" in head and "distance at 20" in head and line.split()[:2] == ["0", "0"]
    paths = [Path(path) for path in written.split()]
    assert {path.name for path in paths} >= {"attention.csv", "by_distance.csv", "kernel.csv", "kernel.pdf"}
    assert {path.parent for path in paths} == {run / "attention"} and all(path.is_file() for path in paths)
    assert {path: path.read_bytes() for path in before} == before and is_whole(run)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--lengths", "16,x"], "--lengths=x: must be a positive whole number"),
        (["--lengths", "16,"], "--lengths=: must be a positive whole number"),
        (["--examples", "0"], "--examples=0: must be a positive whole number"),
        (["--examples", "3"], "--examples=3: must be from 1 to 2, those that the run was evaluated on"),
        (["--lengths", "0"], "--lengths=0: must be a positive whole number"),
        (["--lengths", "1"], "--lengths=1: size 1 is too small: "),
        (["--out", "{file}"], "--out={file}: {file}: File exists"),
    ],
)
def test_what_is_wrong_is_one_line(capsys: Capture, run: Path, tmp_path: Path, flags: list[str], said: str) -> None:
    file = tmp_path / "file"
    file.touch()
    out = [] if "--out" in flags else ["--out", str(tmp_path / "out")]
    assert main(["attention", str(run), *out, *(flag.format(file=file) for flag in flags)]) == 2
    shown, err = capsys.readouterr()
    [line] = err.splitlines()
    assert line.startswith(f"error: {said.format(file=file)}") and shown == ""
    assert list(tmp_path.iterdir()) == [file]


def test_what_is_no_finished_run_is_refused(capsys: Capture, tmp_path: Path) -> None:
    (tmp_path / "going").mkdir()
    (tmp_path / "going" / "run.json").write_text('{"status": "running"}')
    for name, said in (("nowhere", "is not the directory of a run"), ("going", "the run is not finished, but running")):
        assert main(["attention", str(tmp_path / name)]) == 2
        [line] = capsys.readouterr().err.splitlines()
        assert line.startswith(f"error: {tmp_path / name}: {said}")
    assert [path.name for path in tmp_path.rglob("*")] == ["going", "run.json"]
