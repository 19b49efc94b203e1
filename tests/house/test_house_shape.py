"""The shape that the style guide asks of every module."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from checkout import ROOT, modules, tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODULE_LINES = 500
FUNCTION_LINES = 50


def _functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_there_are_modules_to_look_at() -> None:
    assert len(modules()) > 80


def test_no_module_is_longer_than_500_lines() -> None:
    lengths = {str(p.relative_to(ROOT)): len(p.read_text(encoding="utf-8").splitlines()) for p in modules()}
    assert {name: count for name, count in lengths.items() if count > MODULE_LINES} == {}


def test_no_function_is_longer_than_50_lines() -> None:
    lengths = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in modules()
        for node in _functions(path)
    }
    assert {name: count for name, count in lengths.items() if count > FUNCTION_LINES} == {}


def test_every_module_says_in_its_first_line_what_it_is() -> None:
    silent = []
    for path in modules():
        docstring = ast.get_docstring(tree(path)) or ""
        first = docstring.split("\n\n", 1)[0].rstrip()
        if not first.endswith((".", ":")):
            silent.append(str(path.relative_to(ROOT)))
    assert silent == []
