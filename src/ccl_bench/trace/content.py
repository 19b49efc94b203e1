"""What one trace file holds once read: its tables, whose they are, and what was wrong with it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.frames import pl


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing about the data that a reader of the numbers must know."""

    code: str
    """Stable name, explained in the manual."""
    severity: str
    """`note`, `warning` or `error`."""
    message: str
    """What was found, in one sentence."""
    file: str = ""
    """The file it was found in, relative to the run."""
    rank: int | None = None
    """The rank it concerns, where it concerns one."""
    count: int = 1
    """How many events, ranks or calls it concerns."""
    touches: tuple[str, ...] = ()
    """Tables whose rows it concerns; empty for all of them."""


@dataclass(slots=True)
class TraceContent:
    """One trace file as tables."""

    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    """Raw tables by name; one that the format does not know is absent, not empty."""
    rank: int | None = None
    """The rank that the file says it is from."""
    world_size: int | None = None
    """The number of ranks that the file says the job had."""
    findings: list[Finding] = field(default_factory=list)
    """What was wrong with the file."""
    attributes: dict[str, str] = field(default_factory=dict)
    """Versions and names that the file records, such as `nccl_version`."""

    def table(self, name: str) -> pl.DataFrame:
        """Return the table called `name`, empty where the format has none."""
        return self.tables.get(name, TABLES[name].empty())


def codes(findings: Iterable[Finding]) -> list[str]:
    """Return the codes of `findings` in order, each once."""
    return list(dict.fromkeys(finding.code for finding in findings))
