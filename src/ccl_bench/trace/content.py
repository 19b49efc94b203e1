"""What one trace file holds once read: its tables, whose they are, and what was wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.schema import TABLES
from ccl_bench.trace.ondisk import OnDisk

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.base.findings import Finding
    from ccl_bench.base.lazy_polars import pl


@dataclass(slots=True)
class TraceContent:
    """One trace file as tables."""

    tables: Mapping[str, pl.DataFrame | OnDisk] = field(default_factory=dict)
    """Raw tables by name; one that the format does not know is absent, not empty."""
    rank: int | None = None
    """The rank that the file says it is from."""
    world_size: int | None = None
    """The number of ranks that the file says the job had."""
    findings: list[Finding] = field(default_factory=list)
    """What was wrong with the file."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Versions and names that the file records, such as `nccl_version`."""

    def table(self, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Return the table called `name`, or some of its columns; empty where the format has none."""
        table = self.tables.get(name)
        if isinstance(table, OnDisk):
            return table.frame(columns)
        found = TABLES[name].empty() if table is None else table
        return found if columns is None else found.select(columns)

    def height(self, name: str) -> int:
        """Return how many rows a table has."""
        table = self.tables.get(name)
        return 0 if table is None else table.height
