"""Sites of mutants: the operators, constants and calls of a module that can be changed, one at a time."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@dataclass(frozen=True)
class Site:
    """A place in a module where one thing can be changed."""

    line: int
    change: str
    scope: ast.stmt | str
    """The innermost statement around it; outside functions, the name of the constant."""
    apply: Callable[[], None]


_SWAPPED = [
    (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitAnd, ast.BitOr), (ast.And, ast.Or), (ast.Lt, ast.LtE),
    (ast.Gt, ast.GtE), (ast.Eq, ast.NotEq), (ast.In, ast.NotIn), (ast.Is, ast.IsNot),
]  # fmt: skip
OPERATORS: dict[type, type] = {a: b for pair in _SWAPPED for a, b in (pair, pair[::-1])}
OPERATORS |= {ast.FloorDiv: ast.Mult, ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.USub: ast.UAdd}

_SWAPPED_CALLS = [
    ("min", "max"), ("any", "all"), ("first", "last"), ("floor", "ceil"),
    ("min_horizontal", "max_horizontal"), ("any_horizontal", "all_horizontal"),
]  # fmt: skip
CALLS = {a: b for pair in _SWAPPED_CALLS for a, b in (pair, pair[::-1])}

UNTOUCHED = (ast.Raise, ast.JoinedStr)
"""Messages are no arithmetic."""

HARMLESS_KEYWORDS = {"check_sortedness", "revision", "strict", "maintain_order", "slots", "frozen", "named"}

STYLE = {
    *("aria", "columns", "cornerRadiusEnd", "dx", "dy", "filled", "fontSize", "gradientLength", "grid"),
    *("gridOpacity", "height", "labelAngle", "labelFlush", "labelLimit", "labelOverlap", "labelSeparation"),
    *("line", "nice", "offset", "opacity", "padding", "room", "size", "strokeDash", "strokeWidth"),
    *("symbolOpacity", "symbolStrokeWidth", "tickCount", "ticks", "titlePadding", "width", "xOffset"),
    *("break_on_hyphens", "is_wide", "keep_trailing_newline", "left", "lstrip_blocks", "no_wrap", "pad_edge"),
    *("right", "trim_blocks", "wide"),
}
"""Keywords and keys of charts and tables whose plain values only the eye notices: the width of a stroke."""


def sites(tree: ast.Module) -> Iterator[Site]:
    """Yield what can be changed in a module, always in the same order."""
    for statement in tree.body:
        yield from _sites_of_statement(statement)


def _sites_of_statement(statement: ast.stmt) -> Iterator[Site]:
    if isinstance(statement, ast.FunctionDef):
        for part in statement.body:
            yield from _sites(part, part)
    elif isinstance(statement, ast.ClassDef):
        for part in statement.body:
            if isinstance(part, ast.FunctionDef):
                yield from _sites_of_statement(part)
    elif isinstance(statement, ast.Assign) and isinstance(name := statement.targets[0], ast.Name):
        yield from _sites(statement.value, name.id)


def _sites(node: ast.AST, scope: ast.stmt | str) -> Iterator[Site]:
    scope = node if isinstance(node, ast.stmt) else scope
    if isinstance(node, UNTOUCHED) or (isinstance(node, ast.keyword) and _is_harmless(node.arg, node.value)):
        return
    for change, apply in _changes(node):
        yield Site(getattr(node, "lineno", 0), change, scope, apply)
    if isinstance(node, ast.Dict):
        for key, child in zip(node.keys, node.values, strict=True):
            if not (isinstance(key, ast.Constant) and _is_harmless(key.value, child)):
                yield from _sites(child, scope)
        return
    for name, value in ast.iter_fields(node):
        if name in {"annotation", "returns", "decorator_list", "args"} and not isinstance(node, ast.Call):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _sites(child, scope)


def _is_harmless(name: object, value: ast.expr) -> bool:
    """Return whether no number depends on the value of a keyword or a key."""
    is_computed = any(isinstance(each, ast.Name) and each.id != "range" for each in ast.walk(value))
    return name in HARMLESS_KEYWORDS or (name in STYLE and not is_computed)


def _changes(node: ast.AST) -> Iterator[tuple[str, Callable[[], None]]]:
    """Yield what can be changed at this very node, and the action that changes it."""
    if isinstance(node, ast.BinOp | ast.BoolOp | ast.UnaryOp):
        if new := OPERATORS.get(type(node.op)):
            yield _named(node.op, new), lambda: setattr(node, "op", new())
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.Invert):
            twice = ast.copy_location(ast.UnaryOp(node.op, node.operand), node)
            yield f"{type(node.op).__name__} left out", lambda: setattr(node, "operand", twice)
    elif isinstance(node, ast.Compare) and len(node.ops) == 1:
        swapped = OPERATORS[type(node.ops[0])]
        yield _named(node.ops[0], swapped), lambda: node.ops.__setitem__(0, swapped())
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool | int | float):
        other = {bool: lambda old: not old, int: lambda old: old + 1, float: lambda old: 2 * old or 1.0}
        value = other[type(node.value)](node.value)
        yield f"{node.value} -> {value}", lambda: setattr(node, "value", value)
    elif isinstance(node, ast.Call):
        yield from _changed_calls(node)


def _changed_calls(node: ast.Call) -> Iterator[tuple[str, Callable[[], None]]]:
    function = node.func
    at, old = (
        ("id", function.id) if isinstance(function, ast.Name) else ("attr", getattr(function, "attr", ""))
    )
    if new := CALLS.get(old):
        yield f"{old} -> {new}", lambda: setattr(function, at, new)
    if old == "sorted" and not any(each.arg == "reverse" for each in node.keywords):
        backwards = ast.copy_location(ast.keyword("reverse", ast.Constant(True)), node)
        yield "sorted backwards", lambda: node.keywords.append(backwards)


def _named(old: ast.AST, new: type) -> str:
    return f"{type(old).__name__} -> {new.__name__}"


def parse(path: Path) -> ast.Module:
    """Return the syntax of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))
