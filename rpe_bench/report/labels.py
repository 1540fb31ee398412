"""What sets runs apart, and how it is said: the labels of their tasks and encodings."""

import math
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Protocol, TypeVar

_T = TypeVar("_T")

NOT_COMPARED = {"seed", "results_dir", "checkpoint", "logger", "sweep", "evaluation.multiples", "start.run"}
"""Keys whose difference doesn't set two runs apart: `evaluation.lengths` already says what the multiples came to, and
`start.line` what a run began with."""

EXECUTION = {"device", "threads", "start.run_id", "start.digest"}
"""Keys that set runs apart only where a seed would otherwise count twice: those that change a number by rounding alone,
and what says which of several like runs, one a seed, a run began with."""

IMPLIED = {
    "positions.name": "plain",
    "positions.target": "rpe_bench.positions.plain.Plain",
    "recipe.optimiser": "adamw",
    "recipe.momentum": "null",
    "recipe.schedule": "cosine",
    "recipe.decay_share": "null",
    "recipe.accumulate": "1",
    "recipe.curriculum_start": "null",
    "recipe.curriculum_share": "null",
    **{f"start.{key}": "null" for key in ("run", "run_id", "digest", "encoding", "steps", "line")},
}
"""What the config of a run means that was made before there was a choice."""

DERIVED = {
    "evaluation.lengths": "recipe.train_length",
    "recipe.betas": "recipe.optimiser",
    "recipe.momentum": "recipe.optimiser",
    "recipe.min_lr_ratio": "recipe.schedule",
    "recipe.decay_share": "recipe.schedule",
    "recipe.curriculum_start": "recipe.lengths",
    "recipe.curriculum_share": "recipe.lengths",
    **{f"start.{key}": "recipe.name" for key in ("line", "encoding", "steps")},
    **{
        f"recipe.early_stop.{key}": "recipe.early_stop.metric"
        for key in ("every", "patience", "min_improvement", "threshold", "examples", "keep")
    },
}
"""Key -> the key that it usually follows from, where that is not the name of its section, and then is not shown
beside."""


class Run(Protocol):
    """One directory under runs/, as it is labelled."""

    directory: str
    status: str
    reason: str
    config: dict[str, str]
    """Flat: dotted key -> the value as it is shown."""
    task_label: str
    encoding_label: str


def label(runs: list[Run]) -> None:
    """Give finished runs their labels, so that no two with the same ones have the same seed.

    The first of several runs that agree in everything stays, the others become duplicates.
    """
    for task in _grouped(runs, lambda run: run.config["task.name"]):
        for run, variant in zip(task, variants([_part(run, _about_task) for run in task]), strict=True):
            run.task_label = labelled(run.config["task.name"], variant)
    positions = _positions(runs)
    for encoding in _grouped(runs, lambda run: run.config["encoding.name"]):
        by_encoding = variants([_part(run, _about_encoding) for run in encoding])
        parts = [
            ", ".join(text for text in (part, positions[run.directory]) if text)
            for run, part in zip(encoding, by_encoding, strict=True)
        ]
        # Device and threads are asked only where the rest leaves one seed in twice.
        execution = {run.directory: "" for run in encoding}
        for line in _grouped(list(zip(encoding, parts, strict=True)), lambda pair: (pair[0].task_label, pair[1])):
            same = [run for run, _ in line]
            if len({run.config["seed"] for run in same}) < len(same):
                by_execution = variants([_part(run, EXECUTION.__contains__) for run in same])
                execution.update((run.directory, variant) for run, variant in zip(same, by_execution, strict=True))
        for run, part in zip(encoding, parts, strict=True):
            variant = ", ".join(text for text in (part, execution[run.directory]) if text)
            run.encoding_label = labelled(run.config["encoding.name"], variant)
    for same in _grouped(runs, lambda run: (run.task_label, run.encoding_label, run.config["seed"])):
        for run in same[1:]:
            run.status, run.reason = "duplicate", f"the seed and configuration of {same[0].directory}"


