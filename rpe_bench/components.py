"""From a choice of YAML to an object: the class by its dotted path, its parameters held against its constructor."""

import dataclasses
import importlib
import inspect
import json
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails, to_jsonable_python

from rpe_bench import catalogue
from rpe_bench.encodings.base import Encoding, Geometry
from rpe_bench.errors import ConfigError, blamed_on, nearest
from rpe_bench.positions.base import Frame, Remap
from rpe_bench.seeds import torch_stream
from rpe_bench.tasks.base import Task

NOT_PARAMETERS = ("name", "target")
"""Keys of a component's YAML that are not parameters of its class."""

GIVEN = ("geometry", "frame")
"""Parameters of its class that no YAML gives: what an encoding and a remap are built for."""

BASES: dict[str, type] = {"encoding": Encoding, "task": Task, "positions": Remap}


def load_class(group: str, target: object) -> Any:
    """The class that `target`, the dotted path of an encoding, a task or a remap, names.

    Raises:
        ConfigError: there is none, its module cannot be imported, or it is no subclass of Encoding, Task or Remap.
    """
    where = f"{group}.target={target}"
    module_name, _, name = str(target).rpartition(".")
    if not module_name:
        raise ConfigError(f"{where}: must be the dotted path of a class, such as package.module.Class")
    with blamed_on(f"{where}: cannot be imported"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            # One that the module itself lacks is another matter.
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise ConfigError(f"{where}: there is no module {error.name}") from error
    found = getattr(module, name, None)
    if found is None:
        raise ConfigError(f"{where}: {module_name} has no {name}{nearest(name, vars(module))}")
    base = BASES[group]
    if not (isinstance(found, type) and issubclass(found, base)):
        raise ConfigError(f"{where}: is not a subclass of {base.__module__}.{base.__name__}")
    return found


def arguments(group: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a component's constructor: those given, converted to its annotations, and the defaults.

    Args:
        group: "encoding", "task" or "positions".
        options: the component's keys as YAML gives them: name, target and parameters.

    Raises:
        ConfigError: the class lacks methods that it owes; or one line for each unknown, missing or mistyped parameter.
    """
    target = load_class(group, options["target"])
    # An encoding, which is no ABC, could be built without them.
    owed = [name for name in dir(target) if getattr(getattr(target, name), "__isabstractmethod__", False)]
    if owed:
        raise ConfigError(f"{group}.target={options['target']}: has to define {' and '.join(owed)}")
    with blamed_on(f"{group}.target={options['target']}"):
        annotations = typing.get_type_hints(target.__init__, include_extras=True)
        accepted = {name: p for name, p in inspect.signature(target).parameters.items() if name not in GIVEN}
    given = {key: value for key, value in options.items() if key not in NOT_PARAMETERS}
    errors = [
        f"{group}.{key}={show(value)}: unknown key{nearest(key, accepted, f'{group}.')}"
        f" (keys of {group}={options['name']}: {', '.join(accepted) or 'none'})"
        for key, value in given.items()
        if key not in accepted
    ]
    values = {}
    for name, parameter in accepted.items():
        if name in given:
            try:
                with blamed_on(f"{group}.{name}"):  # a type may be one that pydantic knows nothing of
                    adapter = _adapter(annotations.get(name, Any))
                # JSON's strict mode is the one in which a list may become a tuple, yet a bool never an int, nor text a
                # number.
                values[name] = adapter.validate_json(json.dumps(given[name], default=to_jsonable_python), strict=True)
            except ValidationError as error:
                errors += _mistyped(f"{group}.{name}", given[name], annotations[name], error)
        elif parameter.default is inspect.Parameter.empty:
            errors.append(f"{group}.{name}: is missing: {group}={options['name']} has no default for it")
        else:
            values[name] = parameter.default
    errors += [f"{group}.{name}={show(value)}: must be finite" for name, value in values.items() if not _finite(value)]
    if errors:
        raise ConfigError(*errors)
    return values


def identified(group: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A component's keys with its id, which is that of its class where it has none of its own, as `custom` has not.

    Raises:
        ConfigError: no class is named, or one whose name is the id of another choice.
    """
    target, name = options["target"], options["name"]
    if target is None:
        needs = f"needs {group}.target, the dotted path of your class, such as my_package.MyClass"
        raise ConfigError(f"{group}={name or 'custom'}: {needs}")
    if name is None:
        name = str(target).rpartition(".")[2]
        if name in catalogue.choices(group):
            raise ConfigError(f"{group}.target={target}: has the name of {group}={name}; give it {group}.name too")
    return {**options, "name": name}


def complete(group: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """A component's keys with its id and every parameter of its class spelt out, as plain data.

    Two requests that build the same object become the same, so that they are one run.
    """
    options = identified(group, options)
    values = arguments(group, options)
    with blamed_on(f"{group}.target={options['target']}"):  # a default may be an object that no YAML can hold
        return {key: options[key] for key in NOT_PARAMETERS} | to_jsonable_python(values)


def _adapter(annotation: Any) -> TypeAdapter[Any]:
    # pydantic takes no settings for a type that may have its own.
    own = isinstance(annotation, type) and (dataclasses.is_dataclass(annotation) or issubclass(annotation, BaseModel))
    return TypeAdapter(annotation, config=None if own else ConfigDict(allow_inf_nan=False, extra="forbid"))


def _finite(value: Any) -> bool:
    """Whether plain data holds no NaN or infinity, of which config.yaml would make a null."""
    try:
        json.dumps(value, allow_nan=False, default=str, skipkeys=True)
    except ValueError:
        return False
    return True


def _mistyped(key: str, value: Any, annotation: Any, error: ValidationError) -> list[str]:
    details = error.errors(include_url=False)
    groups = _groups(annotation)
    if isinstance(value, Mapping) and groups:
        return _wrong_in_group(key, value, groups, details)
    if len(details) == 1 and not details[0]["loc"]:
        return [f"{key}={show(value)}: {rule(details[0])}{_or_null(annotation)}"]
    return [f"{key}={show(value)}: must be {inspect.formatannotation(annotation)}"]


def _or_null(annotation: Any) -> str:
    return " or null" if type(None) in typing.get_args(annotation) else ""


def _groups(annotation: Any) -> list[Any]:
    """The dataclasses among the types of an annotation: each is a group of keys, told apart by a key `name`."""
    if isinstance(annotation, type) and dataclasses.is_dataclass(annotation):
        return [annotation]
    return [cls for part in typing.get_args(annotation) for cls in _groups(part)]


def _wrong_in_group(
    key: str, given: Mapping[str, Any], groups: Sequence[Any], details: Sequence[ErrorDetails]
) -> list[str]:
    """A line for each error in a group of keys, under the key that it concerns."""
    by_name = {str(getattr(cls, "name", "")): cls for cls in groups}
    asked = str(given.get("name"))
    cls = by_name.get(asked, groups[0])
    hints = typing.get_type_hints(cls)
    accepted = [field.name for field in dataclasses.fields(cls)]
    lines: list[str] = []
    for error in sorted(details, key=lambda error: error["type"] == "missing"):
        path, name = key, ""
        value: Any = given
        for part in error["loc"]:  # of a union, it has the class's name too
            if isinstance(part, int):
                path, value = f"{path}[{part}]", value[part]
            elif part in given or (error["type"] == "missing" and part == error["loc"][-1]):
                path, value, name = f"{path}.{part}", given.get(part), part
        if error["type"] in ("union_tag_invalid", "union_tag_not_found"):
            said = f"={show(given['name'])}" if "name" in given else ": is missing"
            lines.append(f"{key}.name{said}: must be one of {', '.join(by_name)}{nearest(asked, by_name)}")
        elif error["type"] in ("extra_forbidden", "unexpected_keyword_argument"):
            guess = nearest(name, accepted, f"{key}.")
            lines.append(f"{path}={show(value)}: unknown key{guess} (keys of {key}: {', '.join(accepted)})")
        elif error["type"] == "missing":
            if not any(f" {path}?" in line for line in lines):  # else it is there, misspelt
                lines.append(f"{path}: is missing")
        elif value is given:
            lines.append(f"{path}: {rule(error)}")
        else:
            lines.append(f"{path}={show(value)}: {rule(error)}{_or_null(hints[name]) if path.endswith(name) else ''}")
    return lines


def show(value: Any, limit: int = 60) -> str:
    """A value as one would type it in an override."""
    text = value if isinstance(value, str) else json.dumps(value, default=str).replace('"', "")
    return text if len(text) <= limit else text[: limit - 3] + "..."


_RULES = {
    "int_type": "must be an integer",
    "float_type": "must be a number",
    "bool_type": "must be true or false",
    "string_type": "must be text",
    "string_too_long": "must be at most {max_length} characters",
    "string_pattern_mismatch": "must be letters, digits and underscores",
    "list_type": "must be a list, such as [1,2]",
    "tuple_type": "must be a list, such as [1,2]",
    "dict_type": "must be a group of keys",
    "model_type": "must be a group of keys",
    "model_attributes_type": "must be a group of keys",
    "finite_number": "must be finite",
    "greater_than": "must be more than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "too_short": "needs at least {min_length} value(s)",
    "too_long": "takes at most {max_length} values",
    "literal_error": "must be one of {expected}",
    "value_error": "{error}",
}


def rule(error: ErrorDetails) -> str:
    """What one of pydantic's errors says is allowed."""
    # A bound of a number is a float where the number is one.
    bounds = {k: int(v) if isinstance(v, float) and v == int(v) else v for k, v in error.get("ctx", {}).items()}
    return _RULES.get(error["type"], error["msg"]).format(**bounds).replace("'", "")


def make_task(name: str, **parameters: Any) -> Task:
    """A task by its id, that is the name of its file in conf/task, with parameters other than the file's.

    Raises:
        ConfigError: an unknown id, or an unknown or mistyped parameter.
        ValueError: a parameter out of its range.
    """
    return build_task(catalogue.read("task", name) | parameters)


def make_encoding(
    name: str,
    *,
    dim: int,
    heads: int,
    train_length: int,
    max_length: int,
    causal: bool,
    layers: int = 1,
    axes: int = 1,
    seed: int = 0,
    **parameters: Any,
) -> Encoding:
    """An encoding by its id, that is the name of its file in conf/encoding: the module of a model's first layer.

    Args:
        dim: width of the model; dim / heads is the width of a head.
        train_length: the longest sequence trained on, in tokens.
        max_length: the longest sequence that it will be asked for, in tokens.
        causal: whether the model hides later tokens.
        layers: how many layers the model has.
        axes: columns of a position: 1 for text, 2 for a grid.
        seed: of the initial values of what the encoding learns.
        parameters: parameters of its class other than the file's; of "custom", all of them, and the class as `target`.

    Raises:
        ConfigError: an unknown id, or an unknown or mistyped parameter.
        ValueError: a parameter out of its range, or one that does not fit the model.
    """
    options = identified("encoding", catalogue.read("encoding", name) | parameters)
    geometry = Geometry(
        dim=dim,
        heads=heads,
        layers=layers,
        train_length=train_length,
        max_length=max_length,
        causal=causal,
        axes=axes,
    )
    encoding = build_encodings(options, geometry)[0]
    encoding.reset_parameters(torch_stream("encoding", seed))
    return encoding


def build_encodings(options: Mapping[str, Any], geometry: Geometry) -> list[Encoding]:
    """The modules of an encoding's YAML: one for all layers, or one a layer; what they learn is not yet drawn."""
    target: type[Encoding] = load_class("encoding", options["target"])
    return target.build(geometry, **arguments("encoding", options))


def build_task(options: Mapping[str, Any]) -> Task:
    """The task of its YAML."""
    target: type[Task] = load_class("task", options["target"])
    return target(**arguments("task", options))


def build_positions(options: Mapping[str, Any], frame: Frame) -> Remap:
    """The remap of its YAML, for the positions of a task."""
    target: type[Remap] = load_class("positions", options["target"])
    return target(frame, **arguments("positions", options))
