"""What the source of an encoding declares, read without importing it: a list of encodings needs no torch.

A class says some things as constants, and inherits others. What its __init__ assigns counts as the options in its YAML
make it; where only running the code would tell, the condition itself is what is shown.
"""

import ast
import itertools
import json
import operator
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from rpe_bench import catalogue

PLACES = ("embed", "rotate", "content", "bias", "value", "scale")
"""Where a position enters: five methods of an encoding, and the softmax scale, which is an attribute."""

WORDS = {
    "embed": "embedding",
    "rotate": "rotation",
    "translation_invariant": "translation-invariant",
    "prefix_consistent": "prefix-consistent",
    "causal_only": "causal only",
    "decays": "decays",
    "preserves_norm": "norm-preserving",
    "needs_tokens": "needs tokens",
    "longest": "bounded",
}
"""How a reader knows what the code has other words for."""

PROPERTIES = ("translation_invariant", "prefix_consistent", "causal_only", "decays", "preserves_norm", "needs_tokens")

COLUMNS = ("name", "year", "changes", "learns", "options", "properties", "source")

Class = tuple[str, str]
"""A module, and the name of a class in it."""

_BASE: Class = ("rpe_bench.encodings.base", "Encoding")
_SOMETIMES = "in some cases"


@dataclass
class Facts:
    """An encoding under the options of its YAML."""

    name: str
    options: dict[str, Any]
    declared: dict[str, Any] = field(default_factory=dict)
    """By attribute: the class's constants, and what __init__ assigns for certain."""
    conditions: dict[str, str] = field(default_factory=dict)
    """By attribute (or place): when it holds, where the source alone does not tell."""
    changes: list[str] = field(default_factory=list)
    """The places that it changes, those included that have a condition."""
    problem: str = ""
    """Why nothing is known of it, if so."""

    def row(self) -> list[str]:
        """The cells of `COLUMNS`."""
        if self.problem:
            return [self.name, "", "", "", "", self.problem, ""]
        year, learns, source = (self.declared[key] for key in ("year", "learns", "source"))
        changes = [self._said(place) for place in self.changes]
        options = [f"{key}={_shown(value)}" for key, value in self.options.items()]
        cells = (", ".join(cell) for cell in (changes or ["nothing"], [str(learns)], options, self.properties()))
        return [self.name, str(year or ""), *cells, str(source)]

    def properties(self) -> list[str]:
        """What it declares to be true of it, in words."""
        said = [self._said(name) for name in PROPERTIES if self.declared[name] or name in self.conditions]
        if self.declared["longest"] is not None or "longest" in self.conditions:
            said.append(self._said("longest"))
        axes = self.declared["axes"]
        if "axes" in self.conditions:
            said.append(f"axes {self.conditions['axes']}")
        elif axes != 1:
            said.append("any axes" if axes is None else f"{axes} axes")
        return said

    def _said(self, name: str) -> str:
        return " ".join(filter(None, (WORDS.get(name, name), self.conditions.get(name))))


def facts(name: str) -> Facts:
    """What the encoding of a YAML declares."""
    options = catalogue.read("encoding", name)
    module, _, class_name = str(options["target"]).rpartition(".")
    found = Facts(name, {key: value for key, value in options.items() if key not in ("name", "target")})
    line = _ancestry((module, class_name))
    if _BASE not in line:
        missing = "module" if catalogue.tree(module) is None else f"class {class_name} in"
        found.problem = f"({class_name} is no Encoding)" if line else f"(no {missing} {module})"
        return found
    found.declared["scale"] = False
    methods: set[str] = set()
    for where in reversed(line):
        node = _node(where)
        assert node is not None
        found.declared |= catalogue.constants(node)
        methods |= {item.name for item in node.body if isinstance(item, ast.FunctionDef)} if where != _BASE else set()
    found.conditions = dict.fromkeys(methods & found.declared.keys(), _SOMETIMES)  # a declaration that is a property
    strategies = {key: strategy for key, value in found.options.items() if (strategy := _strategy(module, key, value))}
    for strategy in strategies.values():  # a paper of its own
        found.declared |= {key: strategy.constants[key] for key in ("year", "source") if key in strategy.constants}
    _Constructor(found).follow(line, found.options | strategies)
    if in_effect := found.declared.get("in_effect"):
        found.changes = [in_effect]
        return found
    scaled = found.declared["scale"] or "scale" in found.conditions
    found.changes = [place for place in PLACES if place in methods or (place == "scale" and scaled)]
    return found


