"""The W&B mirror: that it says what the CSV files say, and that nothing of it can stop, slow or change a run.

Offline runs are read back with `wandb leet inspect`.
"""

import json
import math
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest
from wandb_runs import (
    Mirrored,
    check_artifact,
    check_figures,
    check_numbers,
    in_processes,
    online,
    read_csv,
    rows,
    stranger,  # noqa: F401
    unused_port,
    write,
)

from rpe_bench import catalogue, ledger, wandb_mirror
from rpe_bench.config import Config
from rpe_bench.report.statistics import effective_lengths
from rpe_bench.schema import ON_DEMAND, TABLES
from rpe_bench.wandb_mirror import (
    AXES,
    LEAVE_SECONDS,
    TRAINING,
    Patience,
    WandbMirror,
    about,
    bin_positions,
    points,
    reach,
)

pytestmark = pytest.mark.usefixtures("stranger")

CURVES = {"loss", "perplexity", "accuracy"}


@pytest.fixture
def config(make_config: Callable[..., Config]) -> Config:
    return make_config(
        "copy", "alibi", {"logger.name": "wandb", "logger.mode": "offline", "logger.tags": ["mine", "copy"]}
    )


def fail(config: Config) -> None:
    with pytest.raises(ValueError, match="too\nbad"):
        write(config, ValueError("too\nbad"))


def test_it_says_what_the_run_directory_says(config: Config) -> None:
    in_processes(lambda: write(config))
    mirrored = Mirrored.read(config.results_dir, config.run_id)
    check_numbers(mirrored, config.run_dir)
    check_artifact(mirrored, config.run_dir)
    check_figures(mirrored, "scores")
    run = mirrored.run
    assert run["run_id"] == run["display_name"] == config.run_id
    assert run["project"] == "rpe_bench" and run["run_group"] == "copy" and run["job_type"] == "train"
    assert run["tags"] == ["alibi", "copy", "quick", "mine"]
    assert run["config"]["update"].items() >= config.as_dict().items()
    assert {name: axis for name, axis in mirrored.metrics.items() if axis} == {f"{k}/*": v for k, v in AXES.items()}
    assert mirrored.summary["status"] == "finished" and mirrored.summary["parameters"] == 1234
    assert mirrored.exit_code == 0
    assert list(Path.cwd().iterdir()) == []
    noted = [entry for entry in ledger.read(config.results_dir) if entry["event"] == "mirrored"]
    assert [(entry["run_id"], entry["place"]) for entry in noted] == [
        (config.run_id, f"/rpe_bench/{mirrored.folder.name}")
    ]


def test_every_table_has_an_axis_that_is_one_of_its_columns() -> None:
    assert AXES.keys() == TABLES.keys() - ON_DEMAND == rows().keys()
    assert all(axis in TABLES[table] for table, axis in AXES.items())


def test_a_run_without_training_is_another_type_of_job(make_config: Callable[..., Config]) -> None:
    config = make_config().as_dict()
    assert about(config)["job_type"] == "train"
    config["recipe"]["steps"] = 0
    assert about(config)["job_type"] == "evaluate"


@pytest.mark.parametrize("name", catalogue.choices("experiment"))
def test_the_runs_of_an_experiment_are_a_group(name: str) -> None:
    assert catalogue.read("experiment", name)["logger"]["group"] == name


def test_jobs_at_once_each_have_a_run_of_their_own(config: Config, make_config: Callable[..., Config]) -> None:
    other = make_config("copy", "rope", {"logger.name": "wandb", "logger.mode": "offline", "logger.group": "ours"})
    in_processes(lambda: write(config), lambda: fail(other))
    good, bad = (Mirrored.read(config.results_dir, each.run_id) for each in (config, other))
    assert good.exit_code == 0 and bad.exit_code == 1
    assert bad.summary["status"] == "failed" and bad.summary["exception"] == "ValueError: too bad"
    assert good.run["run_group"] == "copy" and bad.run["run_group"] == "ours"
    assert len(good.history) == len(bad.history) > 20


def test_the_next_attempt_takes_the_place_of_a_failed_one(config: Config) -> None:
    def twice() -> None:
        fail(config)
        write(config)

    in_processes(twice)
    assert Mirrored.read(config.results_dir, config.run_id).exit_code == 0


def mirror(results_dir: Path, mode: Any = "online", **options: Any) -> WandbMirror:
    names: dict[str, Any] = {"project": "p", "entity": None, "group": "g", "job_type": "train", "tags": []}
    names["config"] = {"recipe": {"train_length": 8}}
    return WandbMirror("task-encoding-quick-s0-01234567", results_dir, mode=mode, **names, **options)


