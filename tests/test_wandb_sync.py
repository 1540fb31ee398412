"""`rpe-bench wandb sync`: each finished run once, as it was finished last, whatever came in between."""

import json
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import PIL.Image
import pytest
from wandb_fake import serving
from wandb_runs import (
    Mirrored,
    Real,
    check_artifact,
    check_figures,
    check_numbers,
    digits,
    online,
    read_csv,
    stranger,  # noqa: F401
    sync,
    unused_port,
    write,
)

from rpe_bench.cli import main
from rpe_bench.config import Config
from rpe_bench.locks import hold
from rpe_bench.wandb_mirror import WandbMirror

pytestmark = pytest.mark.usefixtures("stranger")
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def configs(make_config: Callable[..., Config]) -> list[Config]:
    """Two finished runs, without a mirror."""
    made = [make_config("copy", encoding, {"logger.tags": ["mine"]}) for encoding in ("alibi", "rope")]
    for config in made:
        write(config)
    return made


def everything_in(folder: Path) -> dict[str, int]:
    return {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in folder.rglob("*")}


def test_offline_each_run_once(configs: list[Config], make_config: Callable[..., Config], capfd: Capture) -> None:
    results_dir = configs[0].results_dir
    with pytest.raises(ValueError):
        write(make_config("sort", "rope"), ValueError("failed"))
    for config in configs:  # as `rpe-bench attention` does
        (config.run_dir / "attention").mkdir()
        PIL.Image.new("RGB", (120, 80)).save(config.run_dir / "attention" / "distance.png")
    sync(results_dir, "--mode=offline", "--project=mine")
    assert capfd.readouterr().out.splitlines() == [
        *(f"{run_id}: mirrored" for run_id in sorted(config.run_id for config in configs)),
        "2 mirrored, 0 mirrored before; not finished: 1 failed",
    ]
    for config in configs:
        mirrored = Mirrored.read(results_dir, config.run_id)
        check_numbers(mirrored, config.run_dir)
        check_artifact(mirrored, config.run_dir)
        check_figures(mirrored, "scores", "attention/distance")
        assert mirrored.run["project"] == "mine" and mirrored.run["run_group"] == "copy"
        assert mirrored.run["tags"] == [config.encoding.name, "copy", "quick", "mine"]
        assert mirrored.run["config"]["update"].items() >= config.as_dict().items()
        assert mirrored.exit_code == 0
    before = everything_in(results_dir / "wandb")
    sync(results_dir, "--mode=offline", "--project=mine")
    assert capfd.readouterr().out == "0 mirrored, 2 mirrored before; not finished: 1 failed\n"
    assert everything_in(results_dir / "wandb").keys() == before.keys()
    assert all(before[name] == when for name, when in everything_in(results_dir / "wandb").items() if name.count("/"))


def test_offline_once_for_each_project(make_config: Callable[..., Config], capfd: Capture) -> None:
    config = make_config("copy", "rope")
    results_dir = config.results_dir
    write(config)

    def synced(*options: str) -> str:
        sync(results_dir, "--mode=offline", *options)
        return capfd.readouterr().out.splitlines()[-1]

    places = (["--project=a"], ["--project=b"], ["--project=b", "--entity=us"])
    for options in places:
        assert synced(*options) == "1 mirrored, 0 mirrored before"
        time.sleep(1)  # wandb names folders by the second
    folders = sorted((results_dir / "wandb").glob("offline-run-*"))
    assert len(folders) == 3  # none takes another's place
    for options in places:
        assert synced(*options) == "0 mirrored, 1 mirrored before"
    shutil.rmtree(config.run_dir)
    write(config)
    assert synced("--project=b") == "1 mirrored, 0 mirrored before"
    *others, _ = sorted((results_dir / "wandb").glob("offline-run-*"))
    assert others == [folders[0], folders[2]]


