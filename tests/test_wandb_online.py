"""Training with an online mirror: what a server that is well has of it, and what one that is not can cost.

The 5 s that a mirror may cost are counted by `wandb_runs.cost`, which a busy machine does not add to.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from functools import partial
from pathlib import Path

import pytest
from wandb_fake import HUNG_UP, KEY, Rule, serving, well
from wandb_runs import (
    Cost,
    Real,
    cost,
    digits,
    in_processes,
    leaves_nothing_running,
    online,
    patience,
    read_csv,
    stranger,  # noqa: F401
    sync,
    until_it_has_begun,
    unused_port,
    write,
)

from rpe_bench import ledger
from rpe_bench.config import Config
from rpe_bench.record import Record
from rpe_bench.wandb_mirror import AXES, TRAINING

pytestmark = pytest.mark.usefixtures("stranger")
Capture = pytest.CaptureFixture[str]

ONLINE = {"logger.name": "wandb", "logger.mode": "online", "logger.tags": ["mine"]}
LIMIT = 5.0
"""Seconds that a mirror may cost."""


def is_noted(config: Config) -> bool:
    noted = [entry for entry in ledger.read(config.results_dir) if entry["event"] == "mirrored"]
    return [entry["run_id"] for entry in noted] == [config.run_id]


def check_history(points: list[dict[str, object]], config: Config) -> None:
    """That it is that of the CSV files, to the digit."""
    for table, axis in (("train", "step"), ("eval", "length")):
        for column in ("loss",):
            name = f"{table}/{column}"
            drawn = {point[axis]: digits(point[name]) for point in points if name in point}
            assert drawn == {row[axis]: digits(row[column]) for row in read_csv(config.run_dir, table)}


def check_one_line(stderr: str, config: Config) -> None:
    (line,) = [line for line in stderr.splitlines() if config.run_id in line]
    assert line.startswith(f"rpe-bench: W&B mirror of {config.run_id}: ")
    assert line.endswith(f"; the CSV files are complete; later, `rpe-bench wandb sync {config.results_dir}`")


def test_a_server_that_is_well_has_all_of_it(
    make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    config = make_config("copy", "rope", ONLINE)
    with serving() as server:
        online(monkeypatch, server.url)
        in_processes(lambda: write(config))
        assert capfd.readouterr().err == ""
        run = server.runs[config.run_id]
        check_history(run["history"], config)
        assert run["state"] == "finished"
        assert (run["groupName"], run["jobType"], run["tags"]) == ("copy", "train", ["rope", "copy", "quick", "mine"])
        told = json.loads(run["config"])
        assert all(told[key]["value"] == value for key, value in config.as_dict().items())
        record = json.loads((config.run_dir / "run.json").read_text())
        assert all(run["summary"][key] == record[key] for key in ("status", "finished", "seconds", "parameters"))
        files = {path.name: path.read_bytes() for path in config.run_dir.iterdir() if path.name != "checkpoint.pt"}
        assert run["artifacts"]["run"] == [files]
        assert len(run["artifacts"]["run_table"]) == len(AXES) - 1  # all but that of training
        assert [name for name in run["media"] if name.startswith("media/images/figures/scores_")]
        assert is_noted(config)
        sent = len(server.requests)
        sync(config.results_dir)
        assert capfd.readouterr().out == "0 mirrored, 1 mirrored before\n"
        assert not any("Upsert" in what for what in server.requests[sent:])


def after(requests: int, then: tuple[int, float]) -> Rule:
    return lambda number, what: then if number > requests else (200, 0.0)


FAULTS: dict[str, Rule] = {
    "never answers": after(0, (200, 600.0)),
    "hangs up": after(0, (HUNG_UP, 0.0)),
    "is slow": after(0, (200, 2.0)),
    "is broken": after(0, (500, 0.0)),
    "does not know the key": well,
}
MIDWAY: dict[str, Rule] = {
    "answers no more": after(2, (200, 600.0)),
    "answers no more in the middle of the files": after(20, (200, 600.0)),
    "hangs up midway": after(2, (HUNG_UP, 0.0)),
    "breaks midway": after(2, (500, 0.0)),
    "forgets the key": after(2, (401, 0.0)),
}
"""Those that a run meets after it has begun."""
GONE = "is not there"


@pytest.mark.skipif(sys.platform != "linux", reason="looks up the processor's time in /proc")
def test_no_server_costs_training_five_seconds_and_nothing_is_lost(
    make_config: Callable[..., Config], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    patience(monkeypatch, TRAINING)
    faults = [*FAULTS, *MIDWAY, GONE]
    configs = {fault: make_config("copy", "rope", ONLINE | {"seed": seed}) for seed, fault in enumerate(faults)}

    def work(fault: str, url: str) -> None:
        online(monkeypatch, url, key="1" * 40 if fault == "does not know the key" else KEY)
        with cost(monkeypatch) as found:
            write(configs[fault], midway=until_it_has_begun if fault in MIDWAY else lambda record: None)
        (tmp_path / fault).write_text(json.dumps(asdict(found)))
        assert leaves_nothing_running()

    with ExitStack() as stack:
        urls = {fault: stack.enter_context(serving(rule)).url for fault, rule in (FAULTS | MIDWAY).items()}
        urls[GONE] = f"http://127.0.0.1:{stack.enter_context(unused_port())}"
        in_processes(*(partial(work, fault, url) for fault, url in urls.items()))
    stderr = capfd.readouterr().err
    assert len(stderr.splitlines()) == len(faults)
    for fault, config in configs.items():
        found = Cost(**json.loads((tmp_path / fault).read_text()))
        assert found.total < LIMIT and not found.entered, (fault, found)
        assert json.loads((config.run_dir / "run.json").read_text())["status"] == "finished"
        check_one_line(stderr, config)
    with serving() as server:
        online(monkeypatch, server.url)
        sync(config.results_dir)
        assert capfd.readouterr().out.splitlines()[-1] == f"{len(faults)} mirrored, 0 mirrored before"
        for config in configs.values():
            assert server.runs[config.run_id]["state"] == "finished"
            check_history(server.runs[config.run_id]["history"], config)


def test_the_process_does_not_wait_at_its_end_either(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(after(3, (200, 600.0))) as server:
        online(monkeypatch, server.url)
        command = [
            sys.executable,
            "-m",
            "rpe_bench",
            "run",
            "logger.mode=online",
            f"results_dir={tmp_path / 'results'}",
        ]
        command += ["recipe=quick", "recipe.steps=2", "recipe.batch_size=2", "model.dim=8", "model.heads=1"]
        command += ["evaluation.examples=2", "device=cpu"]
        # A busy machine may take long for it, but not the 600 s that the server does.
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0
    (line,) = [line for line in done.stderr.splitlines() if line.startswith("rpe-bench: W&B")]
    assert f"incomplete, not waited for any longer than {TRAINING.close['online']:g} s" in line


def is_there(server: Real, config: Config) -> None:
    """Wait until a server has some of a run."""
    for _ in range(600):
        if any(server.files.rglob(f"{config.run_id}/**/wandb-history.jsonl")):
            return
        time.sleep(0.1)
    raise TimeoutError(config.run_id)


@pytest.mark.wandb_server
def test_a_server_that_others_have_written_has_all_of_it(
    real_server: Real, make_config: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, capfd: Capture
) -> None:
    config = make_config("copy", "rope", ONLINE)
    online(monkeypatch, real_server.url)
    in_processes(lambda: write(config))
    assert capfd.readouterr().err == ""
    check_history(real_server.history(config.run_id), config)
    assert list(real_server.files.rglob(f"{config.run_id}/**/scores_*.png"))
    assert is_noted(config)
    sync(config.results_dir)
    assert capfd.readouterr().out == "0 mirrored, 1 mirrored before\n"


@pytest.mark.wandb_server
@pytest.mark.skipif(sys.platform != "linux", reason="looks up the processor's time in /proc")
@pytest.mark.parametrize("fault", ["stop", "pause"])
def test_a_server_that_others_have_written_is_lost_midway(
    real_server: Real,
    make_config: Callable[..., Config],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: Capture,
    fault: str,
) -> None:
    patience(monkeypatch, TRAINING)
    config = make_config("copy", "rope", ONLINE)
    online(monkeypatch, real_server.url)

    def lose(record: Record) -> None:
        is_there(real_server, config)
        os.kill(real_server.process.pid, signal.SIGKILL if fault == "stop" else signal.SIGSTOP)

    def work() -> None:
        with cost(monkeypatch) as found:
            write(config, midway=lose)
        (tmp_path / "cost").write_text(json.dumps(asdict(found)))

    in_processes(work)
    found = Cost(**json.loads((tmp_path / "cost").read_text()))
    assert found.total < LIMIT and not found.entered
    check_one_line(capfd.readouterr().err, config)
    if fault == "stop":
        real_server.stop()
        real_server.start()
    else:
        real_server.process.send_signal(signal.SIGCONT)
    sync(config.results_dir)
    assert capfd.readouterr().out.splitlines()[-1] == "1 mirrored, 0 mirrored before"
    check_history(real_server.history(config.run_id), config)
