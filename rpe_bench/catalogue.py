"""The choices of each config group, read from their files alone: listing them imports no torch."""

import ast
import importlib.util
from functools import cache
from itertools import takewhile
from pathlib import Path
from typing import Any

import yaml

from rpe_bench.errors import ConfigError, blamed_on, nearest

_PACKAGE = Path(__file__).resolve().parent
CONF = next(folder for folder in (_PACKAGE / "conf", _PACKAGE.parent / "conf") if (folder / "config.yaml").is_file())
"""The config directory: inside the package once installed, top-level in a checkout."""

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C, where there is one, is eight times as fast."""

GROUPS = ("encoding", "task", "positions", "model", "recipe", "logger")
"""The groups of which every run has one choice; `experiment` is one more, of overrides."""


def choices(group: str) -> list[str]:
    """The ids of a group's choices: the names of its files."""
    return sorted(file.stem for file in (CONF / group).glob("*.yaml"))


def encodings() -> list[str]:
    """The ids of the encodings that there are: `custom` waits for a class."""
    return [name for name in choices("encoding") if read("encoding", name).get("target")]


def read(group: str, name: str) -> dict[str, Any]:
    """The keys of one choice.

    Raises:
        ConfigError: there is no such choice.
    """
    if name not in choices(group):
        raise ConfigError(unknown_choice(group, name, choices(group)))
    return yaml.load((CONF / group / f"{name}.yaml").read_text(), LOADER) or {}


def unknown_choice(group: str, name: str, allowed: list[str]) -> str:
    return f"{group}={name}: no such {group}{nearest(name, allowed)} (choose from {', '.join(allowed) or 'none yet'})"


def summary(group: str, name: str) -> str:
    """One line on a choice: the comment on top of its file if there is one.

    Else the first paragraph of a docstring: the class's for a task, with the property that the task isolates; else the
    module's, since it names the paper, or the class's where the module has none. Where there is no class, the keys.
    """
    lines = (CONF / group / f"{name}.yaml").read_text().splitlines()
    comments = [line for line in takewhile(lambda line: line.startswith("#"), lines) if "@package" not in line]
    if comments:
        return comments[0].lstrip("# ").strip()
    options = read(group, name)
    if "target" not in options:
        return ", ".join(f"{key} {value}" for key, value in options.items() if key != "name")
    module, _, class_name = options["target"].rpartition(".")
    parsed = tree(module)
    if parsed is None:
        return f"(no module {module})"
    found = class_in(parsed, class_name)
    if found is None:
        return f"(no class {class_name} in {module})"
    of_module = ast.get_docstring(parsed) if group != "task" else None
    text = " ".join((of_module or ast.get_docstring(found) or "").partition("\n\n")[0].split())
    isolates = constants(found).get("isolates")
    return f"{text} [{isolates}]" if isolates else text


@cache
def tree(module: str) -> ast.Module | None:
    """The source of a module, parsed; None where there is no such module.

    Raises:
        ConfigError: it cannot be parsed.
    """
    source = _source(module)
    if source is None or not source.is_file():  # some modules are built into Python
        return None
    with blamed_on(module):
        return ast.parse(source.read_bytes())


def class_in(parsed: ast.Module, name: str) -> ast.ClassDef | None:
    return next((node for node in parsed.body if isinstance(node, ast.ClassDef) and node.name == name), None)


def constants(node: ast.ClassDef) -> dict[str, Any]:
    """The attributes of a class that are constants, by name."""
    found: dict[str, Any] = {}
    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        if isinstance(value, ast.Constant):
            found |= {target.id: value.value for target in targets if isinstance(target, ast.Name)}
    return found


def _source(module: str) -> Path | None:
    """The file of a module, without importing it or the packages around it."""
    top, *rest = module.split(".")
    spec = importlib.util.find_spec(top)
    if spec is None:
        return None
    if not rest:
        return Path(spec.origin) if spec.origin else None
    for folder in spec.submodule_search_locations or []:
        for file in (Path(folder, *rest).with_suffix(".py"), Path(folder, *rest, "__init__.py")):
            if file.is_file():
                return file
    return None
