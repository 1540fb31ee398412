"""The configs of a sweep's jobs, put together from few that Hydra composes: it takes a tenth of a second for each.

What a job is composed of are its choices of groups, then the values that its other overrides set. A choice is a file,
which says what its own node of the config is and nothing of other nodes; so a choice is composed once, whatever it is
combined with. A value is set last, by its key. Where this is not so, Hydra composes the job as a whole:

- a file that is put elsewhere than in its own node, by `@package`, or has a defaults list of its own
- a defaults list that names files by choices, such as `optional special: ${task}_${encoding}`
- interpolations, whose value depends on other keys, and missing values
- overrides in other forms than GROUP=CHOICE and KEY=VALUE

What is put together is held against what Hydra composes, for the first job that has the same keys.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_loader import ConfigLoader
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.plugins.config_source import ConfigResult
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

from rpe_bench import catalogue
from rpe_bench.compose import COMPOSITION_ERRORS, as_data

_CHOICE = re.compile(rf"(?P<group>{'|'.join(catalogue.GROUPS)})=(?P<choice>['\w.+-]+)")
_VALUE = re.compile(r"\+\+(?P<key>(?!hydra\b)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)=.*", re.DOTALL)
_SEED = re.compile(r"\+\+seed=(0|[1-9][0-9]*)")

Data = dict[str, Any]
Shape = tuple[str, ...]
"""Of a job: its groups, the keys of its values, and its overrides of other forms, in their order."""


class _Other(Exception):
    """A job that only Hydra can compose."""


class Files(Protocol):
    """How the files hang together that Hydra composes jobs of."""

    def is_simple(self, group: str, choice: str) -> bool:
        """Whether the file of a choice says what is in its own node, and no more."""

    def is_fixed(self, overrides: list[str]) -> bool:
        """Whether no defaults list names a file by the choices of groups, of the files that overrides lead to."""


@dataclass
class HydraFiles:
    """Answers by the files that a config loader finds, for the master config of a sweep."""

    loader: ConfigLoader
    config: DictConfig

    def is_simple(self, group: str, choice: str) -> bool:
        found = self._read(f"{group}/{choice}")
        return found is not None and found.header.get("package") in (None, group) and not found.defaults_list

    def is_fixed(self, overrides: list[str]) -> bool:
        node = self.config.hydra
        given = [*node.overrides.hydra, *overrides]
        defaults = self.loader.compute_defaults_list(node.job.config_name, given, RunMode.RUN).defaults
        found = (self._read(path) for path in {default.config_path for default in defaults if default.config_path})
        return not any("${" in repr(file.defaults_list) for file in found if file is not None)

    def _read(self, path: str) -> ConfigResult | None:
        assert isinstance(self.loader, ConfigLoaderImpl)
        return self.loader.repository.load_config(path)


@dataclass
class Combinations:
    """Composes jobs by their overrides, which are as `rpe_bench.compose.judged_by_us` leaves them.

    hydra    Hydra's own composition of all the overrides of a job
    files    what that composes them of
    """

    hydra: Callable[[list[str]], DictConfig]
    files: Files
    _but_seed: dict[tuple[str, ...], Data | None] = field(default_factory=dict)
    """Overrides but for the seed -> what they compose to; None where other keys may depend on the seed."""
    _is_sound: dict[Shape, bool] = field(default_factory=dict)
    _first: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, str]] = field(default_factory=dict)
    """Overrides of other forms and groups -> the choices that others are compared with."""
    _composed: dict[tuple[str, ...], Data | Exception] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)
    _answers: dict[str, bool] = field(default_factory=dict)
    _parser: OverridesParser = field(default_factory=OverridesParser.create)

    def __call__(self, overrides: Sequence[str]) -> Data:
        """What `as_data` gives of Hydra's composition; errors are Hydra's and OmegaConf's."""
        seeds = [override for override in overrides if _SEED.fullmatch(override)]
        rest = tuple(override for override in overrides if override not in seeds)
        if len(seeds) != 1 or any(override.lstrip("+~").startswith("seed") for override in rest):
            return self._compose(overrides)[0]
        if rest not in self._but_seed:
            data, is_literal = self._compose(overrides)
            self._but_seed[rest] = data if is_literal else None
        found = self._but_seed[rest]
        return self._compose(overrides)[0] if found is None else {**found, "seed": int(seeds[0].partition("=")[2])}

    def _compose(self, overrides: Sequence[str]) -> tuple[Data, bool]:
        """What overrides compose to, and whether each value in it stands for itself."""
        try:
            shape, data = self._put_together(overrides)
        except _Other:
            shape, data = None, {}
        if shape is not None and self._is_sound.get(shape):
            return data, True
        whole = self.hydra(list(overrides))
        found = as_data(whole)
        if shape is not None:
            self._is_sound.setdefault(shape, found == data)
        return found, _is_literal(_unresolved(whole))

    def _put_together(self, overrides: Sequence[str]) -> tuple[Shape, Data]:
        """Raises _Other where that cannot be done."""
        choices: dict[str, str] = {}
        values: list[str] = []
        others: list[str] = []
        shape: list[str] = []
        for override in overrides:
            if match := _CHOICE.fullmatch(override):
                if match["group"] in choices or not self._asked(
                    self.files.is_simple, match["group"], match["choice"].strip("'")
                ):
                    raise _Other
                choices[match["group"]] = match["choice"]
                shape.append(match["group"])
            elif match := _VALUE.fullmatch(override):
                values.append(override)
                shape.append(f"++{match['key']}")
            else:
                others.append(override)
                shape.append(override)
        data = self._of_choices(tuple(others), choices)
        for override in values:
            _set(data, override.partition("=")[0].lstrip("+").split("."), self._value(override))
        return tuple(shape), data

    def _of_choices(self, others: tuple[str, ...], choices: dict[str, str]) -> Data:
        first = self._first.setdefault((others, tuple(choices)), choices)
        if not self._asked(self.files.is_fixed, [*others, *map("=".join, first.items())]):
            raise _Other
        data = dict(self._literal(others, first))
        for group, choice in choices.items():
            if choice == first[group]:
                continue
            data[group] = self._literal(others, {**first, group: choice})[group]
        return data

    def _asked(self, question: Callable[..., bool], *about: Any) -> bool:
        """The answer of `files`, which is asked once; no where there are none, as Hydra then says in its own way."""
        key = repr((question.__name__, about))
        if key not in self._answers:
            try:
                self._answers[key] = question(*about)
            except COMPOSITION_ERRORS:
                self._answers[key] = False
        return self._answers[key]

    def _literal(self, others: tuple[str, ...], choices: dict[str, str]) -> Data:
        """What choices compose to, with no values set; _Other where it depends on values yet to be set."""
        key = (*others, *(f"{group}={choice}" for group, choice in choices.items()))
        if key not in self._composed:
            try:
                self._composed[key] = _unresolved(self.hydra(list(key)))
            except COMPOSITION_ERRORS as error:
                self._composed[key] = error
        found = self._composed[key]
        if isinstance(found, Exception):
            raise found
        if not _is_literal(found):
            raise _Other
        return found

    def _value(self, override: str) -> Any:
        if override not in self._values:
            self._values[override] = self._parser.parse_overrides([override])[0].value()
        value = self._values[override]
        if isinstance(value, dict) or not _is_literal(value):
            raise _Other
        return value


def _unresolved(config: DictConfig) -> Data:
    data = OmegaConf.to_container(config, resolve=False)
    assert isinstance(data, dict)
    return {str(key): value for key, value in data.items() if key != "hydra"}


def _is_literal(value: Any) -> bool:
    """Whether plain data is free of interpolations, and nothing in it is missing."""
    if isinstance(value, dict):
        return all(map(_is_literal, value.values()))
    if isinstance(value, list):
        return all(map(_is_literal, value))
    return not isinstance(value, str) or ("${" not in value and value != "???")


def _set(data: Data, path: Sequence[str], value: Any) -> None:
    """Set a value by its key, in copies of the nodes on the way, which others share; _Other where it would not be
    set but merged, or replace what is no node."""
    for part in path[:-1]:
        node = data.get(part, {})
        if not isinstance(node, dict):
            raise _Other
        node = dict(node)
        data[part] = node
        data = node
    if isinstance(data.get(path[-1]), dict):
        raise _Other
    data[path[-1]] = value
