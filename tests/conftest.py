"""What tests of different modules share."""

import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from rpe_bench import catalogue
from rpe_bench.config import Config, resolve

# As in a terminal: a shell lets what it starts in the background ignore Ctrl-C, and tests that send one would wait.
signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # the tensors are tiny, and pytest-xdist fills the cores with processes

MakeConfig = Callable[..., Config]


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "long: minutes rather than seconds; run by pytest -m long alone")
    config.addinivalue_line("markers", "slurm: needs a cluster; scripts/slurm_here.sh makes one of this machine")
    config.addinivalue_line("markers", "wandb_server: skipped where a W&B server by others is not installed")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "long" not in config.getoption("markexpr"):
        left = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in left]


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


SMALL = {
    "model.dim": 16,
    "model.heads": 2,
    "recipe.steps": 4,
    "recipe.batch_size": 8,
    "recipe.log_every": 2,
    "evaluation.examples": 32,
    "evaluation.multiples": [0.5, 1, 2],
}


@pytest.fixture
def make_config(tmp_path: Path) -> MakeConfig:
    """A function that resolves the config of a run of a fraction of a second, as the files of conf/ say but for SMALL.

    make_config("retrieval", "alibi", {"recipe.steps": 9}): a dotted key overrides one key.
    """

    def make(task: str = "copy", encoding: str = "rope", overrides: dict[str, Any] | None = None) -> Config:
        raw = yaml.safe_load((catalogue.CONF / "config.yaml").read_text())
        del raw["defaults"], raw["hydra"]
        raw["results_dir"] = str(tmp_path / "results")
        chosen = {"task": task, "encoding": encoding, "positions": "plain"}
        chosen |= {"model": "tiny", "recipe": "quick", "logger": "csv"}
        raw |= {group: catalogue.read(group, name) for group, name in chosen.items()}
        for key, value in (SMALL | {"device": "cpu"} | (overrides or {})).items():
            *groups, leaf = key.split(".")
            section = raw
            for group in groups:
                section = section[group]
            section[leaf] = value
        return resolve(raw)

    return make


@pytest.fixture
def real_server(tmp_path: Path) -> Iterator[Any]:
    """A `wandb_runs.Real`, which takes some seconds to start."""
    from wandb_runs import Real  # here, since it imports wandb

    program = shutil.which("openwandb")
    if program is None:
        pytest.skip("needs the program openwandb, which is not for commercial use, and so is no dependency")
    server = Real(program, tmp_path / "server")
    try:
        yield server
    finally:
        server.stop()
