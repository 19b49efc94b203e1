"""Tables computed from other tables: declared by a function, found by name.

A function's name is its table's name, its parameters are the tables it needs, its docstring
says what one row is. A *local* table is computed from one trace, where that trace was
read, so that only small results travel; its rows get `trace`, `rank` and `iteration` when they are
put together. A table *across ranks* is computed once from tables of all traces.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass, field
from functools import cache
from graphlib import CycleError, TopologicalSorter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ccl_bench.base.foreign import call_contained, is_foreign
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.registry import Registry
from ccl_bench.schema import TABLES, Column, Table

if TYPE_CHECKING:
    from collections.abc import Callable, Container, Iterable, Mapping

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
    """Table of single traces whose rows one across ranks adds to: without any, it has none either."""
    reads: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Columns of raw tables that it looks at, where naming them saves memory; else all of them."""

    def computed(self, *arguments: Any) -> pl.DataFrame:
        """Return the table; TypeError if the function of another package returned something else."""
        content = call_contained(self.compute, *arguments)
        if is_foreign(self.compute):
            if not isinstance(content, pl.DataFrame):
                raise TypeError(f"it returned {type(content).__name__}, and not a DataFrame")
            if missing := self.table.columns.keys() - content.columns:
                raise TypeError(f"it returned no column {min(missing)}")
        return content


DERIVED: Registry[Derived] = Registry("table", GROUP, "ccl_bench.analysis", nested=True)


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
        for answer in (_needs, _without_circles, _computation_order):
            answer.cache_clear()
        return function

    return register


def with_zeros(name: str, *columns: pl.Series) -> pl.DataFrame:
    """Return the table `name` with these columns, each as long as the others, and 0 in all others."""
    table = DERIVED.get(name).table
    zeros = {column: [0] * len(columns[0]) for column in table.columns}
    return table.frame(zeros | {column.name: column for column in columns})


@cache
def _needs() -> Mapping[str, tuple[str, ...]]:
    """Return the needs of each derived table, cached: a run looks them up thousands of times."""
    return MappingProxyType({each.table.name: each.needs for each in DERIVED})


def computation_order(wanted_tables: Iterable[str]) -> list[str]:
    """Return the derived tables behind `wanted_tables`, each after those it needs.

    Tables that need each other, and those that rest on them, cannot be computed and are left out.
    """
    return list(_computation_order(tuple(wanted_tables)))


@cache
def _computation_order(wanted_tables: tuple[str, ...]) -> tuple[str, ...]:
    circular = {name for circle in circles(wanted_tables) for name in circle}
    computable: dict[str, bool] = {}

    def visit(name: str) -> bool:
        if name in TABLES or name not in _needs():
            return True
        if name not in computable:
            computable[name] = name not in circular and all(visit(need) for need in _needs()[name])
            order.extend([name] if computable[name] else [])
        return computable[name]

    order: list[str] = []
    for name in wanted_tables:
        visit(name)
    return tuple(order)


def circles(wanted_tables: Iterable[str], available: Container[str] = frozenset()) -> list[tuple[str, ...]]:
    """Return each circle of tables behind `wanted_tables`; those that are `available` need nothing."""
    if _without_circles():
        return []
    behind = tables_behind(wanted_tables, but=available)
    return _circles_of({name: _needs()[name] for name in sorted(behind) if name in _needs()})


@cache
def _without_circles() -> bool:
    return not _circles_of(_needs())


def _circles_of(graph: Mapping[str, tuple[str, ...]]) -> list[tuple[str, ...]]:
    cycles = []
    while True:
        try:
            TopologicalSorter(graph).prepare()
        except CycleError as error:
            circle = tuple(error.args[1][:-1])
            cycles.append(circle)
            graph = {name: needs for name, needs in graph.items() if name not in circle}
        else:
            return cycles


def missing_tables(wanted_tables: Iterable[str], available: Container[str]) -> list[str]:
    """Return the tables that `wanted_tables` rest on and that are neither available nor computable.

    No package defines such a table, or it is in a circle of tables that need each other.
    """
    reached = tables_behind(wanted_tables, but=available)
    circular = {name for circle in circles(reached, available) for name in circle}
    unknown = {name for name in reached if name not in TABLES and name not in _needs()}
    return sorted(unknown | circular)


def raw_needs(wanted_tables: Iterable[str]) -> set[str]:
    """Return the raw tables that `wanted_tables` come from, directly or not."""
    wanted_tables = list(wanted_tables)
    needs = {need for name in computation_order(wanted_tables) for need in _needs()[name]}
    return {name for name in needs | set(wanted_tables) if name in TABLES}


def tables_behind(wanted_tables: Iterable[str], *, but: Container[str] = frozenset()) -> set[str]:
    """Return `wanted_tables` and facts with all that they come from, not looking behind what is in `but`."""
    needed: set[str] = set()

    def visit(name: str) -> None:
        if name not in needed and name not in but:
            needed.add(name)
            for need in _needs().get(name, ()):
                visit(need)

    for name in wanted_tables:
        visit(name)
    return needed
