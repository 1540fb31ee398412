"""The search for learning rates: by what it chooses, that it sees nothing else, and that nothing is searched twice."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpe_bench import ledger
from rpe_bench.cli import main
from rpe_bench.compose import compose, judged_by_us
from rpe_bench.config import Config, resolve
from rpe_bench.errors import ConfigError
from rpe_bench.lr_search import run_searching, searches
from rpe_bench.record import to_csv
from rpe_bench.report import load_results
from rpe_bench.schema import FORMAT, TABLES
from rpe_bench.sweep.attempt import attempt
from rpe_bench.sweep.one import run_one
from rpe_bench.sweep.plan import Job

MakeConfig = Callable[..., Config]
Losses = dict[tuple[float, int], float | str]
Capture = pytest.CaptureFixture[str]

SEARCH = {"values": [0.3, 0.1, 0.2], "seeds": [1000, 1001]}

STRICT = """
from rpe_bench.encodings.nope import NoPE
from rpe_bench.tasks.copy import Copy

class StrictCopy(Copy):
    def sample(self, rng, examples, size):
        if size > 8:
            raise PermissionError(f"size {size} is beyond the training length")
        return super().sample(rng, examples, size)

class StrictNoPE(NoPE):
    def embed(self, x_BTD, positions=None, tokens_BT=None):
        if x_BTD.shape[1] > self.geometry.train_length:
            raise PermissionError(f"{x_BTD.shape[1]} tokens are beyond the training length")
        return super().embed(x_BTD, positions, tokens_BT)