# Base classes


@cache
def _node(where: Class) -> ast.ClassDef | None:
    tree = catalogue.tree(where[0])
    return catalogue.class_in(tree, where[1]) if tree else None


@cache
def _ancestry(where: Class) -> list[Class]:
    """A class and all that it inherits from, as far as the source of each can be found, `Encoding` last."""
    node, tree = _node(where), catalogue.tree(where[0])
    if node is None or tree is None:
        return []
    imported = {
        alias.asname or alias.name: (item.module, alias.name)
        for item in tree.body
        if isinstance(item, ast.ImportFrom) and item.module and not item.level
        for alias in item.names
    }
    line = [where]
    for base in node.bases:
        if isinstance(base, ast.Name):
            line += _ancestry(imported.get(base.id, (where[0], base.id)))
    # Of a class that two bases share, the last place counts, as in Python's own order.
    return [parent for number, parent in enumerate(line) if parent not in line[number + 1 :]]


# What __init__ does


@dataclass
class _Strategy:
    """An option {name: X, ...} that an encoding asks some things: a class in the file X.py of the package that is named
    after the option, in the plural."""

    line: list[Class]
    options: dict[str, Any]

    @property
    def constants(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for node in filter(None, map(_node, reversed(self.line))):
            found |= catalogue.constants(node)
        return found

    def answer(self, method: str) -> Any:
        """What a method returns, if its only statement tells that from the options; LookupError if not."""
        for node in filter(None, map(_node, self.line)):
            for item in node.body:
                if isinstance(item, ast.FunctionDef) and item.name == method:
                    body = [part for part in item.body if not isinstance(part, ast.Expr)]
                    if len(body) == 1 and isinstance(body[0], ast.Return):
                        return _value(body[0].value, {f"self.{key}": value for key, value in self.options.items()})
                    raise LookupError(method)
        raise LookupError(method)


def _strategy(module: str, option: str, value: Any) -> _Strategy | None:
    if not isinstance(value, Mapping) or "name" not in value:
        return None
    home = f"{module.rpartition('.')[0]}.{option}s.{value['name']}"
    for node in getattr(catalogue.tree(home), "body", []):
        if isinstance(node, ast.ClassDef) and catalogue.constants(node).get("name") == value["name"]:
            return _Strategy(_ancestry((home, node.name)), {**catalogue.constants(node), **value})
    return None


class _Constructor:
    """Follows __init__ up to `Encoding`, and enters what it assigns to declared attributes, and to `scale`."""

    def __init__(self, found: Facts) -> None:
        self.found = found

    def follow(self, line: Sequence[Class], options: Mapping[str, Any], when: str | None = None) -> None:
        """The first __init__ of a line of classes, called with `options`, as far as these are known."""
        for number, where in enumerate(line):
            init = None if where == _BASE else _init(where)
            if init is not None:
                self._run(init.body, {**_defaults(init), **options}, line[number + 1 :], when)
                return

    def _run(self, body: Sequence[ast.stmt], values: dict[str, Any], rest: Sequence[Class], when: str | None) -> None:
        """Statements that are executed always (when=None), or under a condition of which the options do not tell."""
        for statement in body:
            match statement:
                case ast.If(test=test, body=then, orelse=otherwise):
                    try:
                        self._run(then if _value(test, values) else otherwise, values, rest, when)
                    except LookupError:
                        condition = _SOMETIMES if when else _condition(test, values)
                        self._run(then, values, rest, condition)
                        self._run(otherwise, values, rest, _negated(condition))
                case ast.For(body=inner) | ast.While(body=inner) | ast.With(body=inner) | ast.Try(body=inner):
                    self._run(inner, values, rest, _SOMETIMES)
                case ast.Expr(value=ast.Call() as call) if ast.unparse(call.func) == "super().__init__":
                    self.follow(rest, _passed_on(call, rest, values), when)
                case ast.Expr(value=ast.Call(func=ast.Name(id="setattr"))):
                    for name in self.found.declared:
                        self._assign(name, None, values, _SOMETIMES)
                case ast.Assign(targets=[ast.Name(id=name)], value=value):
                    try:
                        values[name] = _value(value, values) if when is None else _UNKNOWN
                    except LookupError:
                        values[name] = _UNKNOWN
                case ast.Assign() | ast.AnnAssign() | ast.AugAssign():
                    for target in _attributes_of_self(statement):
                        whole = not isinstance(statement, ast.AugAssign) and target in (
                            getattr(statement, "target", None),
                            *getattr(statement, "targets", ()),
                        )
                        self._assign(target.attr, statement.value if whole else None, values, when)

    def _assign(self, name: str, expression: ast.expr | None, values: dict[str, Any], when: str | None) -> None:
        declared, conditions = self.found.declared, self.found.conditions
        try:
            known, value = True, _value(expression, values)
        except LookupError:
            known, value = False, None
        values[f"self.{name}"] = value if known and when is None else _UNKNOWN
        if name == "scale" or (name == "longest" and not known):  # numbers, of which all that counts is that they are
            known, value = True, True
        if name not in declared or (when and known and value == declared[name] and name not in conditions):
            return
        if when is None and known:
            declared[name] = value
            conditions.pop(name, None)
        elif when is None and expression is not None:
            conditions[name] = _condition(expression, values)
        elif when and when != _SOMETIMES and known and name not in conditions:
            conditions[name] = when if value else _negated(when)
        else:
            conditions[name] = _SOMETIMES


_UNKNOWN = object()


def _condition(expression: ast.expr, values: Mapping[str, Any]) -> str:
    """That an expression holds, in words; not by a name that stands for something else than the option of that name."""
    names = {part.id for part in ast.walk(expression) if isinstance(part, ast.Name)}
    if any(values.get(name) is _UNKNOWN for name in names):
        return _SOMETIMES
    return f"if {ast.unparse(expression)}"


def _negated(when: str) -> str:
    if when == _SOMETIMES:
        return when
    word, _, condition = when.partition(" ")
    return f"{'unless' if word == 'if' else 'if'} {condition}"


def _init(where: Class) -> ast.FunctionDef | None:
    node = _node(where)
    items = node.body if node else []
    return next((item for item in items if isinstance(item, ast.FunctionDef) and item.name == "__init__"), None)


def _parameters(init: ast.FunctionDef) -> list[str]:
    return [argument.arg for argument in (*init.args.posonlyargs, *init.args.args, *init.args.kwonlyargs)][1:]


def _defaults(init: ast.FunctionDef) -> dict[str, Any]:
    """The parameters of a constructor that have a default which is a constant."""
    positional = [*init.args.posonlyargs, *init.args.args]
    pairs = list(zip(reversed(positional), reversed(init.args.defaults), strict=False))
    pairs += [(name, value) for name, value in zip(init.args.kwonlyargs, init.args.kw_defaults, strict=True) if value]
    found = {}
    for argument, default in pairs:
        try:
            found[argument.arg] = _value(default, {})
        except LookupError:
            pass
    return found


def _passed_on(call: ast.Call, line: Sequence[Class], values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of super().__init__, by name; those that cannot be told are unknown."""
    init = next((found for where in line if (found := _init(where))), None)
    if init is None:
        return {}
    given = dict(zip(_parameters(init), call.args, strict=False))
    given |= {keyword.arg: keyword.value for keyword in call.keywords if keyword.arg}
    passed = {}
    for name, expression in given.items():
        try:
            passed[name] = _value(expression, values)
        except LookupError:
            if ast.unparse(expression) != "geometry":  # which is the same to all
                passed[name] = _UNKNOWN
    return passed


def _attributes_of_self(statement: ast.Assign | ast.AnnAssign | ast.AugAssign) -> Iterator[ast.Attribute]:
    for part in ast.walk(statement):
        if isinstance(part, ast.Attribute) and isinstance(part.ctx, ast.Store) and ast.unparse(part.value) == "self":
            yield part


_COMPARISONS: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda one, other: one in other,
    ast.NotIn: lambda one, other: one not in other,
}


def _value(expression: ast.expr | None, values: Mapping[str, Any]) -> Any:
    """An expression of options and constants; LookupError where it is of anything else."""
    match expression:
        case ast.Constant(value=value):
            return value
        case ast.Name() | ast.Attribute(value=ast.Name(id="self")):
            value = values.get(ast.unparse(expression), _UNKNOWN)
            if value is not _UNKNOWN:
                return value
        case ast.Call(func=ast.Attribute(value=ast.Name() as asked, attr=method)):
            strategy = values.get(asked.id)
            if isinstance(strategy, _Strategy):
                return strategy.answer(method)
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return tuple(_value(part, values) for part in parts)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return not _value(operand, values)
        case ast.BoolOp(op=op, values=parts):
            # In order, as Python does: what follows may make sense only if what precedes holds.
            for part in parts:
                value = _value(part, values)
                if bool(value) is isinstance(op, ast.Or):
                    break
            return value
        case ast.IfExp(test=test, body=then, orelse=otherwise):
            return _value(then if _value(test, values) else otherwise, values)
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in _COMPARISONS:
            try:
                return _COMPARISONS[type(op)](_value(left, values), _value(right, values))
            except TypeError:  # such as None > 1, behind a condition that was not understood
                raise LookupError from None
    raise LookupError


# The table


def table(rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Rows under `COLUMNS`, in a terminal of `width` characters.

    Cells are broken over several lines to fit; where not even their words fit side by side, each row is a paragraph.
    None is for other programs: a line each, its cells apart by a tab, as grep and cut take them. Aligned by blanks, the
    longest cell of each column would make lines three times as long.
    """
    rows = [COLUMNS, *rows]
    if width is None:
        return "\n".join(map("\t".join, rows))
    columns = list(zip(*rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    room = width - 2 * (len(columns) - 1)
    least = [widths[0]] + [max(len(word) for cell in column for word in cell.split()) for column in columns[1:]]
    if sum(least) > room:
        return "\n".join(_paragraph(row, width) for row in rows[1:])
    while sum(widths) > room:
        widest = max((size, number) for number, size in enumerate(widths) if size > least[number])
        widths[widest[1]] -= 1
    lines = []
    for row in rows:
        cells = [textwrap.wrap(cell, size, break_on_hyphens=False) for cell, size in zip(row, widths, strict=True)]
        for parts in itertools.zip_longest(*cells, fillvalue=""):
            lines.append("  ".join(part.ljust(size) for part, size in zip(parts, widths, strict=True)).rstrip())
    return "\n".join(lines)


def _paragraph(row: Sequence[str], width: int) -> str:
    lines = [row[0]]
    for column, cell in zip(COLUMNS[1:], row[1:], strict=True):
        if cell:
            lines += textwrap.wrap(
                f"  {column:12}{cell}", max(width, 40), subsequent_indent=" " * 14, break_on_hyphens=False
            )
    return "\n".join(lines)


def _shown(value: Any) -> str:
    """A value as one would type it in an override."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_shown, value))}]"
    return value if isinstance(value, str) else json.dumps(value, default=str)
