"""Parameters that are groups of keys of their own."""

import sys
from pathlib import Path
from typing import Any

import pytest

from rpe_bench.cli import main
from rpe_bench.config import resolve
from rpe_bench.encodings.scalings.yarn import YaRN
from rpe_bench.errors import ConfigError

NAMES = "linear, ntk, dynamic_ntk, by_parts, yarn, longrope, llama3"
OF_YARN = "name, factor, original_length, ramp, beta_fast, beta_slow, truncate, attention_factor"


@pytest.mark.parametrize(
    ("scaling", "said"),
    [
        ({"name": "yrn", "factor": 4}, f".name=yrn: must be one of {NAMES}; did you mean yarn?"),
        ({"name": [1], "factor": 4}, f".name=[1]: must be one of {NAMES}"),
        ({"factor": 4}, f".name: is missing: must be one of {NAMES}"),
        (
            {"name": "yarn", "factor": 4, "factr": 8},
            f".factr=8: unknown key; did you mean encoding.scaling.factor? (keys of encoding.scaling: {OF_YARN})",
        ),
        (
            {"name": "yarn", "factr": 8},
            f".factr=8: unknown key; did you mean encoding.scaling.factor? (keys of encoding.scaling: {OF_YARN})",
        ),
        ({"name": "ntk", "factor": 4, "ramp": "x"}, ".ramp=x: unknown key (keys of encoding.scaling: name, factor)"),
        ({"name": "yarn"}, ".factor: is missing"),
        ({"name": "yarn", "factor": "big"}, ".factor=big: must be a number"),
        ({"name": "yarn", "factor": True}, ".factor=true: must be a number"),
        ({"name": "yarn", "factor": float("nan")}, ".factor=NaN: must be finite"),
        ({"name": "yarn", "factor": 0.5}, ": factor=0.5 must be at least 1"),
        ({"name": "yarn", "factor": 4, "truncate": 1}, ".truncate=1: must be true or false"),
        ({"name": "yarn", "factor": 4, "original_length": 2.5}, ".original_length=2.5: must be an integer or null"),
        ({"name": "yarn", "factor": 4, "ramp": "x"}, ".ramp=x: must be one of index or rotations"),
        ({"name": "longrope", "factor": 4, "long_factor": [1, "x"]}, ".long_factor[1]=x: must be a number"),
        ("yarn", "=yarn: must be a group of keys or null"),
        ([1], "=[1]: must be a group of keys or null"),
    ],
)
def test_what_is_wrong_in_a_group_is_said_under_its_key(make_config, scaling: Any, said: str) -> None:
    with pytest.raises(ConfigError) as error:
        make_config("copy", "rope", {"encoding.scaling": scaling})
    assert error.value.errors == [f"encoding.scaling{said}"]


def test_a_group_that_does_not_fit_the_model_is_refused(make_config) -> None:
    with pytest.raises(ConfigError) as error:
        scaling = {"name": "longrope", "factor": 4, "long_factor": [1.0, 2.0, 3.0]}
        make_config("copy", "rope", {"encoding.scaling": scaling})
    assert error.value.errors == ["encoding=rope: long_factor has 3 numbers, and must have 4, one a pair that turns"]


def test_a_group_is_spelt_out_and_reads_back(make_config) -> None:
    config = make_config("copy", "rope", {"encoding.scaling": {"name": "yarn", "factor": 8}})
    [encoding] = config.build_encodings()
    assert encoding.scaling == YaRN(factor=8.0)
    shown = config.as_dict()["encoding"]["scaling"]
    assert ", ".join(shown) == OF_YARN
    assert (shown["name"], shown["factor"], shown["original_length"]) == ("yarn", 8.0, None)
    assert resolve(config.as_dict()) == config
    preset = make_config("copy", "rope_yarn", {"encoding.scaling.factor": 8, "encoding.name": "rope"})
    assert preset.run_id == config.run_id
    assert make_config("copy", "rope_yarn").run_id != make_config("copy", "rope_by_parts").run_id


OWN = """
from dataclasses import dataclass
from rpe_bench.encodings.base import Encoding

@dataclass
class Window:
    size: int
    soft: float = 0.0

class Own(Encoding):
    def __init__(self, geometry, window: Window | None = None):
        super().__init__(geometry)
        self.window = window
"""


def test_a_group_of_a_class_of_ones_own(make_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "own_group.py").write_text(OWN)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_group", raising=False)
    own = {"encoding.target": "own_group.Own"}
    config = make_config("copy", "nope", own | {"encoding.window": {"size": 3}})
    assert config.as_dict()["encoding"]["window"] == {"size": 3, "soft": 0.0}
    with pytest.raises(ConfigError) as error:
        make_config("copy", "nope", own | {"encoding.window": {"size": 2.5, "sift": 1}})
    assert error.value.errors == [
        "encoding.window.size=2.5: must be an integer",
        "encoding.window.sift=1: unknown key; did you mean encoding.window.soft? (keys of encoding.window: size, soft)",
    ]


UNFINISHED = """
from rpe_bench.encodings.base import DistanceBias
from rpe_bench.tasks.copy import Copy
from rpe_bench.tasks.base import Task

class Bias(DistanceBias):
    pass

class Question(Task):
    length = Copy.length
"""


@pytest.mark.parametrize(
    ("group", "name", "said"),
    [("encoding", "Bias", "has to define of_offset"), ("task", "Question", "has to define chance and sample")],
)
def test_a_class_that_lacks_what_it_owes_is_refused(
    make_config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, group: str, name: str, said: str
) -> None:
    (tmp_path / "unfinished.py").write_text(UNFINISHED)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "unfinished", raising=False)
    with pytest.raises(ConfigError) as error:
        make_config("copy", "nope", {f"{group}.target": f"unfinished.{name}"})
    assert error.value.errors == [f"{group}.target=unfinished.{name}: {said}"]


@pytest.mark.parametrize(
    ("overrides", "status", "said"),
    [
        (["encoding=rope_yarn", "encoding.scaling.factor=8", "--cfg", "job"], 0, "factor: 8"),
        (["encoding=rope", "encoding.scaling={name:ntk,factor:4}", "--cfg", "job"], 0, "name: ntk"),
        (["encoding=rope_yarn", "encoding.scaling.factr=8"], 2, "encoding.scaling.factr=8: unknown key; did you mean"),
        (["encoding=rope", "encoding.scaling={name:nkt,factor:4}"], 2, "encoding.scaling.name=nkt: must be one of"),
        (["encoding=rope_ntk", "encoding.scaling.factor=big"], 2, "encoding.scaling.factor=big: must be a number"),
    ],
)
def test_a_group_on_the_command_line(
    capsys: pytest.CaptureFixture[str], overrides: list[str], status: int, said: str
) -> None:
    assert main(["run", "task=copy", *overrides]) == status
    captured = capsys.readouterr()
    assert said in captured.out + captured.err
    if status:
        assert len(captured.err.strip().splitlines()) == 1
