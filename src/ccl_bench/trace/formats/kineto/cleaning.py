"""Gathered rows to tables that can be believed; those of a large file one after the other, and to disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace import ondisk, plausibility, repeats
from ccl_bench.trace.ondisk import OnDisk

if TYPE_CHECKING:
    from ccl_bench.base.findings import Finding
    from ccl_bench.base.lazy_polars import pl
    from ccl_bench.trace.formats.kineto.gathering import Gathering
    from ccl_bench.trace.ondisk import Scratch

Tables = dict[str, "pl.DataFrame | OnDisk"]


def cleaned(gathering: Gathering, base_ns: int, file: str) -> tuple[Tables, list[Finding]]:
    """Return every table without impossible and repeated events, and what was left out."""
    gathering.finish()
    if gathering.folder is not None:
        return _one_by_one(gathering, gathering.folder, base_ns, file)
    tables, implausible = plausibility.screened(dict(gathering.tables(base_ns)), file)
    once, repeated = repeats.each_once(tables, file)
    return dict(once), [*implausible, *repeated]


def _one_by_one(
    gathering: Gathering, folder: Scratch, base_ns: int, file: str
) -> tuple[Tables, list[Finding]]:
    middle = plausibility.middle_of(gathering.starts(base_ns))
    tables: Tables = {}
    implausible, repeated = [], []
    for name, table in gathering.tables(base_ns):
        possible, impossible = plausibility.screened({name: table}, file, middle)
        once, copies = repeats.each_once(possible, file)
        tables[name] = _put(once[name], name, folder)
        implausible += impossible
        repeated += copies
    return tables, [*implausible, *repeated]


def _put(table: pl.DataFrame, name: str, folder: Scratch) -> pl.DataFrame | OnDisk:
    """Return a table, from disk if it is large and there is room."""
    if table.height <= ondisk.LARGE_ROWS:
        return table
    path = folder.path / f"{name}.parquet"
    try:
        ondisk.put(table, path)
    except ondisk.no_room():
        return table
    return OnDisk(path, table.height, folder)
