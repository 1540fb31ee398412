"""What a run takes over from the finished run that it begins with: weights, and where its training data ended.

The trunk has to be the same. What an encoding had learned goes with it where both encodings are of one class, and is
otherwise drawn from the seed. The optimiser starts anew.
"""

from collections.abc import Mapping
from typing import Any

import torch

from rpe_bench.config import Config, Start
from rpe_bench.errors import ConfigError
from rpe_bench.model import Transformer
from rpe_bench.trained import Trained, digest_of

ENCODINGS = "encodings."
"""What the names of an encoding's parameters begin with, among those of a model."""


def pinned(config: Config) -> Start:
    """The `start` of a config with all that is to be recorded of the run that it names.

    Raises:
        ConfigError: there is no such run, it is not finished or not whole, or not one that this config can begin with.
    """
    start = config.start
    if start.run is None:
        given = [f"start.{key}={value}" for key, value in start.model_dump().items() if value is not None]
        raise ConfigError(f"{given[0]}: goes with start.run, the directory of a finished run")
    try:
        source = Trained.at(start.run)
        weights = source.model().state_dict()
    except ConfigError as error:
        raise ConfigError(*(f"start.run={line}" for line in error.errors)) from error
    is_same = source.config.encoding.target == config.encoding.target
    found = Start(
        run=start.run,
        run_id=source.config.run_id,
        digest=digest_of(weights),
        encoding=start.encoding or ("kept" if is_same else "drawn"),
        steps=source.steps,
        line=source.config.line,
    )
    errors = [
        f"start.{key}={given}: is of another run: that in {start.run} has {getattr(found, key)}"
        for key, given in start.model_dump(exclude={"run", "encoding"}).items()
        if given not in (None, getattr(found, key))
    ]
    errors += _other_trunk(config, source.config)
    if found.encoding == "kept" and not errors:
        errors = [f"encoding={config.encoding.name}: {line}" for line in _misfits(config, source.config, weights)]
    if config.model_copy(update={"start": found}).run_dir.resolve() == start.run.resolve():
        errors.append(f"start.run={start.run}: is where the new run goes; move one of them")
    if errors:
        raise ConfigError(*errors)
    return found


def _other_trunk(config: Config, source: Config) -> list[str]:
    """How the model of a config differs from that of another, but for the encoding: a line each."""
    lines = []
    for key in ("layers", "dim", "heads", "causal"):
        mine, theirs = (str(getattr(c.model, key)).lower() for c in (config, source))
        if mine != theirs:
            lines.append(f"model.{key}={mine}: must be that of start.run, {theirs}")
    task, trained = config.build_task(), source.build_task()
    if (task.vocabulary, task.classes) != (trained.vocabulary, trained.classes):
        lines.append(
            f"task={config.task.name}: has {task.vocabulary} token types and {task.classes} answers, but the model in"
            f" start.run is for the {trained.vocabulary} and {trained.classes} of task={source.task.name}"
        )
    return lines


def _misfits(config: Config, source: Config, weights: Mapping[str, torch.Tensor]) -> list[str]:
    """Why the parameters of an encoding cannot be taken over."""
    if config.encoding.target != source.encoding.target:
        return [f"is of another class than {source.encoding.name} in start.run, so that start.encoding is drawn"]
    theirs = {name.removeprefix(ENCODINGS): tuple(w.shape) for name, w in weights.items() if name.startswith(ENCODINGS)}
    mine = shapes_of(config)
    anew = "start.encoding=drawn draws them anew"
    if mine.keys() != theirs.keys():
        return [f"learns {_list(mine)}, but in start.run {_list(theirs)} ({anew})"]
    return [
        f"{name.partition('.')[2]} is {_shape(mine[name])}, but {_shape(theirs[name])} in start.run ({anew})"
        for name in mine
        if mine[name] != theirs[name]
    ][:1]


def shapes_of(config: Config) -> dict[str, tuple[int, ...]]:
    """The shapes of what an encoding learns, by names that tell the modules of layers apart."""
    encodings = enumerate(config.build_encodings())
    return {f"{layer}.{name}": tuple(w.shape) for layer, e in encodings for name, w in e.state_dict().items()}


def _list(names: Mapping[str, Any]) -> str:
    return ", ".join(names) or "nothing"


def _shape(shape: tuple[int, ...]) -> str:
    return " x ".join(map(str, shape)) or "one number"


def begin(model: Transformer, start: Start) -> None:
    """Give a model whose weights are drawn those of the run that it begins with.

    Raises:
        ConfigError: the run is not there any more, or its weights are no longer those of `start.digest`.
    """
    assert start.run is not None
    weights = Trained.at(start.run).weights()
    if digest_of(weights) != start.digest:
        raise ConfigError(f"start.run={start.run}: its weights have changed, and are no longer {start.digest}")
    if start.encoding == "drawn":
        drawn = {name: weight for name, weight in model.state_dict().items() if name.startswith(ENCODINGS)}
        weights = {name: weight for name, weight in weights.items() if not name.startswith(ENCODINGS)} | drawn
    model.load_state_dict(weights)
