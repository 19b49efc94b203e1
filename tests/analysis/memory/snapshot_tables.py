"""Snapshots to tables, without a run around them."""

from __future__ import annotations

import io
import pickle
from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import DERIVED, computation_order
from ccl_bench.trace.formats.memory_snapshot.reader import read_memory_snapshot

if TYPE_CHECKING:
    import polars as pl

    from ccl_bench.trace.content import TraceContent


def content_of(snapshot: object) -> TraceContent:
    """Return what the reader makes of a snapshot."""
    code = snapshot if isinstance(snapshot, bytes) else pickle.dumps(snapshot, 4)
    return read_memory_snapshot(io.BytesIO(code), "rank0_memory_snapshot.pickle")


def tables_of(snapshot: object, *names: str) -> list[pl.DataFrame]:
    """Return raw or derived tables of a snapshot."""
    DERIVED.load()
    tables = dict(content_of(snapshot).tables)
    for name in computation_order(names):
        table = DERIVED.get(name)
        tables[name] = table.compute(*(tables[need] for need in table.needs))
        assert tables[name].schema == table.table.empty().schema, name
    return [tables[name] for name in names]
