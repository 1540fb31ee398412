"""The whole config: what it refuses and in what words, what it fills in, and what makes two runs the same one."""

import csv
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from support import encodings_for

from rpe_bench import catalogue, make_encoding, make_task
from rpe_bench import config as config_module
from rpe_bench.config import Config, ConfigError, EarlyStop, Recipe, Resolver, resolve
from rpe_bench.encodings.base import Encoding, Geometry

MakeConfig = Callable[..., Config]


def leaves(options: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Dotted key -> value."""
    found = {}
    for key, value in options.items():
        found |= leaves(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return found


# What a run resolves to


def test_nothing_that_a_run_depends_on_is_left_open(make_config: MakeConfig) -> None:
    config = make_config("adjacency", "rope")
    assert config.model.causal is True
    assert config.recipe.train_length == 24
    assert config.evaluation.lengths == [12, 24, 48]
    assert config.device == "cpu"
    assert (config.train_tokens, config.max_tokens) == (25, 49)
    assert config.recipe.warmup_steps == 0  # a tenth of 4 steps


def test_a_task_that_needs_an_encoder_gets_one(make_config: MakeConfig) -> None:
    assert make_config("adjacency_tutorial", "rope").model.causal is False


def test_multiples_that_are_no_problem_of_the_task_are_left_out(make_config: MakeConfig) -> None:
    assert make_config("adjacency", "rope", {"recipe.train_length": 5}).evaluation.lengths == [5, 10]


@pytest.mark.parametrize(("examples", "lengths"), [(100, "fixed"), (None, "uniform")])
def test_a_finite_training_set_is_of_one_size(make_config: MakeConfig, examples: int | None, lengths: str) -> None:
    overrides = {"task.training_examples": examples, "recipe.lengths": "uniform"}
    assert make_config("adjacency_tutorial", "rope", overrides).recipe.lengths == lengths


def test_lengths_are_sorted_and_counted_once(make_config: MakeConfig) -> None:
    assert make_config(overrides={"evaluation.lengths": [32, 8, 32]}).evaluation.lengths == [8, 32]


def test_warm_up_is_a_tenth_of_the_steps_up_to_100(make_config: MakeConfig) -> None:
    def warm_up(steps: int) -> int:
        return make_config(overrides={"recipe.steps": steps}).recipe.warmup_steps

    assert [warm_up(steps) for steps in (1, 50, 1000, 2500)] == [0, 5, 100, 100]


def test_parameters_that_are_not_given_are_spelt_out(make_config: MakeConfig) -> None:
    config = make_config("copy", "rope")
    raw = config.as_dict()
    del raw["encoding"]["base"]
    assert resolve(raw) == config


def test_a_resolved_config_resolves_to_itself(make_config: MakeConfig) -> None:
    config = make_config("retrieval", "learned")
    assert resolve(config.as_dict()) == config


def test_a_config_reads_back_from_a_file(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config()
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config.as_dict()))
    assert Config.load(tmp_path / "config.yaml") == config


@pytest.mark.parametrize("task, encoding", [(t, e) for t in catalogue.choices("task") for e in encodings_for(t)])
def test_every_encoding_goes_with_every_task(make_config: MakeConfig, task: str, encoding: str) -> None:
    config = make_config(task, encoding, {"evaluation.multiples": [0.5, 1, 1.25, 1.5, 2, 4, 8]})
    assert (config.task.name, config.encoding.name) == (task, encoding)


@pytest.mark.parametrize("group", [*catalogue.GROUPS, "experiment"])
def test_a_choice_is_named_by_its_file(group: str) -> None:
    for name in catalogue.choices(group):
        if group != "experiment":
            assert catalogue.read(group, name)["name"] == (None if name == "custom" else name)
        assert catalogue.summary(group, name)


# Identity

SAME = {
    "results_dir": "elsewhere",
    "checkpoint.steps": 3,
    "checkpoint.minutes": 0.5,
    "sweep.workers": 3,
    "sweep.retry_failed": False,
    "sweep.force": True,
    "sweep.dry_run": True,
    "sweep.timeout_minutes": 3.0,
    "sweep.lr_search": {"values": [0.1, 0.2], "seeds": [7]},
    "logger.name": "wandb",
    "logger.mode": "disabled",
    "logger.project": "other",
    "logger.entity": "me",
    "logger.group": "g",
    "logger.tags": ["a"],
}
OTHER = {
    "seed": 1,
    "device": "cuda",
    "threads": 2,
    "compile": True,
    "encoding.name": "other",
    "encoding.target": "twins.Encoding",
    "encoding.k": 3,
    "encoding.std": 0.5,
    "encoding.shared": True,
    "encoding.per_head": False,
    "task.name": "other",
    "task.target": "twins.Task",
    "task.types": 5,
    "positions.name": "other",
    "positions.target": "twins.Positions",
    "model.name": "other",
    "model.layers": 3,
    "model.dim": 32,
    "model.heads": 4,
    "model.causal": False,
    "model.embedding_std": 1.0,
    "recipe.name": "other",
    "recipe.steps": 5,
    "recipe.batch_size": 9,
    "recipe.lr": 0.5,
    "recipe.weight_decay": 0.5,
    "recipe.warmup_steps": 2,
    "recipe.min_lr_ratio": 0.5,
    "recipe.grad_clip": 0.5,
    "recipe.betas": [0.9, 0.9],
    "recipe.train_length": 20,
    "recipe.lengths": "fixed",
    "recipe.precision": "bf16-mixed",
    "recipe.log_every": 3,
    "recipe.optimiser": "adam",
    "recipe.momentum": 0.5,
    "recipe.schedule": "linear",
    "recipe.decay_share": 0.5,
    "recipe.accumulate": 2,
    "recipe.curriculum_start": 9,
    "recipe.curriculum_share": 0.25,
    "recipe.early_stop": {"every": 2},
    "evaluation.lengths": [24, 30],
    "evaluation.multiples": [1, 3],
    "evaluation.examples": 33,
    "evaluation.seed": 1,
}
NEEDED = {
    "recipe.momentum": {"recipe.optimiser": "sgd"},
    "recipe.decay_share": {"recipe.schedule": "wsd"},
    "recipe.curriculum_start": {"recipe.lengths": "curriculum"},
    "recipe.curriculum_share": {"recipe.lengths": "curriculum"},
}
"""What a key of OTHER has no part without."""


@pytest.fixture
def twins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module with the classes of the test's run under other names."""
    (tmp_path / "twins.py").write_text(
        "from rpe_bench.encodings.relative_bias import RelativeBias as Encoding\n"
        "from rpe_bench.tasks.adjacency import Adjacency as Task\n"
        "from rpe_bench.positions.plain import Plain as Positions\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "twins", raising=False)


def test_every_key_is_known_to_change_the_run_or_not(make_config: MakeConfig) -> None:
    keys = leaves(make_config("adjacency", "relative_bias").as_dict()).keys()
    assert {key for key in keys if not key.startswith("start.")} == SAME.keys() | OTHER.keys()  # see test_start.py


@pytest.mark.parametrize("key", SAME)
def test_logging_and_paths_leave_the_run_the_same(make_config: MakeConfig, key: str) -> None:
    base = make_config("adjacency", "relative_bias")
    assert make_config("adjacency", "relative_bias", {key: SAME[key]}).run_id == base.run_id


@pytest.mark.parametrize("key", OTHER)
@pytest.mark.usefixtures("twins")
def test_every_other_key_makes_another_run(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    needed = NEEDED.get(key, {})
    base = make_config("adjacency", "relative_bias", needed)
    other = make_config("adjacency", "relative_bias", {key: OTHER[key]} | needed)
    assert other.run_id != base.run_id
    assert other.run_id.rpartition("-")[2] != base.run_id.rpartition("-")[2]


def test_a_run_is_the_same_however_it_is_written(make_config: MakeConfig) -> None:
    implicit = make_config("copy", "rope", {"encoding.base": 10_000})
    explicit = make_config(
        "copy",
        "rope",
        {
            "encoding.base": 10_000.0,
            "model.causal": True,
            "recipe.train_length": 16,
            "evaluation.lengths": [8, 16, 32],
            "evaluation.multiples": [7],
        },
    )
    assert explicit.run_id == implicit.run_id


def test_a_run_id_says_what_the_run_is(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config("copy", "rope", {"seed": 3})
    assert config.run_id.startswith("copy-rope-quick-s3-")
    assert len(config.run_id.rpartition("-")[2]) == 8
    assert config.run_dir == tmp_path / "results" / "runs" / config.run_id


def test_a_choice_that_came_later_leaves_the_ids_of_earlier_runs(make_config: MakeConfig) -> None:
    """A run is found finished by the command that made it."""
    config = make_config("retrieval", "nope")
    assert config.run_id == "retrieval-nope-quick-s0-03b7ab78"
    raw = config.as_dict()
    assert raw.pop("positions") == {"name": "plain", "target": "rpe_bench.positions.plain.Plain"}
    assert resolve(raw) == config


NEUTRAL = {
    "optimiser": "adamw",
    "momentum": None,
    "schedule": "cosine",
    "decay_share": None,
    "accumulate": 1,
    "curriculum_start": None,
    "curriculum_share": None,
    "early_stop": None,
}


def test_keys_of_a_recipe_that_came_later_leave_the_ids_of_earlier_runs(
    make_config: MakeConfig, tmp_path: Path
) -> None:
    """Nor does a config.yaml from before them say anything else."""
    assert Recipe.neutral() == NEUTRAL
    config = make_config("retrieval", "nope")
    assert config.run_id == "retrieval-nope-quick-s0-03b7ab78"
    assert not config.identity()["recipe"].keys() & NEUTRAL.keys()
    raw = config.as_dict()
    for key in NEUTRAL:
        del raw["recipe"][key]
    assert resolve(raw) == config
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(raw))
    assert Config.load(tmp_path / "config.yaml") == config


@pytest.mark.parametrize("name", catalogue.choices("recipe"))
def test_the_file_of_a_recipe_lists_every_key(name: str) -> None:
    assert catalogue.read("recipe", name).keys() == Recipe.model_fields.keys()


def test_what_has_no_part_in_a_run_does_not_set_it_apart(make_config: MakeConfig) -> None:
    """Of keys that every file of conf/recipe sets; they are null in the run's own config."""
    sgd = [make_config(overrides={"recipe.optimiser": "sgd", "recipe.betas": betas}) for betas in ([0.9, 0.9], [0, 0])]
    assert sgd[0].run_id == sgd[1].run_id and sgd[0].recipe.betas is None and sgd[0].recipe.momentum == 0.9
    for schedule in ("constant", "inverse_sqrt"):
        keys = {"recipe.schedule": schedule}
        one, other = (make_config(overrides=keys | {"recipe.min_lr_ratio": ratio}) for ratio in (0.1, 0.5))
        assert one.run_id == other.run_id and one.recipe.min_lr_ratio is None
        assert resolve(one.as_dict()) == one


def test_what_a_null_of_a_recipe_stands_for(make_config: MakeConfig) -> None:
    def recipe(**keys: Any) -> Recipe:
        return make_config(overrides={f"recipe.{key}": value for key, value in keys.items()}).recipe

    assert recipe(optimiser="sgd").momentum == 0.9
    assert recipe(optimiser="sgd", momentum=0.0).momentum == 0
    assert recipe(schedule="wsd").decay_share == 0.2
    curriculum = recipe(lengths="curriculum")
    assert (curriculum.curriculum_start, curriculum.curriculum_share) == (4, 0.5)
    assert recipe(early_stop={"metric": "exact_match"}).early_stop == EarlyStop(
        metric="exact_match", every=100, patience=5, min_improvement=0, threshold=None, examples=256, keep="best"
    )
    for keys in ({"optimiser": "sgd"}, {"schedule": "wsd"}, {"lengths": "curriculum"}, {"early_stop": {}}):
        config = make_config(overrides={f"recipe.{key}": value for key, value in keys.items()})
        assert resolve(config.as_dict()) == config


@pytest.mark.parametrize(("experiment", "runs"), [("extrapolation", 42), ("precision", 60)])
def test_published_runs_still_have_their_ids(experiment: str, runs: int) -> None:
    """So that the command that made them finds them finished: with it, every key but the precision stands at what conf/
    says."""
    published = Path(__file__).parents[1] / f"results/{experiment}/tables/runs.csv"
    with published.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == runs
    raw = yaml.safe_load((catalogue.CONF / "config.yaml").read_text()) | {"device": "cpu"}
    del raw["defaults"], raw["hydra"]
    for row in rows:
        chosen = {group: row[group] for group in ("task", "encoding", "recipe", "model")} | {"logger": "csv"}
        choices = {group: catalogue.read(group, name) for group, name in chosen.items()}
        if "bf16-mixed" in row["task_label"]:
            choices["recipe"] = choices["recipe"] | {"precision": "bf16-mixed"}
        assert resolve(raw | choices | {"seed": int(row["seed"])}).run_id == row["run_id"]


def test_what_differs_in_its_seed_alone_is_checked_once(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw = make_config("copy", "learned").as_dict()
    others = [raw | {"seed": seed} for seed in (3, 4, True, "5", -1, 2**32, None, 3.0)]
    others += [raw | {"threads": threads} for threads in (2, 2.0, True, 0, 0)]
    expected = [outcome(resolve, given) for given in others]
    checked = []
    monkeypatch.setattr(config_module, "resolve", lambda given, gpu: checked.append(given) or resolve(given, gpu))
    resolver = Resolver()
    assert [outcome(resolver, given) for given in others] == expected
    # Seeds that are wrong each time; threads=0 once.
    assert len(checked) == 1 + 6 + 4


def outcome(resolve_one: Callable[[dict[str, Any]], Config], raw: dict[str, Any]) -> Any:
    try:
        config = resolve_one(raw)
    except ConfigError as error:
        return error.errors
    return config, config.run_id, config.run_dir


def test_a_copy_has_an_id_of_its_own(make_config: MakeConfig, tmp_path: Path) -> None:
    config = make_config()
    place = config.run_dir
    other = config.model_copy(update={"seed": 9})
    assert other.run_id != config.run_id and other.run_dir != place
    assert config.model_copy(update={"results_dir": tmp_path}).run_dir == tmp_path / "runs" / config.run_id
    assert config == make_config() and config.run_id == resolve(config.as_dict()).run_id


# What is refused


@pytest.mark.parametrize(
    ("task", "encoding", "overrides", "said"),
    [
        ("copy", "rope", {"recipe.steps": -5}, "recipe.steps=-5: must be at least 1"),
        ("copy", "rope", {"recipe.steps": "many"}, "recipe.steps=many: must be an integer"),
        ("copy", "rope", {"recipe.steps": 2.5}, "recipe.steps=2.5: must be an integer"),
        ("copy", "rope", {"seed": True}, "seed=true: must be an integer"),
        ("copy", "rope", {"seed": -1}, "seed=-1: must be at least 0"),
        ("copy", "rope", {"recipe.lr": 0}, "recipe.lr=0: must be more than 0"),
        ("copy", "rope", {"recipe.lr": float("nan")}, "recipe.lr=NaN: must be finite"),
        ("copy", "rope", {"encoding.base": float("nan")}, "encoding.base=NaN: must be finite"),
        ("copy", "rope", {"encoding.base": float("-inf")}, "encoding.base=-Infinity: must be finite"),
        ("copy", "rope", {"recipe.steps": 2**31}, "recipe.steps=2147483648: must be at most 2147483647"),
        ("copy", "rope", {"recipe.warmup_steps": 2**31}, "recipe.warmup_steps=2147483648: must be at most 2147483647"),
        ("copy", "rope", {"recipe.min_lr_ratio": 1.5}, "recipe.min_lr_ratio=1.5: must be at most 1"),
        ("copy", "rope", {"seed": 2**32}, "seed=4294967296: must be at most 4294967295"),
        (
            "copy",
            "rope",
            {"evaluation.multiples": [1, 1e9]},
            "evaluation.multiples=1000000000.0: of recipe.train_length=16 exceeds 2147483647",
        ),
        ("copy", "rope", {"model.name": 65 * "a"}, f"model.name={57 * 'a'}...: must be at most 64 characters"),
        ("copy", "rope", {"recipe.betas": [0.9]}, "recipe.betas[1]: is missing"),
        ("copy", "rope", {"recipe.precision": "fp16"}, "recipe.precision=fp16: must be one of fp32 or bf16-mixed"),
        ("copy", "rope", {"evaluation.lengths": [8, "x"]}, "evaluation.lengths[1]=x: must be an integer"),
        ("copy", "rope", {"evaluation.lengths": []}, "evaluation.lengths=[]: needs at least 1 value(s)"),
        ("copy", "rope", {"encoding.name": "a/b"}, "encoding.name=a/b: must be letters, digits and underscores"),
        (
            "copy",
            "rope",
            {"steps": 3},
            "steps=3: unknown key; did you mean recipe.steps?"
            " (keys: seed, device, threads, compile, results_dir, encoding, task, positions, model, recipe, evaluation,"
            " start, checkpoint, logger, sweep)",
        ),
        (
            "copy",
            "rope",
            {"model.layer": 3},
            "model.layer=3: unknown key; did you mean model.layers?"
            " (keys of model: name, layers, dim, heads, causal, embedding_std)",
        ),
        (
            "copy",
            "rope",
            {"sed": 3},
            "sed=3: unknown key; did you mean seed? (keys: seed, device, threads, compile, results_dir, encoding, task,"
            " positions, model, recipe, evaluation, start, checkpoint, logger, sweep)",
        ),
        (
            "copy",
            "rope",
            {"encoding.bse": 5},
            "encoding.bse=5: unknown key; did you mean encoding.base?"
            " (keys of encoding=rope: base, layout, rotary, proportion, scaling)",
        ),
        ("copy", "rope", {"encoding.base": "big"}, "encoding.base=big: must be a number"),
        ("copy", "learned", {"encoding.size": "big"}, "encoding.size=big: must be an integer or null"),
        ("copy", "learned", {"encoding.size": True}, "encoding.size=true: must be an integer or null"),
        ("copy", "rope", {"task.types": "many"}, "task.types=many: must be an integer"),
        ("copy", "rope", {"model.heads": 5}, "model.heads=5: must divide model.dim=16"),
        ("copy", "rope", {"recipe.warmup_steps": 9}, "recipe.warmup_steps=9: must not exceed recipe.steps=4"),
        ("copy", "rope", {"recipe.optimiser": "lion"}, "recipe.optimiser=lion: must be one of adamw, adam or sgd"),
        (
            "copy",
            "rope",
            {"recipe.schedule": "step"},
            "recipe.schedule=step: must be one of cosine, linear, constant, inverse_sqrt or wsd",
        ),
        (
            "copy",
            "rope",
            {"recipe.lengths": "short"},
            "recipe.lengths=short: must be one of uniform, fixed or curriculum",
        ),
        (
            "copy",
            "rope",
            {"recipe.momentum": 0.5},
            "recipe.momentum=0.5: has no part in recipe.optimiser=adamw, but in sgd",
        ),
        (
            "copy",
            "rope",
            {"recipe.decay_share": 0.5},
            "recipe.decay_share=0.5: has no part in recipe.schedule=cosine, but in wsd",
        ),
        (
            "copy",
            "rope",
            {"recipe.curriculum_start": 5},
            "recipe.curriculum_start=5: has no part in recipe.lengths=uniform, but in curriculum",
        ),
        (
            "copy",
            "rope",
            {"recipe.curriculum_share": 0.3, "recipe.lengths": "fixed"},
            "recipe.curriculum_share=0.3: has no part in recipe.lengths=fixed, but in curriculum",
        ),
        ("copy", "rope", {"recipe.betas": None}, "recipe.betas=null: recipe.optimiser=adamw needs a value"),
        (
            "copy",
            "rope",
            {"recipe.min_lr_ratio": None},
            "recipe.min_lr_ratio=null: recipe.schedule=cosine needs a value",
        ),
        (
            "copy",
            "rope",
            {"recipe.accumulate": 3},
            "recipe.accumulate=3: must divide recipe.batch_size=8, the examples of a step",
        ),
        ("copy", "rope", {"recipe.accumulate": 0}, "recipe.accumulate=0: must be at least 1"),
        (
            "copy",
            "rope",
            {"recipe.schedule": "wsd", "recipe.decay_share": 0.8, "recipe.warmup_steps": 2},
            "recipe.decay_share=0.8: the decay of 3 steps and recipe.warmup_steps=2 exceed recipe.steps=4",
        ),
        (
            "copy",
            "rope",
            {"recipe.lengths": "curriculum", "recipe.curriculum_start": 17},
            "recipe.curriculum_start=17: must be from 4, the smallest size of task=copy, to recipe.train_length=16",
        ),
        (
            "copy",
            "rope",
            {"recipe.lengths": "curriculum", "recipe.curriculum_start": 3},
            "recipe.curriculum_start=3: must be from 4, the smallest size of task=copy, to recipe.train_length=16",
        ),
        (
            "copy",
            "rope",
            {"recipe.lengths": "curriculum", "recipe.curriculum_share": 0},
            "recipe.curriculum_share=0: must be more than 0",
        ),
        (
            "adjacency_tutorial",
            "rope",
            {"recipe.lengths": "curriculum"},
            "recipe.lengths=curriculum: task=adjacency_tutorial has a finite training set, all of one size; use fixed",
        ),
        ("copy", "rope", {"recipe.early_stop": 5}, "recipe.early_stop=5: must be a group of keys"),
        ("copy", "rope", {"recipe.early_stop": {"every": 0}}, "recipe.early_stop.every=0: must be at least 1"),
        (
            "copy",
            "rope",
            {"recipe.early_stop": {"evry": 5}},
            "recipe.early_stop.evry=5: unknown key; did you mean recipe.early_stop.every? (keys of recipe.early_stop:"
            " metric, every, patience, min_improvement, threshold, examples, keep)",
        ),
        (
            "copy",
            "rope",
            {"recipe.early_stop": {"metric": "perplexity"}},
            "recipe.early_stop.metric=perplexity: must be one of loss, token_accuracy or exact_match",
        ),
        (
            "copy",
            "rope",
            {"recipe.early_stop": {"patience": None}},
            "recipe.early_stop.threshold=null: with recipe.early_stop.patience=null nothing would end training early",
        ),
        (
            "copy",
            "rope",
            {"recipe.early_stop": {"metric": "exact_match", "threshold": 90}},
            "recipe.early_stop.threshold=90.0: recipe.early_stop.metric=exact_match is at most 1",
        ),
        (
            "markov",
            "rope",
            {
                "recipe.early_stop": {},
                "recipe.train_length": 8,
                "task.last": 10,
                "evaluation.lengths": [16],
            },
            "recipe.early_stop: of recipe.train_length=8: size 8 is too small: last=10 targets are scored",
        ),
        (
            "adjacency",
            "rope",
            {"recipe.train_length": 3},
            "recipe.train_length=3: size 3 is too small: Adjacency needs at least 4",
        ),
        (
            "adjacency",
            "rope",
            {"evaluation.lengths": [3, 24]},
            "evaluation.lengths=[3, 24]: size 3 is too small: Adjacency needs at least 4",
        ),
        (
            "copy",
            "rope",
            {"model.causal": False},
            "model.causal=false: contradicts task=copy, whose model must be causal: true or null",
        ),
        (
            "copy",
            "rope",
            {"logger.mode": "offline"},
            "logger.mode=offline: contradicts logger=csv, which has no mirror; use logger=wandb",
        ),
        (
            "copy",
            "rope",
            {"encoding.target": "nowhere.Rope"},
            "encoding.target=nowhere.Rope: there is no module nowhere",
        ),
        (
            "copy",
            "rope",
            {"encoding.target": "rpe_bench.encodings.rope.RoPe"},
            "encoding.target=rpe_bench.encodings.rope.RoPe: rpe_bench.encodings.rope has no RoPe; did you mean RoPE?",
        ),
        (
            "copy",
            "rope",
            {"encoding.target": "pathlib.Path"},
            "encoding.target=pathlib.Path: is not a subclass of rpe_bench.encodings.base.Encoding",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    make_config: MakeConfig, task: str, encoding: str, overrides: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        make_config(task, encoding, overrides)
    assert error.value.errors == [said]


@pytest.mark.parametrize(
    ("encoding", "overrides", "named"),
    [
        ("rope", {"model.dim": 18}, ["encoding=rope", "18", "2", "odd"]),
        ("learned", {"encoding.size": 20}, ["encoding=learned", "20 positions", "65", "evaluation.lengths"]),
        ("rope", {"encoding.layout": "haf"}, ["encoding=rope", "haf", "half"]),
    ],
)
def test_an_encoding_that_does_not_fit_is_refused(
    make_config: MakeConfig, encoding: str, overrides: dict[str, Any], named: list[str]
) -> None:
    with pytest.raises(ConfigError) as error:
        make_config("copy", encoding, {"evaluation.multiples": [1, 2]} | overrides)
    [line] = error.value.errors
    assert all(word in line for word in named)


POSITIONS = [
    ("copy", "rope", "randomised", {"range": 64}, "positions=randomised: range=64 is too small: 65 different"),
    ("copy", "rope", "randomised", {"rnge": 64}, "positions.rnge=64: unknown key; did you mean positions.range?"),
    ("copy", "rope", "randomised", {"range": "x"}, "positions.range=x: must be an integer"),
    ("copy", "rope", "plain", {"range": 99}, "positions.range=99: unknown key (keys of positions=plain: none)"),
    ("copy", "rope", "offset", {"most": -1}, "positions=offset: most=-1 must not be negative"),
    ("copy", "rope", "abacus", {}, "positions=abacus: counts the digits of numbers, but the task has none"),
    ("copy", "rope", "raster", {}, "positions=raster: puts a grid in a line, but the task's positions have 1 axis"),
    ("copy", "relative_bias", "interpolated", {}, "positions=interpolated: encoding=relative_bias: a learned table"),
    ("copy", "learned", "interpolated", {}, "positions=interpolated: encoding=learned: a learned table has rows"),
    ("copy", "rope", "plain", {"target": "pathlib.Path"}, "positions.target=pathlib.Path: is not a subclass of"),
    (
        "grid_lookup",
        "rope",
        "offset",
        {},
        "encoding=rope: takes 1 axis of position, but task=grid_lookup with positions=offset has 2",
    ),
]


@pytest.mark.parametrize(("task", "encoding", "positions", "parameters", "said"), POSITIONS)
def test_positions_that_do_not_fit_are_refused(
    make_config: MakeConfig, task: str, encoding: str, positions: str, parameters: dict[str, Any], said: str
) -> None:
    options = catalogue.read("positions", positions) | parameters
    state = torch.get_rng_state()
    with pytest.raises(ConfigError) as error:
        make_config(task, encoding, {"positions": options})
    [line] = error.value.errors
    assert line.startswith(said)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(
    ("encoding", "options", "said"),
    [
        ("swin", {"encoding.window": [2, 8]}, "an offset of 7 rows lies beyond a window of 2: 0 to 1 either way"),
        ("swin", {"encoding.window": [8, 2]}, "an offset of 7 columns lies beyond a window of 2: 0 to 1 either way"),
        (
            "vit",
            {"encoding.size": [2, 8], "encoding.beyond": "error"},
            "position 7 lies beyond a learned table of 2 rows",
        ),
    ],
)
def test_a_table_too_short_along_one_axis_is_refused(
    make_config: MakeConfig, encoding: str, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError) as error:
        make_config("grid_lookup", encoding, options | {"evaluation.multiples": [0.5, 1]})
    assert error.value.errors == [f"encoding={encoding}: {said}"]


@pytest.mark.parametrize("encoding", ["vit", "swin", "axial_rope", "rope_mixed", "sinusoidal_2d"])
def test_an_encoding_of_grids_is_refused_for_text(make_config: MakeConfig, encoding: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_config("copy", encoding)
    [line] = error.value.errors
    assert line.startswith(f"encoding={encoding}: takes 2 axes of position, ")


def test_a_table_is_made_for_the_positions_that_it_meets(make_config: MakeConfig) -> None:
    def rows(positions: str, **parameters: Any) -> int:
        options = catalogue.read("positions", positions) | parameters
        return len(make_config("addition", "learned", {"positions": options}).build_encodings()[0].table_LD)

    assert rows("plain") == 62
    assert rows("randomised", range=300) == 300
    assert rows("offset", most=100) == 132
    assert rows("abacus") == 132
    options = catalogue.read("positions", "randomised")
    with pytest.raises(ConfigError) as error:
        make_config("copy", "learned", {"positions": options, "encoding.size": 100})
    assert error.value.errors == [
        "encoding=learned: has 100 positions, but evaluation.lengths and recipe.train_length and positions=randomised"
        " ask for 2048 (make one larger, or the others smaller)"
    ]


def test_an_encoding_of_text_serves_a_grid_in_a_line(make_config: MakeConfig) -> None:
    config = make_config("grid_lookup", "rope", {"positions": catalogue.read("positions", "raster")})
    assert config.build_encodings()[0].geometry.axes == 1


def test_all_that_is_wrong_is_said_at_once(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError) as error:
        make_config(overrides={"encoding.bse": 1, "task.typs": 1, "recipe.steps": 0, "sed": 1})
    keys = [line.split("=")[0] for line in error.value.errors]
    assert sorted(keys) == ["encoding.bse", "recipe.steps", "sed", "task.typs"]


def test_a_missing_key_is_named(make_config: MakeConfig) -> None:
    raw = make_config().as_dict()
    del raw["recipe"]["lr"], raw["model"]
    with pytest.raises(ConfigError) as error:
        resolve(raw)
    assert error.value.errors == ["model: is missing", "recipe.lr: is missing"]


def test_a_gpu_is_not_asked_for_in_vain(make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ConfigError, match="^device=cuda: torch finds no GPU here"):
        make_config(overrides={"device": "cuda"})


@pytest.mark.parametrize(
    ("visible", "found", "said"),
    [
        ("7", 0, "CUDA_VISIBLE_DEVICES=7 names 1 GPU, of which torch finds 0"),
        ("0,7", 1, "CUDA_VISIBLE_DEVICES=0,7 names 2 GPUs, of which torch finds 1"),
        ("0,1", 2, None),
        ("MIG-1,MIG-2", 1, None),  # of which torch counts one
        ("MIG-1", 0, "CUDA_VISIBLE_DEVICES=MIG-1 names 1 GPU, of which torch finds 0"),
        ("", 0, None),
        ("-1", 0, None),
        (None, 0, None),
    ],
)
def test_a_gpu_that_is_named_and_absent_is_not_passed_over(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch, visible: str | None, found: int, said: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: found > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: found)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    if said is None:
        assert make_config(overrides={"device": "auto"}).device == ("cuda" if found else "cpu")
    else:
        for device in ("auto", "cuda"):
            with pytest.raises(ConfigError) as error:
                make_config(overrides={"device": device})
            assert error.value.errors == [f"device={device}: {said} (correct it, or choose cpu)"]
    assert make_config(overrides={"device": "cpu"}).device == "cpu"


# Classes of a user's own

OWN = """
from rpe_bench.encodings.base import Encoding

class Own(Encoding):
    causal_only = True
    axes = 2

    def __init__(self, geometry, needed: int, sizes: tuple[int, ...] = (1, 2), either: int | list[int] = 3):
        super().__init__(geometry)
        self.sizes = sizes
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)


@pytest.mark.usefixtures("own")
def test_a_class_of_ones_own(make_config: MakeConfig) -> None:
    own = {"encoding.target": "own.Own", "encoding.needed": 1, "encoding.sizes": [3, 4]}
    with pytest.raises(ConfigError) as error:
        make_config("adjacency", "nope", own | {"model.causal": False})
    assert error.value.errors == [
        "encoding=nope: has no meaning where a token sees later ones, but model.causal is false",
        "encoding=nope: takes 2 axes of position, but task=adjacency has 1",
    ]
    with pytest.raises(ConfigError) as error:
        make_config("adjacency", "nope", {"encoding.target": "own.Own", "encoding.either": "x"})
    assert error.value.errors == [
        "encoding.needed: is missing: encoding=nope has no default for it",
        "encoding.either=x: must be int | list[int]",
    ]


@pytest.mark.parametrize(
    ("module", "said"),
    [
        (
            "import nowhere",
            "encoding.target=own.Own: cannot be imported: ModuleNotFoundError: No module named 'nowhere' (own.py,",
        ),
        ("def", "encoding.target=own.Own: cannot be imported: SyntaxError: invalid syntax (own.py, line 1)"),
        ("raise SystemExit", "encoding.target=own.Own: cannot be imported: SystemExit:  (own.py, line 1)"),
        (OWN.replace("needed: int", "needed: 'Int'"), "encoding.target=own.Own: NameError: name 'Int' is not defined"),
        (OWN.replace("needed: int", "needed: Encoding"), "encoding.needed: PydanticSchemaGenerationError: "),
        (OWN.replace("(1, 2)", "object()"), "encoding.target=own.Own: Unable to serialize unknown type"),
        (OWN.replace("(1, 2)", "float('inf')"), "encoding.sizes=Infinity: must be finite"),
        (OWN + "        raise ValueError('no\\nmore')", "encoding=nope: no"),
        (OWN + "        assert needed == 2", "encoding=nope: AssertionError:  (own.py, line 11)"),
        (OWN + "        raise NotImplementedError", "encoding=nope: NotImplementedError:  (own.py, line 11)"),
        (OWN + "        import torch; torch.empty(10**20)", "encoding=nope: "),
    ],
)
def test_whatever_a_class_of_ones_own_raises_is_one_line(
    make_config: MakeConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, said: str
) -> None:
    (tmp_path / "own.py").write_text(module)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)
    with pytest.raises(ConfigError) as error:
        make_config("copy", "nope", {"encoding.target": "own.Own", "encoding.needed": 1})
    assert error.value.errors[0].startswith(said)
    assert not any("\n" in line for line in error.value.errors)


@pytest.mark.usefixtures("own")
def test_a_constructor_may_compute_and_every_layers_module_is_checked(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    import own  # type: ignore[import-not-found]

    def build(geometry: Geometry, **parameters: Any) -> list[Encoding]:
        first, last = Encoding(geometry), own.Own(geometry, **parameters)
        last.longest = len(torch.rand(5).tolist())
        return [first, last]

    monkeypatch.setattr(own.Own, "build", build)
    state = torch.get_rng_state()
    with pytest.raises(ConfigError) as error:
        make_config("adjacency", "nope", {"encoding.target": "own.Own", "encoding.needed": 1, "model.causal": False})
    assert [line.split(",")[0] for line in error.value.errors] == [
        "encoding=nope: has no meaning where a token sees later ones",
        "encoding=nope: takes 2 axes of position",
        "encoding=nope: has 5 positions",
    ]
    assert torch.equal(torch.get_rng_state(), state)


def test_an_absurd_size_is_one_line(make_config: MakeConfig) -> None:
    with pytest.raises(ConfigError) as error:
        make_config("copy", "learned", {"encoding.size": 10**20})
    [line] = error.value.errors
    assert line.startswith("encoding=learned: ")


@pytest.mark.usefixtures("own")
def test_a_list_becomes_the_tuple_that_a_class_asks_for(
    make_config: MakeConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    import own  # type: ignore[import-not-found]

    monkeypatch.setattr(own.Own, "axes", 1)
    options = {"encoding.target": "own.Own", "encoding.needed": 1, "encoding.sizes": [3, 4]}
    config = make_config("copy", "nope", options)
    assert config.build_encodings()[0].sizes == (3, 4)
    assert config.as_dict()["encoding"]["sizes"] == [3, 4]


# From Python


def test_make_encoding() -> None:
    options: dict[str, Any] = {"dim": 16, "heads": 2, "train_length": 8, "max_length": 32, "causal": True}
    encoding = make_encoding("learned", **options, std=1.0)
    assert isinstance(encoding, Encoding)
    assert encoding.geometry == Geometry(dim=16, heads=2, train_length=8, max_length=32, causal=True)
    assert encoding.longest == 32
    first, again, other = (make_encoding("learned", **options, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(first.table_LD, again.table_LD)
    assert not torch.equal(first.table_LD, other.table_LD)
    with pytest.raises(ConfigError, match="encoding=rop: no such encoding; did you mean rope?"):
        make_encoding("rop", **options)
    with pytest.raises(ConfigError, match="encoding.bse=3: unknown key; did you mean encoding.base?"):
        make_encoding("rope", **options, bse=3)
    with pytest.raises(ValueError, match="odd"):
        make_encoding("rope", **options | {"dim": 18})


def test_make_task() -> None:
    assert make_task("copy", types=5).classes == 5
    with pytest.raises(ConfigError, match="task=cpy: no such task; did you mean copy?"):
        make_task("cpy")