def test_online_each_run_once_and_again_when_it_is_made_anew(
    configs: list[Config], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    results_dir = configs[0].results_dir
    with serving() as server:
        online(monkeypatch, server.url)
        sync(results_dir)
        assert capfd.readouterr().out.splitlines()[-1] == "2 mirrored, 0 mirrored before"
        assert server.runs.keys() == {config.run_id for config in configs}
        for config in configs:
            run = server.runs[config.run_id]
            assert run["state"] == "finished" and run["groupName"] == "copy" and "mine" in run["tags"]
            expected = [digits(row["exact_match"]) for row in read_csv(config.run_dir, "eval")]
            (files,) = run["artifacts"]["run"]
            assert files.keys() == {path.name for path in config.run_dir.iterdir()} - {"checkpoint.pt"}
            assert all((config.run_dir / name).read_bytes() == content for name, content in files.items())
            assert [digits(row["eval/exact_match"]) for row in run["history"] if "eval/exact_match" in row] == expected
        assert list((results_dir / "wandb").iterdir()) == []

        sent = len(server.requests)
        sync(results_dir)
        assert capfd.readouterr().out == "0 mirrored, 2 mirrored before\n"
        assert not any("Upsert" in what for what in server.requests[sent:])

        (results_dir / "ledger.jsonl").unlink()  # as on another machine: the server knows
        sync(results_dir)
        assert capfd.readouterr().out == "0 mirrored, 2 mirrored before\n"
        assert not any("Upsert" in what for what in server.requests[sent:])

        shutil.rmtree(configs[0].run_dir)
        write(configs[0])
        sync(results_dir)
        assert capfd.readouterr().out.splitlines() == [
            f"{configs[0].run_id}: mirrored",
            "1 mirrored, 1 mirrored before",
        ]
        record = json.loads((configs[0].run_dir / "run.json").read_text())
        assert server.runs[configs[0].run_id]["summary"]["finished"] == record["finished"]


def test_a_server_that_is_lost_midway_gets_the_rest_the_next_time(
    configs: list[Config], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    results_dir = configs[0].results_dir
    with serving() as server:
        online(monkeypatch, server.url)
        first, second = sorted(config.run_id for config in configs)
        # Its key is revoked once the first run is there: the rows of the second are refused, and wandb says nothing.
        server.rule = lambda number, what: (401 if second in server.runs else 200, 0.0)
        sync(results_dir, status=1)
        out, err = capfd.readouterr()
        assert out.splitlines() == [
            f"{first}: mirrored",
            f"{server.url} does not know the API key",
            "1 mirrored, 0 mirrored before, 1 not, for what is said above",
        ]
        (line,) = err.splitlines()
        assert line.startswith(f"rpe-bench: W&B mirror of {second}: incomplete after ")
        server.rule = lambda number, what: (200, 0.0)
        sync(results_dir)
        assert capfd.readouterr().out.splitlines() == [f"{second}: mirrored", "1 mirrored, 1 mirrored before"]
        assert server.runs[second]["state"] == "finished"


def test_a_key_or_a_server_that_is_missing_is_said_before_anything_starts(
    configs: list[Config], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    results_dir = configs[0].results_dir
    sync(results_dir, status=2)
    assert capfd.readouterr().err == "error: --mode=online: no API key (`wandb login`, or --mode=offline)\n"
    with serving() as server:
        online(monkeypatch, server.url, key="1" * 40)
        sync(results_dir, status=2)
        (line,) = capfd.readouterr().err.splitlines()
        assert line.startswith(f"error: --mode=online: {server.url} does not know the API key")
    with unused_port() as port:
        monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{port}")
        sync(results_dir, status=2)
        (line,) = capfd.readouterr().err.splitlines()
        assert "cannot be reached: [Errno 111] Connection refused (or --mode=offline)" in line


def test_what_is_wrong_on_the_command_line(tmp_path: Path, capsys: Capture) -> None:
    assert main(["wandb"]) == 2
    assert main(["wandb", "sync", str(tmp_path / "nowhere")]) == 2
    assert "no runs in" in capsys.readouterr().err.splitlines()[-1]
    (tmp_path / "runs").mkdir()
    (tmp_path / "wandb").write_text("mine")  # as where nothing can be written
    assert main(["wandb", "sync", "--mode=offline", str(tmp_path)]) == 2
    assert capsys.readouterr().err == f"error: {tmp_path / 'wandb'}: cannot write there: File exists\n"
    assert main(["wandb", "sync", "--project=a/b", str(tmp_path)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: --project=a/b: ")
    assert main(["wandb", "sync", "--mode=somewhere", str(tmp_path)]) == 2


def test_two_at_once_do_not_upload_the_same(configs: list[Config], capsys: Capture) -> None:
    results_dir = configs[0].results_dir
    with hold(results_dir / "wandb" / "sync"):
        assert main(["wandb", "sync", str(results_dir), "--mode=offline"]) == 1
    assert f"{results_dir}: is being mirrored by process" in capsys.readouterr().err


def test_a_run_that_cannot_be_read_leaves_the_others_alone(
    configs: list[Config], monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.setattr(WandbMirror, "_mirror", lambda self: setattr(self, "is_complete", True))
    first, second = sorted(configs, key=lambda config: config.run_id)
    content = (first.run_dir / "eval.csv").read_text()
    (first.run_dir / "eval.csv").write_text(content.replace("640", "x40"))  # of the size that was written
    assert main(["wandb", "sync", str(first.results_dir), "--mode=offline"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{first.run_id}: ValueError: invalid literal for int")
    assert lines[1:] == [
        f"{second.run_id}: mirrored",
        "1 mirrored, 0 mirrored before, 1 not, for what is said above",
    ]


@pytest.mark.wandb_server
def test_a_server_that_others_have_written(
    real_server: Real, configs: list[Config], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    results_dir = configs[0].results_dir
    online(monkeypatch, real_server.url)
    sync(results_dir)
    assert capfd.readouterr().out.splitlines()[-1] == "2 mirrored, 0 mirrored before"
    with sqlite3.connect(real_server.files / "openwandb.db") as database:
        # It takes the files of an artifact to be there already, and so is sent none.
        artifacts = database.execute("select name from artifacts where artifact_type = 'run'").fetchall()
    assert sorted(artifacts) == sorted((config.run_id,) for config in configs)
    for config in configs:
        points = real_server.history(config.run_id)
        expected = [digits(row["exact_match"]) for row in read_csv(config.run_dir, "eval")]
        assert [digits(point["eval/exact_match"]) for point in points if "eval/exact_match" in point] == expected
    (results_dir / "ledger.jsonl").unlink()
    sync(results_dir)
    assert capfd.readouterr().out == "0 mirrored, 2 mirrored before\n"
    shutil.rmtree(configs[0].run_dir)
    write(configs[0])
    sync(results_dir)
    assert capfd.readouterr().out.splitlines()[-1] == "1 mirrored, 1 mirrored before"
