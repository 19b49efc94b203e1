"""No circle of imports between modules, also not of those that only type checkers follow."""

from __future__ import annotations

import ast
from graphlib import CycleError, TopologicalSorter
from typing import TYPE_CHECKING

import polars as pl
from checkout import ROOT, modules, tree

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _statements(body: list[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the imports of a module, those in functions and for type checkers too."""
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        else:
            for part in ("body", "orelse", "finalbody"):
                yield from _statements(getattr(node, part, []))
            for handler in getattr(node, "handlers", []):
                yield from _statements(handler.body)


def _imported(path: Path, known: set[str]) -> Iterator[str]:
    for node in _statements(tree(path).body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        else:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in known else str(node.module)


def test_no_modules_import_each_other_in_a_circle() -> None:
    paths = {_name(path): path for path in modules()}
    del paths["ccl_bench"]  # its public names are loaded when they are used first
    graph = {name: {*_imported(path, {*paths})} & {*paths} - {name} for name, path in paths.items()}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        raise AssertionError(" <- ".join(error.args[1])) from None


def test_polars_has_one_thread_in_the_process_of_the_tests() -> None:
    """Its threads are counted when it is imported: `tests/conftest.py` sets the variable before that."""
    assert pl.thread_pool_size() == 1
