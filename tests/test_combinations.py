"""Jobs that are put together from what Hydra composed for others are what Hydra would have composed for them."""

import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import yaml
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf

from rpe_bench import compose
from rpe_bench.combinations import Combinations, HydraFiles
from rpe_bench.compose import COMPOSITION_ERRORS, as_data, judged_by_us

Hydra = Callable[[list[str]], DictConfig]


def of_sweep(*given: str) -> tuple[Hydra, HydraFiles]:
    """Hydra's composition of a job, as the sweeper of a multirun has it, and the files that it composes."""
    Plugins.instance()
    from hydra_plugins.rpe_bench.sweeper import ResumingSweeper

    found: list[Any] = []
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ResumingSweeper, "sweep", lambda sweeper, arguments: found.append(sweeper))
        compose.compose(["-m", *given])
    [sweeper] = found
    loader, config = sweeper.hydra_context.config_loader, sweeper.config
    return lambda overrides: loader.load_sweep_config(config, overrides), HydraFiles(loader, config)


@pytest.fixture(scope="module")
def hydra() -> tuple[Hydra, HydraFiles]:
    return of_sweep("seed=0,1")


VALUES = [
    ["recipe.lr=1e-4", "recipe.lr=0.002", "recipe.lr=5"],
    ["recipe.steps=7", "recipe.steps=${seed}"],
    ["evaluation.lengths=[4,8]", "evaluation.lengths=null", "evaluation.lengths=[${seed}]"],
    [
        "encoding.base=500.0",
        "encoding.extra=true",
        "encoding.scaling={name:linear,factor:2.0}",
        "encoding.scaling=null",
    ],
    ["results_dir='a, b'", "results_dir=$HOME", "results_dir=???"],
    ["model.causal=true", "model.heads.of.what=1", "model=null", "model.layers=007"],
    ["logger.tags=[a,'b c']", "logger.tags={a:1}", "~logger.tags", "new.key.there='12'"],
    ["experiment=extrapolation"],
]
CHOICES = [
    ["encoding=rope", "encoding=t5", "encoding=custom"],
    ["task=copy", "task=bytes"],
    ["recipe=quick", "recipe=tutorial"],
]


@pytest.mark.parametrize("seed", range(3))
def test_random_jobs_are_composed_as_by_hydra(hydra: tuple[Hydra, HydraFiles], seed: int) -> None:
    rng = random.Random(seed)
    jobs: list[list[str]] = []
    for _ in range(4):
        values = [rng.choice(options) for options in rng.sample(VALUES, 3)]
        for _ in range(3):
            choices = [rng.choice(options) for options in CHOICES[: 1 + len(jobs) % 3]]
            given = judged_by_us([*choices, *values])
            jobs.append([*given, f"++seed={rng.choice([0, 3])}"] if rng.random() < 0.8 else given)
    composed = Combinations(*hydra)
    for job in jobs:
        try:
            expected: Any = as_data(hydra[0](job))
        except COMPOSITION_ERRORS as error:
            expected = str(error)
        try:
            found: Any = composed(job)
        except COMPOSITION_ERRORS as error:
            found = str(error)
        assert found == expected, job


def test_what_is_wrong_is_said_as_by_hydra(hydra: tuple[Hydra, HydraFiles]) -> None:
    composed = Combinations(*hydra)
    composed(["encoding=rope", "++seed=1"])
    for job in (["encoding=rop", "++seed=1"], ["encoding=rope", "++seed=[1"], ["encoding=rope", "~sed", "++seed=1"]):
        with pytest.raises(COMPOSITION_ERRORS) as by_hydra:
            as_data(hydra[0](job))
        for _ in range(2):
            with pytest.raises(COMPOSITION_ERRORS) as found:
                composed(job)
            assert compose.explain(found.value) == compose.explain(by_hydra.value)


SPECIAL = {
    "recipe/reaching.yaml": "# @package _global_\nrecipe: {name: reaching}\nmodel: {dim: 64}",  # as model=tiny has it
    "encoding/by_model.yaml": "defaults: [{/extra@_here_: '${model}'}]\nname: by_model",
    "extra/tiny.yaml": "base: 1",
    "extra/small.yaml": "base: 2",
    "special.yaml": "defaults: [config, {optional pair: '${task}_${encoding}'}]",
    "pair/copy_rope.yaml": "# @package _global_\nrecipe: {lr: 5}",
    "pair/addition_t5.yaml": "# @package _global_\nrecipe: {lr: 7}",
}


@pytest.mark.parametrize(
    ("name", "products"),
    [
        ("config", [["model=tiny", "model=small"], ["recipe=quick", "recipe=reaching"]]),
        ("config", [["model=tiny", "model=small"], ["encoding=rope", "encoding=by_model"]]),
        ("special", [["task=sort", "task=addition", "task=copy"], ["encoding=nope", "encoding=rope", "encoding=t5"]]),
    ],
)
def test_files_that_depend_on_several_choices(tmp_path: Path, name: str, products: list[list[str]]) -> None:
    """Though the first job, and those that differ from it in one choice, do not show it."""
    for path, text in SPECIAL.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    hydra, files = of_sweep(f"--config-dir={tmp_path}", f"--config-name={name}", "seed=0,1")
    composed = Combinations(hydra, files)
    for job in map(list, product(*products)):
        assert composed(job) == as_data(hydra(job)), job