"""


@pytest.fixture
def make_jobs(make_config: MakeConfig) -> Callable[..., list[Job]]:
    """Jobs of two encodings and two seeds, as a sweep has them."""

    def make(encodings: tuple[str, ...] = ("nope", "rope"), **overrides: Any) -> list[Job]:
        changes = {"sweep.lr_search": SEARCH} | {key.replace("__", "."): value for key, value in overrides.items()}
        jobs = []
        for name in encodings:
            for seed in (0, 1):
                config = make_config("copy", name, changes | {"seed": seed})
                jobs.append(Job([f"encoding={name}", f"++seed={seed}"], config))
        return jobs

    return make


def leave(config: Config, loss: float | str) -> None:
    """What a run leaves that came to this loss, or failed for this reason; a longer length is there, much better."""
    record: dict[str, Any] = {"format": FORMAT, "status": "finished", "bytes": {}}
    config.run_dir.mkdir(parents=True, exist_ok=True)
    if isinstance(loss, str):
        kind, _, message = loss.partition(": ")
        record |= {"status": "failed", "exception": {"type": kind, "message": message}}
    else:
        row = dict.fromkeys(TABLES["eval"], 0.0) | {"length": config.recipe.train_length, "loss": loss}
        better = row | {"length": 2 * row["length"], "loss": 1 / config.recipe.lr - 100}
        (config.run_dir / "eval.csv").write_text(to_csv(TABLES["eval"], [better, row]))
    (config.run_dir / "run.json").write_text(json.dumps(record))


class Launch:
    """A launcher whose runs come to given losses, by rate and seed; remembers what it was asked to run."""

    def __init__(self, losses: Losses | None = None) -> None:
        self.losses = losses or {}
        self.asked: list[Config] = []

    def __call__(self, todo: list[Job]) -> None:
        for job in todo:
            self.asked.append(job.config)
            leave(job.config, self.losses.get((job.config.recipe.lr, job.config.seed), 1.0))

    @property
    def trials(self) -> list[tuple[str, float, int]]:
        return [(c.encoding.name, c.recipe.lr, c.seed) for c in self.asked if c.results_dir.name == "lr_search"]

    @property
    def reported(self) -> list[tuple[str, float, int]]:
        return [(c.encoding.name, c.recipe.lr, c.seed) for c in self.asked if c.results_dir.name != "lr_search"]


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


# What is chosen


@pytest.mark.parametrize(
    ("losses", "chosen", "edge"),
    [
        ({(0.2, 1000): 0.5}, 0.2, None),
        ({(0.2, 1000): 0.1, (0.2, 1001): 9.0, (0.3, 1000): 0.9}, 0.3, "highest"),  # the mean, not the best
        ({}, 0.1, "lowest"),  # of equal ones the smaller
        ({(0.1, 1000): "FloatingPointError: nan"}, 0.2, None),
        ({(0.1, 1000): float("nan"), (0.1, 1001): 0.0}, 0.2, None),
        ({(0.1, 1000): float("inf"), (0.2, 1001): "FloatingPointError: nan"}, 0.3, "highest"),
    ],
)
def test_the_lowest_mean_loss_is_chosen(
    make_jobs: Callable[..., list[Job]],
    tmp_path: Path,
    capsys: Capture,
    losses: Losses,
    chosen: float,
    edge: str | None,
) -> None:
    launch = Launch(losses)
    jobs = make_jobs()
    assert run_searching(jobs, launch) == 0
    assert launch.reported == [(name, chosen, seed) for name in ("nope", "rope") for seed in (0, 1)]
    place = tmp_path / "results" / "lr_search"
    found = rows(place / "choices.csv")
    assert [(row["task"], row["encoding"], float(row["lr"]), row["edge"]) for row in found] == [
        ("copy", name, chosen, edge or "") for name in ("nope", "rope")
    ]
    table = rows(place / "trials.csv")
    assert len(table) == 12 and {row["search"] for row in table} == {row["search"] for row in found}
    for row in table:
        expected = losses.get((float(row["lr"]), int(row["seed"])), 1.0)
        outcome = (row["status"], row["reason"]) if isinstance(expected, str) else (row["status"], row["loss"])
        assert outcome == (("failed", expected) if isinstance(expected, str) else ("finished", str(expected)))
    err = capsys.readouterr().err
    assert err.count(f" is the {edge} tried") == (2 if edge else 0)
    history = [entry for entry in ledger.read(tmp_path / "results") if entry["event"] == "lr chosen"]
    assert [(entry["encoding"], entry["lr"]) for entry in history] == [("nope", chosen), ("rope", chosen)]


def test_each_encoding_and_setting_has_its_own(make_jobs: Callable[..., list[Job]], tmp_path: Path) -> None:
    jobs = make_jobs() + [Job([*job.overrides, "++recipe.steps=5"], job.config) for job in make_jobs(recipe__steps=5)]
    best = {("nope", 4): 0.1, ("rope", 4): 0.2, ("nope", 5): 0.3, ("rope", 5): 0.2}
    reported = []

    def launch(todo: list[Job]) -> None:
        for job in todo:
            key = (job.config.encoding.name, job.config.recipe.steps)
            leave(job.config, 0.0 if job.config.recipe.lr == best[key] else 1.0)
            reported.append((key, job.config.recipe.lr))

    assert run_searching(jobs, launch) == 0
    assert reported[24:] == [(key, best[key]) for key in best for _ in range(2)]
    table = rows(tmp_path / "results" / "lr_search" / "choices.csv")
    assert sorted((row["encoding"], row["settings"]) for row in table) == [
        ("nope", ""),
        ("nope", "recipe.steps=5"),
        ("rope", ""),
        ("rope", "recipe.steps=5"),
    ]


def test_what_is_run_is_what_would_be_run_with_that_rate_by_hand(
    make_jobs: Callable[..., list[Job]], make_config: MakeConfig, tmp_path: Path
) -> None:
    launch = Launch({(0.2, 1000): 0.5})
    run_searching(make_jobs(), launch)
    by_hand = [
        make_config("copy", name, {"recipe.lr": 0.2, "seed": seed}) for name in ("nope", "rope") for seed in (0, 1)
    ]
    assert [config.run_dir for config in launch.asked[12:]] == [config.run_dir for config in by_hand]
    directories = set(load_results(tmp_path / "results").runs["directory"])
    assert directories == {config.run_id for config in by_hand}  # no trial among them


# What has no part in the choice


@pytest.mark.parametrize("where", [{}, {"evaluation.lengths": [8, 16, 64]}, {"evaluation.multiples": [4, 8]}])
def test_no_trial_sees_a_longer_length_however_long_those_reported_are(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: dict[str, Any]
) -> None:
    """A task and an encoding that raise beyond the training length: the trials finish, what is reported cannot."""
    (tmp_path / "strict.py").write_text(STRICT)
    monkeypatch.syspath_prepend(tmp_path)
    changes = {"task.target": "strict.StrictCopy", "encoding.target": "strict.StrictNoPE", "recipe.train_length": 8}
    changes |= {"sweep.lr_search": {"values": [0.01, 0.1], "seeds": [1000]}} | where
    jobs = [Job([], make_config("copy", "nope", changes))]
    assert all(
        trial.config.evaluation.lengths == [8] and trial.config.evaluation.seed == 1000
        for search in searches(jobs)
        for trial in search.trials
    )
    assert run_searching(jobs, lambda todo: [attempt(job.config) for job in todo]) == 1
    results = tmp_path / "results"
    assert {row["status"] for row in rows(results / "lr_search" / "trials.csv")} == {"finished"}
    assert len(rows(results / "lr_search" / "choices.csv")) == 1
    for path in (results / "lr_search" / "runs").glob("*/*.csv"):
        assert all(int(row.get("length", 8)) <= 8 for row in rows(path))
    [record] = [json.loads(path.read_text()) for path in results.glob("runs/*/run.json")]
    assert record["exception"]["type"] == "PermissionError"


def test_what_is_reported_has_no_part_in_the_choice(make_jobs: Callable[..., list[Job]]) -> None:
    def refusal(jobs: list[Job]) -> list[str]:
        with pytest.raises(ConfigError) as caught:
            run_searching(jobs, lambda todo: pytest.fail("started"))
        return caught.value.errors

    assert refusal(make_jobs(sweep__lr_search=SEARCH | {"seeds": [1, 7, 0]})) == [
        "sweep.lr_search.seeds=[1,7,0]: 0, 1 is one that is reported on; choose others, that no job has"
    ]
    assert refusal(make_jobs(evaluation__seed=1000)) == [
        "sweep.lr_search.evaluation_seed=1000: 1000 is one that is reported on; choose others, that no job has"
    ]
    given = [Job([*job.overrides, "++recipe.lr=0.5"], job.config) for job in make_jobs()]
    assert refusal(given) == ["recipe.lr=0.5: is what sweep.lr_search is to choose; leave one of them out"]
    mixed = make_jobs() + make_jobs(("t5",), sweep__lr_search=None)
    assert refusal(mixed) == ["sweep.lr_search: must be the same for all jobs of a sweep"]


@pytest.mark.parametrize(
    ("search", "said"),
    [
        ({"values": [0.1], "seeds": [7]}, "sweep.lr_search.values=[0.1]: needs at least 2 value(s)"),
        ({"values": [0.1, -1], "seeds": [7]}, "sweep.lr_search.values[1]=-1: must be more than 0"),
        ({"values": [0.1, 1], "seeds": []}, "sweep.lr_search.seeds=[]: needs at least 1 value(s)"),
        (
            {"values": [0.1, 1], "seed": [7]},
            "sweep.lr_search.seed=[7]: unknown key; did you mean sweep.lr_search.seeds?"
            " (keys of sweep.lr_search: values, seeds, evaluation_seed)",
        ),
        (5, "sweep.lr_search=5: must be a group of keys"),
    ],
)
def test_a_wrong_request_is_one_line(make_config: MakeConfig, search: Any, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make_config(overrides={"sweep.lr_search": search})
    assert said in caught.value.errors


def test_a_single_run_is_told_to_be_a_sweep(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError, match="sweep.lr_search: goes with a sweep, of one job or more: rpe-bench run -m"):
        run_one(make_config(overrides={"sweep.lr_search": SEARCH}))


# Again


def test_nothing_is_searched_twice(make_jobs: Callable[..., list[Job]], tmp_path: Path) -> None:
    launch = Launch({(0.2, 1000): 0.5, (0.1, 1001): "FloatingPointError: nan"})
    run_searching(make_jobs(("nope",)), launch)
    assert len(launch.asked) == 6 + 2
    run_searching(make_jobs(("nope",)), launch)
    assert len(launch.asked) == 6 + 2
    run_searching(make_jobs(), launch)  # a larger sweep
    assert launch.trials[6:] == [("rope", lr, seed) for lr in (0.1, 0.2, 0.3) for seed in (1000, 1001)]
    assert launch.reported[2:] == [("rope", 0.2, 0), ("rope", 0.2, 1)]
    run_searching(make_jobs(("nope",), evaluation__lengths=[16, 64]), launch)  # reported on more: the same choice
    assert len(launch.trials) == 12 and len(launch.reported) == 6
    run_searching(make_jobs(("nope",), sweep__lr_search=SEARCH | {"values": [0.2, 0.1, 0.4]}), launch)
    # Another choice, of which but one rate is new; the trial that failed is tried again.
    assert launch.trials[12:] == [("nope", 0.1, 1001), ("nope", 0.4, 1000), ("nope", 0.4, 1001)]
    assert len(rows(tmp_path / "results" / "lr_search" / "choices.csv")) == 3


def test_a_choice_that_cannot_be_read_is_made_again(make_jobs: Callable[..., list[Job]], tmp_path: Path) -> None:
    launch = Launch({(0.2, 1000): 0.5})
    run_searching(make_jobs(("nope",)), launch)
    [path] = (tmp_path / "results" / "lr_search" / "choices").iterdir()
    whole = path.read_text()
    path.write_text(whole[:40])
    assert run_searching(make_jobs(("nope",)), launch) == 0
    assert len(launch.asked) == 6 + 2
    assert json.loads(path.read_text())["lr"] == 0.2


def test_a_trial_that_was_killed_says_nothing_of_its_rate(
    make_jobs: Callable[..., list[Job]], tmp_path: Path, capsys: Capture
) -> None:
    killed = Launch({(0.2, 1000): 0.5, (0.1, 1000): "SIGKILL: killed"})
    assert run_searching(make_jobs(("nope",)), killed) == 1
    assert killed.reported == []
    assert capsys.readouterr().err.splitlines()[-1] == (
        "task=copy encoding=nope: 2 jobs not run: no learning rate is chosen before all trials have shown what theirs"
        " is worth (failed: SIGKILL: killed)"
    )
    place = tmp_path / "results" / "lr_search"
    assert len(rows(place / "trials.csv")) == 6 and rows(place / "choices.csv") == []
    well = Launch({(0.1, 1000): -9.0})
    assert run_searching(make_jobs(("nope",)), well) == 0
    assert well.trials == [("nope", 0.1, 1000)] and well.reported == [("nope", 0.1, 0), ("nope", 0.1, 1)]
    assert len(rows(place / "choices.csv")) == 1

    patience = Launch({(0.1, 1000): "SIGKILL: killed", (0.2, 1000): 0.5})
    assert run_searching(make_jobs(("rope",)), patience) == 1
    assert run_searching(make_jobs(("rope",), sweep__retry_failed=False), patience) == 0
    assert patience.reported == [("rope", 0.2, 0), ("rope", 0.2, 1)]


def test_where_all_rates_fail_nothing_is_reported(make_jobs: Callable[..., list[Job]], capsys: Capture) -> None:
    bad = Launch({(lr, seed): "FloatingPointError: nan" for lr in (0.1, 0.2, 0.3) for seed in (1000, 1001)})
    assert run_searching(make_jobs(("nope",)), bad) == 1
    assert bad.reported == []
    assert capsys.readouterr().err.endswith("2 jobs not run: no learning rate could be trained with\n")


def test_an_interrupted_search_chooses_nothing(make_jobs: Callable[..., list[Job]], tmp_path: Path) -> None:
    def interrupted(todo: list[Job]) -> None:
        for job in todo[:5]:
            leave(job.config, 1.0)
        raise KeyboardInterrupt

    assert run_searching(make_jobs(("nope",)), interrupted) == 130
    assert not (tmp_path / "results" / "lr_search" / "choices").exists()
    launch = Launch()
    assert run_searching(make_jobs(("nope",)), launch) == 0
    assert launch.trials == [("nope", 0.3, 1001)]


def test_a_dry_run_lists_trials_and_writes_nothing(
    make_jobs: Callable[..., list[Job]], tmp_path: Path, capsys: Capture
) -> None:
    def lines() -> list[str]:
        assert run_searching(make_jobs(sweep__dry_run=True), lambda todo: pytest.fail("started")) == 0
        return capsys.readouterr().out.splitlines()

    said = lines()
    assert said[:2] == ["lr_search: 2 of 2 learning rates to choose", "12 jobs: 0 finished, 12 to run"]
    assert said[2].startswith("would run    copy-nope-quick-s1000-")
    assert said[15:] == [
        f"then 2 jobs with the lr that is chosen: task=copy encoding={name}" for name in ("nope", "rope")
    ]
    assert not (tmp_path / "results").exists()
    run_searching(make_jobs(("nope",)), Launch())
    capsys.readouterr()
    said = lines()
    assert said[:2] == ["lr_search: 1 of 2 learning rates to choose", "6 jobs: 0 finished, 6 to run"]
    assert said[-2].startswith("finished     copy-nope-quick-s0-")


# Through the command line


def test_other_launchers_compose_the_same_trials() -> None:
    given = [
        "task=copy",
        "encoding=t5",
        "seed=3",
        "logger=csv",
        "results_dir=an 'odd' place",
        "evaluation.lengths=[99]",
    ]
    asked = "sweep.lr_search={values:[1e-5,0.1],seeds:[7]}"
    [job] = [Job(judged_by_us([*given, asked]), _resolved([*given, asked]))]
    [search] = searches([job])
    for trial in search.trials:
        assert _resolved(trial.overrides) == trial.config
    assert [trial.config.recipe.lr for trial in search.trials] == [1e-5, 0.1]


def _resolved(overrides: list[str]) -> Config:
    composed = compose(overrides)
    assert composed is not None
    return resolve(composed.raw)


def test_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> None:
    monkeypatch.chdir(tmp_path)
    small = ["logger=csv", "model.dim=8", "model.heads=1", "recipe.batch_size=2", "recipe.steps=2", "sweep.workers=2"]
    small += ["evaluation.examples=2", "evaluation.lengths=[4]", "recipe.train_length=4", "encoding=nope"]
    command = ["run", "-m", *small, "sweep.lr_search={values:[0.1,0.01],seeds:[7]}"]
    assert main([*command, "seed=7"]) == 2
    assert "sweep.lr_search.seeds=[7]: 7 is one that is reported on" in capsys.readouterr().err
    assert main([*command, "seed=0"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[:2] == ["lr_search: 1 of 1 learning rates to choose", "2 jobs: 0 finished, 2 to run"]
    assert out[2].startswith("task=copy encoding=nope: lr=0.")
    assert main([*command, "seed=0"]) == 0
    assert capsys.readouterr().out == "1 job: 1 finished, 0 to run\n"
