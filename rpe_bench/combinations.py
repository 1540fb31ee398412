"""The configs of a sweep's jobs, put together from few that Hydra composes: it takes a tenth of a second for each.

What a job is composed of are its choices of groups, then the values that its other overrides set. A choice is a file,
which says what its own node of the config is and nothing of other nodes; so a choice is composed once, whatever it is
combined with. A value is set last, by its key. Where this is not so, Hydra composes the job as a whole:

- a file that reaches into other nodes, as can be seen by what it changes
- interpolations, whose value depends on other keys, and missing values
- overrides in other forms than GROUP=CHOICE and KEY=VALUE

What is put together is held against what Hydra composes, for the first job that has the same keys.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig, OmegaConf

from rpe_bench import catalogue
from rpe_bench.compose import COMPOSITION_ERRORS, as_data

_CHOICE = re.compile(rf"(?P<group>{'|'.join(catalogue.GROUPS)})=(?P<choice>['\w.+-]+)")
_VALUE = re.compile(r"\+\+(?P<key>(?!hydra\b)[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)=.*", re.DOTALL)
_SEED = re.compile(r"\+\+seed=(0|[1-9][0-9]*)")

Data = dict[str, Any]
Shape = tuple[tuple[str, ...], tuple[str, ...], tuple[str, ...]]
"""Of a job: overrides of other forms, its groups, and the keys of its values."""


class _Other(Exception):
    """A job that only Hydra can compose."""


@dataclass
class Combinations:
    """Composes jobs by their overrides, which are as `rpe_bench.compose.judged_by_us` leaves them.

    hydra    Hydra's own composition of all the overrides of a job
    """

    hydra: Callable[[list[str]], DictConfig]
    _but_seed: dict[tuple[str, ...], Data | None] = field(default_factory=dict)
    """Overrides but for the seed -> what they compose to; None where other keys may depend on the seed."""
    _is_sound: dict[Shape, bool] = field(default_factory=dict)
    _first: dict[tuple[tuple[str, ...], tuple[str, ...]], dict[str, str]] = field(default_factory=dict)
    """Overrides of other forms and groups -> the choices that others are compared with."""
    _composed: dict[tuple[str, ...], Data | Exception] = field(default_factory=dict)
    _values: dict[str, Any] = field(default_factory=dict)
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
        for override in overrides:
            if match := _CHOICE.fullmatch(override):
                if match["group"] in choices:
                    raise _Other
                choices[match["group"]] = match["choice"]
            else:
                (values if _VALUE.fullmatch(override) else others).append(override)
        keys = tuple(value.partition("=")[0].lstrip("+") for value in values)
        data = self._of_choices(tuple(others), choices)
        for key, override in zip(keys, values, strict=True):
            _set(data, key.split("."), self._value(override))
        return (tuple(others), tuple(choices), keys), data

    def _of_choices(self, others: tuple[str, ...], choices: dict[str, str]) -> Data:
        first = self._first.setdefault((others, tuple(choices)), choices)
        data = dict(self._literal(others, first))
        for group, choice in choices.items():
            if choice == first[group]:
                continue
            alone = self._literal(others, {**first, group: choice})
            base = self._literal(others, first)
            if {**alone, group: None} != {**base, group: None}:
                return dict(self._literal(others, choices))
            data[group] = alone[group]
        return data

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