def test_hydra_composes_few_of_the_jobs_of_a_sweep(hydra: tuple[Hydra, HydraFiles]) -> None:
    calls = []
    composed = Combinations(lambda overrides: calls.append(overrides) or hydra[0](overrides), hydra[1])
    for task, encoding, lr in product(["copy", "sort"], ["nope", "rope", "t5"], [1, 2, 3]):
        composed([f"task={task}", f"encoding={encoding}", f"++recipe.lr={lr}", "++seed=1"])
    assert len(calls) == 5


# With a composition of our own, which counts


FILES: dict[str, dict[str, Any]] = {
    "encoding=a": {"encoding": {"name": "a", "base": 1.0, "more": {"x": 1}}},
    "encoding=b": {"encoding": {"name": "b"}},
    "encoding=reaching": {"encoding": {"name": "c"}, "model": {"dim": 9}},
    "encoding=linked": {"encoding": {"name": "d", "base": "${seed}"}},
    "encoding=open": {"encoding": {"name": "e", "base": "???"}},
    "task=u": {"task": {"name": "u"}},
    "task=v": {"task": {"name": "v"}},
    "+experiment=e": {"recipe": {"lr": 7}},
}


class Counting:
    """Composes, and counts how often; and answers for FILES."""

    def __init__(self) -> None:
        self.calls = 0

    def is_simple(self, group: str, choice: str) -> bool:
        return choice != "reaching"

    def is_fixed(self, overrides: list[str]) -> bool:
        return True

    def __call__(self, overrides: list[str]) -> DictConfig:
        self.calls += 1
        base: dict[str, Any] = {"seed": 0, "encoding": {}, "task": {}, "model": {"dim": 1}, "recipe": {"lr": 1}}
        config = OmegaConf.create(base | {"hydra": {"job": 1}})
        for override in overrides:
            if override in FILES:
                config = OmegaConf.merge(config, FILES[override])
        for override in overrides:
            if override not in FILES:
                key, _, value = override.lstrip("+").partition("=")
                OmegaConf.update(config, key, yaml.safe_load(value), merge=True, force_add=True)
        assert isinstance(config, DictConfig)
        return config


def test_few_are_composed_for_many() -> None:
    counting = Counting()
    composed, alone = Combinations(counting, counting), Counting()
    jobs = [
        [f"encoding={e}", f"task={t}", f"++recipe.lr={lr}", "++encoding.more.y=[1, 2]", f"++seed={seed}"]
        for e in "ab"
        for t in "uv"
        for lr in range(5)
        for seed in range(20)
    ]
    found = [composed(job) for job in jobs]
    assert counting.calls == 4  # the choices of the first, each other choice alone, and the first as a whole
    assert found == [as_data(alone(job)) for job in jobs]


@pytest.mark.parametrize("choice", ["reaching", "linked", "open"])
def test_a_choice_that_says_more_than_its_own_node(choice: str) -> None:
    composed, alone = Combinations(Counting(), Counting()), Counting()
    for encoding in ("a", choice, "b"):
        for task in "uv":
            for seed in (3, 4):
                job = [f"encoding={encoding}", f"task={task}", f"++seed={seed}"]
                job += ["++encoding.base=5"] if choice == "open" else []
                assert composed(job) == as_data(alone(job)), job


@pytest.mark.parametrize(
    "given",
    [
        ["++recipe.lr=${seed}"],
        ["++recipe.lr=1", "++recipe.lr=2"],
        ["++encoding={name: z}"],
        ["++encoding.more={z: 1}"],
        ["++recipe.lr.deeper=1"],
        ["++seed=5"],
        ["++recipe={lr: 3}", "++recipe.lr=4", "+experiment=e"],
    ],
)
def test_a_value_that_is_more_than_a_value(given: list[str]) -> None:
    composed, alone = Combinations(Counting(), Counting()), Counting()
    for seed in (3, 4):
        job = ["encoding=a", *given, f"++seed={seed}"]
        assert composed(job) == as_data(alone(job))


def test_a_list_in_the_place_of_a_group_of_keys_is_left_to_hydra() -> None:
    """Though a number there was put together rightly, and so would other lists have been."""
    composed, alone = Combinations(Counting(), Counting()), Counting()
    number, numbers = (["encoding=a", f"++encoding.more={value}", "++seed=1"] for value in ("5", "[1, 2]"))
    assert composed(number) == as_data(alone(number))
    with pytest.raises(Exception) as by_hydra:
        alone(numbers)
    with pytest.raises(type(by_hydra.value)):
        composed(numbers)


def test_where_what_is_put_together_is_wrong_hydra_is_asked() -> None:
    counting = Counting()

    def odd(overrides: list[str]) -> DictConfig:  # a value that is not what the override says
        config = counting(overrides)
        config.recipe.lr = 10 * config.recipe.lr
        return config

    composed = Combinations(odd, counting)
    for lr in (2, 3):
        assert composed(["encoding=a", f"++recipe.lr={lr}", "++seed=1"])["recipe"]["lr"] == 10 * lr
