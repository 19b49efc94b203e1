"""Problems in data and in files that people write: never hidden, and never fatal by itself.

A finding concerns data: it has a stable code and the tables that it touches. An issue concerns a line of a
file and has a fix; reports show findings as issues too, each with its fix.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache

NO_NUMBER = ("no table",)
"""What a finding touches that affects no number."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem or limit in the data that affects numbers."""

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


class Severity(StrEnum):
    """How much an issue matters."""

    ERROR = "error"
    """What was written could not be used, or contradicts something else."""
    WARNING = "warning"
    """It was used, or is missing, and the writer should look at it."""
    NOTE = "note"
    """It was understood, though written in another way than the format says."""


@dataclass(frozen=True, slots=True)
class Issue:
    """A mistake in the data, or in one value of a file."""

    severity: str
    """`note`, `warning` or `error`."""
    message: str
    code: str = ""
    """Stable name, for findings about data."""
    file: str = ""
    line: int | None = None
    """Line in the file, counted from 1, where it is known."""
    path: str = ""
    """Where in the file, such as `workload.data.batch_size` or `metric_source.traces[1]`."""
    fix: str = ""
    count: int = 1

    def __str__(self) -> str:
        """One line saying where and what, and the fix on a second."""
        where = f"{self.file}:{self.line}" if self.file and self.line else self.file
        head = ": ".join(part for part in (where, self.path, self.message) if part)
        text = f"{self.severity}: {head}"
        return f"{text}\n  fix: {self.fix}" if self.fix else text


def issue_of(finding: Finding) -> Issue:
    """Return a finding as a report shows it, with its fix."""
    return Issue(
        finding.severity,
        finding.message,
        finding.code,
        finding.file,
        fix=fix_of(finding.code),
        count=finding.count,
    )


def fix_of(code: str) -> str:
    """Return the fix of a finding; empty if it needs none."""
    return _fixes().get(code, "")


@cache
def _fixes() -> dict[str, str]:
    import tomllib
    from importlib import resources

    return tomllib.loads(resources.files("ccl_bench.base").joinpath("fixes.toml").read_text(encoding="utf-8"))
