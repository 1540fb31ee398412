"""What the README tells a newcomer to write must work as it stands there.

pytest tests/test_readme.py
"""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd
import yaml

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(language: str) -> str:
    [found] = re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)
    return found


def test_the_encoding_of_the_readme_trains_and_is_evaluated(tmp_path: Path) -> None:
    (tmp_path / "cosine_bias.py").write_text(block("python"))
    options = yaml.safe_load(block("yaml"))
    assert options["target"] == "rpe_bench.encodings.cosine_bias.CosineBias"
    overrides = ["encoding=nope", "encoding.name=cosine_bias", "encoding.target=cosine_bias.CosineBias"]
    overrides += ["encoding.period=4.0", "task=copy", "model.dim=16", "model.heads=2", "recipe.steps=2"]
    overrides += ["recipe.batch_size=2", "evaluation.examples=2", "evaluation.lengths=[8,32]", "logger=csv"]
    command = [sys.executable, "-m", "rpe_bench", "run", *overrides]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    [run] = (tmp_path / "results/runs").iterdir()
    assert run.name.startswith("copy-cosine_bias-standard-s0-")
    assert pd.read_csv(run / "eval.csv")["length"].tolist() == [8, 32]


def test_files_that_the_readme_shows_or_links_to_are_there() -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", README) if "://" not in target]
    assert targets
    assert not [target for target in targets if not (ROOT / target).is_file()]
