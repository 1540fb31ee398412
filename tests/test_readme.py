"""What the README tells a newcomer to write must work as it stands there.

pytest tests/test_readme.py
"""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import yaml

from rpe_bench.cli import main
from rpe_bench.properties import MEASURES, Case

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return found


def test_the_template_of_an_encoding_is_short() -> None:
    assert len(block("python").splitlines()) <= 25


def test_the_encoding_of_the_readme_trains_and_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "cosine_bias.py").write_text(block("python"))
    [command] = re.findall(r"^rpe-bench (run encoding=custom .*)$", README, re.MULTILINE)
    overrides = ["task=copy", "model.dim=16", "model.heads=2", "recipe.steps=2", "recipe.batch_size=2"]
    overrides += ["evaluation.examples=2", "evaluation.lengths=[8,32]", "logger=csv"]
    command = [sys.executable, "-m", "rpe_bench", *command.split(), *overrides]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    [run] = (tmp_path / "results/runs").iterdir()
    assert run.name.startswith("copy-CosineBias-standard-s0-")
    assert yaml.safe_load((run / "config.yaml").read_text())["encoding"]["period"] == 4
    assert pd.read_csv(run / "eval.csv")["length"].tolist() == [8, 32]


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the README's module, in which Python looks for modules."""
    (tmp_path / "cosine_bias.py").write_text(block("python"))
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "cosine_bias", raising=False)
    return tmp_path


def test_the_yaml_of_the_readme_makes_it_a_choice(own_module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = own_module / "conf" / "encoding"
    folder.mkdir(parents=True)
    (folder / "cosine_bias.yaml").write_text(block("yaml"))
    command = ["run", f"--config-dir={own_module / 'conf'}", "encoding=cosine_bias", "encoding.period=4"]
    assert main([*command, "--cfg", "job", "--package", "encoding"]) == 0
    shown = {"name": "cosine_bias", "target": "cosine_bias.CosineBias", "period": 4}
    assert yaml.safe_load(capsys.readouterr().out) == shown


def test_the_encoding_of_the_readme_is_what_it_declares(own_module: Path) -> None:
    case = Case.of(yaml.safe_load(block("yaml")))
    encoding = case.probe().modules[0]
    assert sum(parameter.numel() for parameter in encoding.parameters()) == encoding.geometry.heads
    assert encoding.learns == "H"
    for name in ("translation_invariant", "prefix_consistent", "pairwise", "decays", "needs_tokens"):
        assert (MEASURES[name](case).verdict == "yes") == getattr(encoding, name), name


def test_files_that_the_readme_shows_or_links_to_are_there() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert not [target for target in targets if not (ROOT / target).is_file()]
