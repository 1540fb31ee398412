"""When make installs, and when it leaves .venv alone. A shell script stands in for Python: nothing is downloaded."""

import itertools
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# The interpreter, .venv/bin/python and the commands that make runs from .venv, all in one; notes venv and pip in `log`.
STAND_IN = """#!/bin/sh
case "$1 $2" in
    "-c "*) echo stand-in ;;
    "-m venv") echo venv >> log; rm -rf .venv; mkdir -p .venv/bin
        for name in python pytest rpe-bench ruff mypy; do cp "$0" ".venv/bin/$name"; done ;;
    "-m pip") for last; do :; done; echo "pip $last" >> log; test ! -e broken ;;
esac
"""


class Checkout:
    """A folder with what set-up reads: `make` runs there; `installed` tells what the latest call made and installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, folder)
        self.python = folder.parent / "a python"
        self.python.write_text(STAND_IN)
        self.python.chmod(0o755)

    def make(self, *arguments: str, python: str | Path | None = None) -> subprocess.CompletedProcess[str]:
        (self.folder / "log").unlink(missing_ok=True)
        # make hands its own flags and variables down to a make inside a test.
        handed_down = {"MAKEFLAGS", "MAKELEVEL", "PYTHON", "ARGS"}
        env = {name: value for name, value in os.environ.items() if name not in handed_down}
        command = ["make", f"PYTHON={python or self.python}", *arguments]
        return subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True)

    def installed(self, *arguments: str) -> list[str]:
        done = self.make(*arguments)
        assert done.returncode == 0, done.stderr
        log = self.folder / "log"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path / "a folder with spaces")


def test_nothing_is_installed_twice(checkout: Checkout) -> None:
    assert checkout.installed("test") == ["venv", "pip .[test]"]
    assert checkout.installed("test") == []
    assert checkout.installed("demo") == []


def test_further_extras_are_added_to_what_is_there(checkout: Checkout) -> None:
    assert checkout.installed("demo") == ["venv", "pip ."]
    assert checkout.installed("test") == ["pip .[test]"]
    assert checkout.installed("lint") == ["pip .[dev]"]
    assert checkout.installed("demo", "test", "lint") == []


@pytest.mark.parametrize("name", ["pyproject.toml", "constraints.txt"])
def test_changed_requirements_are_installed(checkout: Checkout, name: str) -> None:
    checkout.installed("test")
    file = checkout.folder / name
    later = file.stat().st_mtime + 3600
    os.utime(file, (later, later))
    assert checkout.installed("demo") == ["pip ."]
    file.write_text(file.read_text() + "# changed\n")
    os.utime(file, (0, 0))  # as a file unpacked from an archive may be
    assert checkout.installed("test") == ["pip .[test]"]
    assert checkout.installed("test") == []


def test_a_moved_checkout_gets_a_new_environment(checkout: Checkout) -> None:
    checkout.installed("test")
    checkout.folder = checkout.folder.rename(checkout.folder.with_name("elsewhere"))
    assert checkout.installed("test") == ["venv", "pip .[test]"]


def test_a_lost_interpreter_gets_a_new_environment(checkout: Checkout) -> None:
    checkout.installed("test")
    python = checkout.folder / ".venv/bin/python"
    python.unlink()
    python.symlink_to("/nonexistent/python")
    assert checkout.installed("test") == ["venv", "pip .[test]"]


def test_another_interpreter_gets_a_new_environment(checkout: Checkout) -> None:
    checkout.installed("test")
    checkout.python.write_text(STAND_IN.replace("echo stand-in", "echo another"))
    assert checkout.installed("test") == ["venv", "pip .[test]"]


def test_an_unfinished_installation_does_not_count(checkout: Checkout) -> None:
    checkout.installed("demo")
    (checkout.folder / "broken").touch()
    assert checkout.make("test").returncode != 0
    (checkout.folder / "broken").unlink()
    assert checkout.installed("demo") == ["venv", "pip ."]


def test_an_unfit_interpreter_is_named_in_one_line_and_nothing_is_touched(checkout: Checkout) -> None:
    checkout.installed("demo")
    done = checkout.make("demo", python="/nonexistent/python")
    message, verdict = done.stderr.splitlines()
    assert message.startswith("PYTHON=/nonexistent/python is not Python 3.11 or newer")
    assert done.returncode == 2 and verdict.startswith("make: ***")
    assert checkout.installed("demo") == []


def test_every_requirement_is_pinned() -> None:
    def name(requirement: str) -> str:
        return re.match(r"[\w.-]+", requirement)[0].lower().replace("_", "-")

    pins = {name(line) for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = itertools.chain(project["dependencies"], *project["optional-dependencies"].values())
    assert {name(requirement) for requirement in wanted} <= pins | {name(project["name"])}
