"""Times of operations that compare between ranks, and the ideal time of each: that of the others."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.lazy_imports import pl
from ccl_bench.whatif.run_graph import GAP, OWN, VALUES

if TYPE_CHECKING:
    from ccl_bench.whatif.event_graph import Mask, Numbers, Times
    from ccl_bench.whatif.run_graph import RunGraph

EVERY_STEP = ("key", "k")
"""Columns that are equal for the same operation at the same place of every step."""

_STAGE_PLACE = ("key", "k", "step", "stage")
_PLACES = (("key", "k", "step"), ("key", "step"), ("key",))
"""Columns that are equal for comparable values, the strictest first."""

_DIGITS = r"\d+"


class ComparableValues:
    """The own times of operations, and the host's times before them, that compare between ranks.

    `table` has one row a value: its number as `value`, `row`, `ns`, `key` for the same kind of operation, `k`
    for its place among those of its kind in the step, `step` and `stage`. Numbers in names do not count:
    `forward 1` compares with `forward 2`.
    """

    def __init__(self, graph: RunGraph) -> None:
        ops = graph.operations.select(
            *("row", "trace", "step", "stage", "place", "chain", "size_bytes"), plain=_plain(graph.operations)
        )
        follows = pl.all_horizontal(pl.col("trace", "chain").eq_missing(pl.col("trace", "chain").shift(1)))
        alike = ("place", "plain", "size_bytes")
        meets = pl.Series("meets", graph.meets >= 0)
        parts = {
            OWN: ops.with_columns(key=pl.struct(*alike, meets).hash(OWN)),
            GAP: ops.with_columns(before=pl.when(follows).then(pl.col("plain").shift(1)))
            .filter(pl.col("place") == "host")
            .with_columns(key=pl.struct(*alike, "before").hash(GAP)),
        }
        columns = ("row", "trace", "step", "stage", "place", "key")
        every = pl.concat(
            [part.select(*columns, value=pl.col("row") * VALUES + number) for number, part in parts.items()]
        ).with_columns(k=pl.int_range(pl.len()).over(pl.struct("trace", "step", "key").hash()))
        ns = graph.values[every["value"].to_numpy()]
        self.table = every.select("value", "row", "key", "k", "step", "stage", ns=pl.Series(ns))
        self._value, self._row, self._ns = (self.table[name].to_numpy() for name in ("value", "row", "ns"))
        # A number for the host, the device or the library of a rank.
        self._owner = every.select(pl.struct("trace", "place").rank("dense")).to_series().to_numpy()
        self._by_ns = np.argsort(self._ns)
        self._groups: dict[tuple[str, ...], _Groups] = {}

    def ideal(self, changed: Mask | None = None) -> tuple[Numbers, Times]:
        """Return the values of the changed operations, all by default, and the ideal time of each, ns.

        `changed` has one entry an operation. Those that change are not compared with each other.
        """
        changes = np.ones(len(self._ns), dtype=np.bool_) if changed is None else changed[self._row]
        targets = np.flatnonzero(changes)
        ideal = np.full(len(targets), np.nan)
        for place in (*(() if changed is None else (_STAGE_PLACE,)), *_PLACES):
            left = np.isnan(ideal)
            if not left.any():
                break
            groups = self._grouped(
                tuple(name for name in place if self.table[name].null_count() < len(self._ns))
            )
            typical = groups.medians(None if changed is None else ~changes)
            ideal[left] = typical[groups.of_value[targets[left]]]
        ns, owner = self._ns[targets], self._owner[targets]
        ideal = np.where(np.isnan(ideal), ns, ideal)
        # Noise makes every second operation slower than the median, but what is faster on the whole is none.
        is_slower = np.bincount(owner, ns) > np.bincount(owner, ideal)
        return self._value[targets], np.where(is_slower[owner], ideal, ns)

    def _grouped(self, columns: tuple[str, ...]) -> _Groups:
        if columns not in self._groups:
            number = self.table.select(pl.struct(columns).hash()).to_series().to_numpy()
            self._groups[columns] = _Groups.of(number, self._ns, self._by_ns)
        return self._groups[columns]


def _plain(operations: pl.DataFrame) -> pl.Series:
    """Return a number for the name of each operation without its digits, or for its kind without a name."""
    names, kinds = (operations[column] for column in ("name", "kind"))
    texts = pl.concat([each.drop_nulls().unique().cast(pl.String) for each in (names, kinds)]).unique()
    plain = dict(zip(texts, texts.str.replace_all(_DIGITS, "#").rank("dense"), strict=True))
    by_name, by_kind = (
        each.replace_strict(plain, default=None, return_dtype=pl.UInt32) for each in (names, kinds)
    )
    return by_name.zip_with(names.is_not_null(), by_kind)


@dataclass(frozen=True)
class _Groups:
    """Values in groups, each in order of size."""

    of_value: Numbers
    """Number of the group of each value."""
    order: Numbers
    """The values, group by group."""
    opens: Numbers
    """Where each group begins."""
    ns: Times
    """The values in this order."""

    @classmethod
    def of(cls, number: Numbers, ns: Times, by_ns: Numbers) -> _Groups:
        """Return the groups of values with equal numbers; `by_ns` is the order of the values by size."""
        order = by_ns[np.argsort(number[by_ns], kind="stable")]
        is_first = np.append(True, np.diff(number[order]) != 0)[: len(order)]
        of_value = np.empty_like(order)
        of_value[order] = np.cumsum(is_first) - 1
        return cls(of_value, order, np.flatnonzero(is_first), ns[order])

    def medians(self, counts: Mask | None) -> Times:
        """Return the median of each group, of the values that count; NaN without one."""
        ns, sizes = self.ns, np.diff(self.opens, append=len(self.order))
        if counts is not None:
            counted = counts[self.order]
            sizes = np.add.reduceat(counted, self.opens, dtype=np.int64) if self.opens.size else sizes
            ns = ns[counted]
        begins = np.cumsum(sizes) - sizes
        some = sizes > 0
        low, high = ((begins + (sizes - odd) // 2)[some] for odd in (1, 0))
        medians = np.full(len(sizes), np.nan)
        medians[some] = (ns[low] + ns[high]) / 2
        return medians
