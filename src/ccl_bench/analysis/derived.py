"""Tables computed from other tables: declared by a function, found by name.

A function's name is its table's name, its parameters are the tables it needs, its docstring
says what one row is. A *local* table is computed from one trace, where that trace was
read, so that only small results travel; its rows get `trace`, `rank` and `iteration` when they are
put together. A table *across ranks* is computed once from tables of all traces.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING

from ccl_bench.base.registry import Registry
from ccl_bench.schema import TABLES, Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

    from ccl_bench.base.lazy_polars import pl

    Compute = Callable[..., pl.DataFrame]

GROUP = "ccl_bench.tables"


@dataclass(frozen=True, slots=True)
class Derived:
    """A table and the function that computes it."""

    table: Table
    needs: tuple[str, ...]
    compute: Compute
    across_ranks: bool
    rows_of: str = ""
    """Table of single traces whose rows one across ranks tells more of: without any, it has none either."""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns of raw tables that it looks at, where naming them saves memory; else all of them."""


DERIVED: Registry[Derived] = Registry("table", GROUP)


def derived(
    *,
    across_ranks: bool = False,
    rows_of: str = "",
    reads: Mapping[str, tuple[str, ...]] = MappingProxyType({}),
    **columns: tuple[str, str],
) -> Callable[[Compute], Compute]:
    """Declare the decorated function as the table of its name, with `columns` as (type, meaning)."""

    def register(function: Compute) -> Compute:
        name = function.__name__
        declared = MappingProxyType({key: Column(*spec) for key, spec in columns.items()})
        table = Table(name, inspect.cleandoc(function.__doc__ or ""), declared)
        needs = tuple(inspect.signature(function).parameters)
        DERIVED.add(name, Derived(table, needs, function, across_ranks, rows_of, reads))
        return function

    return register


def computation_order(wanted: Iterable[str]) -> list[str]:
    """Return the derived tables behind `wanted`, each after those it needs."""
    ordered: list[str] = []

    def visit(name: str) -> None:
        if name in ordered or name in TABLES or name not in DERIVED:
            return
        for need in DERIVED.get(name).needs:
            visit(need)
        ordered.append(name)

    for name in wanted:
        visit(name)
    return ordered


def missing_tables(wanted: Iterable[str], given: Container[str]) -> list[str]:
    """Return what `wanted` tables come down to that is neither given nor a table that anything defines."""
    wanted = list(wanted)
    reached = {*wanted, *(need for name in computation_order(wanted) for need in DERIVED.get(name).needs)}
    unknown = {name for name in reached if name not in TABLES and name not in DERIVED}
    return sorted(name for name in unknown if name not in given)


def raw_needs(wanted: Iterable[str]) -> set[str]:
    """Return the raw tables that `wanted` tables come from, directly or not."""
    wanted = list(wanted)
    needs = {need for name in computation_order(wanted) for need in DERIVED.get(name).needs}
    return {name for name in needs | set(wanted) if name in TABLES}


def tables_behind(wanted: Iterable[str], *, but: Container[str] = frozenset()) -> set[str]:
    """Return `wanted` tables and facts with all that they come from, not looking behind what is in `but`."""
    found: set[str] = set()

    def visit(name: str) -> None:
        if name not in found and name not in but:
            found.add(name)
            for need in DERIVED.get(name).needs if name in DERIVED else ():
                visit(need)

    for name in wanted:
        visit(name)
    return found