def _positions(runs: list[Run]) -> dict[str, str]:
    """Directory -> the positions that an encoding was given, as its label says them. Plain ones go without saying and
    all others are named, whatever else there is, so that a bare name always stands for the same."""
    found = {}
    plain = IMPLIED["positions.name"]
    for same in _grouped(runs, lambda run: run.config.get("positions.name")):
        name = same[0].config.get("positions.name")
        for run, variant in zip(same, variants([_part(run, _about_positions) for run in same]), strict=True):
            said = "" if name == plain else f"positions={name}"
            found[run.directory] = ", ".join(text for text in (said, variant) if text)
    return found


def variants(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """What sets each flat configuration apart from the others: "" or such as "combine=concatenate, causal=False".

    Equal texts mean equal configurations. Of keys that differ, one that follows from the section's name (`model.dim`
    from `model.name`) isn't shown, nor one that only choices of another name have, and a key is shown by its last part
    where that is clear.
    """
    # What a key says hangs on which configurations there are, not on how many runs have each.
    keys = [tuple(sorted(config.items())) for config in configs]
    texts = _variants([dict(key) for key in dict.fromkeys(keys)])
    by_config = dict(zip(dict.fromkeys(keys), texts, strict=True))
    return [by_config[key] for key in keys]


def _variants(configs: Sequence[Mapping[str, str]]) -> list[str]:
    """`variants` of configurations that are all different."""

    def values(key: str) -> list[str]:
        return [config.get(key, "unset") for config in configs]

    differing = [key for key in sorted({key for c in configs for key in c}) if len(set(values(key))) > 1]

    def follows(key: str) -> bool:
        section = f"{key.split('.')[0]}.name"
        parents = {section, DERIVED.get(key, section)} - {key}
        return any(
            len(set(zip(values(by), values(key), strict=True))) == len(set(values(by)))
            for by in parents.intersection(differing)
        )

    # The name of a model or a recipe explains the most, a list of lengths the least.
    shown = sorted(
        (key for key in differing if not follows(key)), key=lambda k: (not k.endswith(".name"), k in DERIVED)
    )
    short = {key: key.removesuffix(".name").split(".")[-1] for key in shown}
    names = {key: key if list(short.values()).count(name) > 1 else name for key, name in short.items()}

    def belongs(key: str, config: Mapping[str, str]) -> bool:
        """Whether it is for this choice of a section to have the key, rather than for one of another name, and whether
        it has the group of keys that the key is in."""
        group = key.rpartition(".")[0]
        if "." in group and not any(other.startswith(f"{group}.") for other in config):
            return False
        by = f"{key.split('.')[0]}.name"
        return by not in differing or any(key in other for other in configs if other.get(by) == config.get(by))

    return [
        ", ".join(f"{names[key]}={config.get(key, 'unset')}" for key in shown if belongs(key, config))
        for config in configs
    ]


def labelled(name: str, variant: str) -> str:
    """`rope`, or `rope (base=500000)`."""
    return f"{name} ({variant})" if variant else name


def flatten(config: object, prefix: str = "") -> dict[str, str]:
    """A nested configuration as dotted key -> text; different values have different texts, and 1.0 is written 1."""
    if not isinstance(config, Mapping):
        if not prefix:
            raise ValueError("not a mapping")
        return {prefix: _text(config)}
    flat: dict[str, str] = {}
    for key, value in config.items():
        flat.update(flatten(value, f"{prefix}.{key}" if prefix else str(key)))
    return flat


def _text(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, float) and math.isfinite(value):
        short = f"{value:.12g}"
        return short if float(short) == value else repr(value)
    if isinstance(value, list):
        return f"[{','.join(_text(item) for item in value)}]"
    return str(value)


def _part(run: Run, wanted: Callable[[str], bool]) -> dict[str, str]:
    return {key: value for key, value in run.config.items() if wanted(key)}


@cache
def _about_encoding(key: str) -> bool:
    return key.startswith("encoding.")


@cache
def _about_positions(key: str) -> bool:
    return key.startswith("positions.")


@cache
def _about_task(key: str) -> bool:
    """Everything else that could change a number, so that a key of the future sets runs apart too."""
    unimportant = NOT_COMPARED | EXECUTION
    by_line = _about_encoding(key) or _about_positions(key)
    return not by_line and key not in unimportant and key.split(".")[0] not in unimportant


def _grouped(items: list[_T], key: Callable[[_T], object]) -> list[list[_T]]:
    groups: defaultdict[object, list[_T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return list(groups.values())
