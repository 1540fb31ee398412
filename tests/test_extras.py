"""Scripts that need more than the package does."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
WITHOUT = """
import runpy, sys

class Absent:
    def find_spec(name, path=None, target=None):
        if name == sys.argv[2]:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Absent)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


@pytest.mark.parametrize(
    ("script", "package", "extra"),
    [
        ("coverage", "scipy", "test"),
        ("peers", "transformers", "peers"),
        ("peers", "x_transformers", "peers"),
        ("wandb_workspace", "wandb_workspaces", "workspace"),
    ],
)
def test_a_script_names_the_extra_that_it_lacks(script: str, package: str, extra: str) -> None:
    command = [sys.executable, "-c", WITHOUT, str(ROOT / "scripts" / f"{script}.py"), package]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2 and not done.stdout
    [line] = done.stderr.splitlines()
    assert line.startswith("error: needs ") and package in line and line.endswith(f": pip install -e '.[{extra}]'")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert any(required.startswith(package.replace("_", "-")) for required in extras[extra])