def mirror_online(results_dir: Path) -> None:
    # The machine may be busy; patience has a test of its own.
    online = mirror(results_dir, patience=Patience(init=0.5, close={"online": 60.0, "offline": 60.0}, finish=10.0))
    online.log("baselines", [{"length": 8, "chance": 0.5, "majority": 0.75}])
    online.close({"status": "finished"}, exit_code=0)


def check_it_went_offline(results_dir: Path, stderr: str, reason: str) -> None:
    (line,) = stderr.splitlines()
    assert line.startswith("rpe-bench: W&B mirror of task-encoding-quick-s0-01234567: offline instead of online")
    assert reason in line
    mirrored = Mirrored.read(results_dir, "task-encoding-quick-s0-01234567")
    assert f"later, `rpe-bench wandb sync {results_dir}`" in line
    assert mirrored.curve("baselines/chance", "length") == {8: "0.5"}
    assert mirrored.exit_code == 0


def test_online_without_a_key_goes_offline_without_asking(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    in_processes(lambda: mirror_online(tmp_path))
    check_it_went_offline(tmp_path, capfd.readouterr().err, "no API key")


def test_online_without_a_server_goes_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    with unused_port() as port:
        online(monkeypatch, f"http://127.0.0.1:{port}")
        in_processes(lambda: mirror_online(tmp_path))
    check_it_went_offline(tmp_path, capfd.readouterr().err, "CommError")


def test_what_goes_wrong_in_wandb_is_one_line(
    config: Config, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def fail(self: WandbMirror) -> None:
        raise RuntimeError("out of\norder")

    monkeypatch.setattr(WandbMirror, "_start", fail)
    write(config)
    (line,) = capfd.readouterr().err.splitlines()
    assert line.startswith(f"rpe-bench: W&B mirror of {config.run_id}: incomplete after RuntimeError: out of order")
    assert json.loads((config.run_dir / "run.json").read_text())["status"] == "finished"
    assert len(read_csv(config.run_dir, "eval")) == 3


def test_a_run_that_cannot_be_continued_is_still_finished(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Run:
        finished: int | None = None

        def log(self, point: dict[str, Any]) -> None:
            raise OSError("disk full")

        def finish(self, exit_code: int) -> None:
            self.finished = exit_code

    run = Run()
    monkeypatch.setattr(WandbMirror, "_start", lambda self: run)
    broken = mirror(tmp_path, "offline")
    broken.log("baselines", [{"length": 8, "chance": 0.5, "majority": 0.75}])
    broken.close({}, exit_code=0)
    assert run.finished is not None
    (line,) = capfd.readouterr().err.splitlines()
    assert "incomplete after OSError: disk full" in line


def test_the_end_of_a_run_does_not_wait_for_a_mirror_that_hangs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    let_go = threading.Event()

    def hang(self: WandbMirror) -> None:
        let_go.wait()
        raise RuntimeError("abandoned")

    monkeypatch.setattr(WandbMirror, "_start", hang)
    hung = mirror(tmp_path, "offline", patience=Patience(init=1, close={"online": 1, "offline": 0.1}, finish=1))
    hung.log("baselines", [{"length": 8, "chance": 0.5, "majority": 0.75}])
    hung.close({}, exit_code=0)
    assert hung._thread.is_alive()
    let_go.set()
    hung._thread.join(60)
    (line,) = capfd.readouterr().err.splitlines()  # and what it comes to later is not told again
    assert "incomplete, not waited for any longer than 0.1 s" in line


def test_a_run_that_became_an_offline_one_is_waited_for_no_longer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    let_go, is_offline = threading.Event(), threading.Event()
    run = SimpleNamespace(settings=SimpleNamespace(sync_dir="over/there"), summary={}, finish=lambda exit_code: None)

    def slowly(self: WandbMirror, mode: str) -> SimpleNamespace:
        is_offline.set()
        let_go.wait()
        return run

    monkeypatch.setattr(WandbMirror, "_init", slowly)
    for name in ("setup", "login", "teardown"):  # a login without a key
        monkeypatch.setattr(wandb_mirror.wandb, name, lambda *_, **__: False)
    late = mirror(tmp_path, "online", patience=Patience(init=0.1, close={"online": 0.2, "offline": 600}, finish=1))
    is_offline.wait()
    late.close({"status": "finished"}, exit_code=0)
    assert late._thread.is_alive()
    let_go.set()
    late._thread.join(60)
    (line,) = capfd.readouterr().err.splitlines()  # of the two that there would be
    assert "incomplete, not waited for any longer than 0.2 s" in line


def test_the_patience_with_a_server_is_five_seconds_in_all() -> None:
    assert TRAINING.close["online"] + LEAVE_SECONDS <= 4  # a second is left for what imports and threads take
    assert TRAINING.init < TRAINING.close["online"]


def test_it_holds_as_far_as_the_reports_say() -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        train_length, lengths = int(rng.integers(1, 40)), rng.choice(np.arange(1, 80), size=5, replace=False)
        scores = rng.choice([0.2, 0.9, 0.95, 1.0], size=5, p=[0.2, 0.2, 0.3, 0.3])
        evaluated = [{"length": int(n), "exact_match": float(m)} for n, m in zip(lengths, scores, strict=True)]
        about = {"task_label": "t", "encoding_label": "e", "seed": 0, "train_length": train_length}
        said = effective_lengths(pd.DataFrame(evaluated).assign(**about)).to_dict("records")
        found = reach(evaluated, train_length)
        assert list(found.values()) == [
            one[key] for one in said for key in ("effective_length", "effective_ratio", "at_limit")
        ]


def position_rows(length: int, positions: range, loss: Callable[[int], float]) -> list[dict[str, Any]]:
    values = ((length, p, 10 + p, loss(p), math.exp(loss(p)), 1 / (p + 1)) for p in positions)
    return [dict(zip(TABLES["positions"], row, strict=True)) for row in values]


def test_few_positions_are_not_binned() -> None:
    rows = position_rows(8, range(8, 16), lambda p: 1 / p)
    assert bin_positions(rows, 8) == rows


def test_bins_are_means_over_tokens() -> None:
    rows = position_rows(8, range(5), lambda p: float(p)) + position_rows(4, range(2), lambda p: 0.1)
    first, second, third, *short = bin_positions(rows, 3)
    assert [row["position"] for row in (first, second, third)] == [1, 3, 4]
    assert first["tokens"] == 10 + 11
    assert first["loss"] == pytest.approx((10 * 0 + 11 * 1) / 21)
    assert first["perplexity"] == pytest.approx(math.exp(first["loss"]))
    assert first["accuracy"] == pytest.approx((10 * 1 + 11 / 2) / 21)
    assert second["loss"] == pytest.approx((12 * 2 + 13 * 3) / 25)
    assert third == rows[4] | {"perplexity": pytest.approx(rows[4]["perplexity"])}
    assert short == rows[5:]


def test_a_bin_of_great_loss_has_infinite_perplexity() -> None:
    (row,) = bin_positions(
        [dict(zip(TABLES["positions"], (8, p, 1, 1e3, math.inf, 0.0), strict=True)) for p in (0, 1)], 1
    )
    assert row["perplexity"] == math.inf


def test_lengths_share_the_points_at_a_position() -> None:
    rows = position_rows(8, range(2), float) + position_rows(16, range(1, 3), float)
    drawn = list(points("positions", rows))
    assert [point["position"] for point in drawn] == [0, 1, 2]
    assert set(drawn[1]) == {"position"} | {f"positions/{column}_L{length}" for column in CURVES for length in (8, 16)}


def test_slices_are_curves_by_their_value() -> None:
    drawn = list(points("slices", rows()["slices"]))
    assert [point["value"] for point in drawn] == [1, 2, 3]
    assert drawn[1] == {
        "value": 2,
        "slices/distance_loss_L8": 1 / 2,
        "slices/distance_accuracy_L8": 8 / 18,
        "slices/distance_loss_L16": 1 / 2,
        "slices/distance_accuracy_L16": 16 / 18,
    }


def test_floors_are_curves_beside_what_they_are_the_floor_of() -> None:
    rows = [{key: row[key] for key in TABLES["floor_positions"]} for row in position_rows(8, range(6), lambda p: 0.5)]
    drawn = list(points("floor_positions", bin_positions(rows, 3)))
    assert [point["position"] for point in drawn] == [1, 3, 5]
    curves = {"floor_positions/loss_L8": 0.5, "floor_positions/perplexity_L8": pytest.approx(math.exp(0.5))}
    assert drawn[0] == {"position": 1} | curves


def test_checks_of_early_stopping_are_drawn_against_steps() -> None:
    rows = [dict(zip(TABLES["validation"], (step, 16, 256, 4096, 1.5, 4.5, 0.5, 0.25), strict=True)) for step in (5, 9)]
    drawn = list(points("validation", rows))
    assert [point["step"] for point in drawn] == [5, 9]
    assert drawn[0]["validation/exact_match"] == 0.25 and "validation/step" not in drawn[0]
