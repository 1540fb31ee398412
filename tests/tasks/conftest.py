"""What the tests of the tasks share: reading the worked example out of a task's docstring."""

import inspect
from collections.abc import Callable

import pytest

from rpe_bench.tasks.base import IGNORE, Task

Diagram = dict[str, list[int]]


@pytest.fixture
def diagram() -> Callable[..., Diagram]:
    """The rows of a task's diagram by name; of its second one for number=1.

    '.' stands for IGNORE and a name such as MARK for the task's token `mark`. A '^' of the row `readout` stands for the
    index above it.
    """

    def read(task: Task, number: int = 0) -> Diagram:
        def value(word: str) -> int:
            if word == ".":
                return IGNORE
            return int(word) if word.isdigit() else getattr(task, word.lower())

        lines = [line for line in inspect.getdoc(type(task)).splitlines() if line.startswith("    ")]
        first = [at for at, line in enumerate(lines) if line.split()[0] == "index"][number]
        raw: dict[str, str] = {}
        for line in lines[first:]:
            name = line.split()[0]
            if name == "index" and raw:
                break
            raw[name] = line
        rows = {name: [value(word) for word in raw[name].split()[1:]] for name in ("index", "tokens", "targets")}
        assert rows["index"] == list(range(len(rows["tokens"])))
        if "readout" in raw:
            rows["readout"] = [int(raw["index"][at]) for at, mark in enumerate(raw["readout"]) if mark == "^"]
        return rows

    return read
