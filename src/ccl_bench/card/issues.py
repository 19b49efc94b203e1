"""Issues of one file, collected while it is read so that all are reported at once."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ccl_bench.base.findings import Issue, Severity

T = TypeVar("T")


@dataclass(slots=True)
class IssueLog:
    """Collects issues about one file, so that all of them are reported at once."""

    file: str = ""
    entries: list[Issue] = field(default_factory=list)
    lines: dict[str, int] = field(default_factory=dict)
    """Line of every path seen while reading, for checks that run afterwards."""

    def error(self, path: str, message: str, fix: str = "", *, line: int | None = None) -> None:
        """Record something that could not be used."""
        self._add(Severity.ERROR, path, message, fix, line)

    def warning(self, path: str, message: str, fix: str = "", *, line: int | None = None) -> None:
        """Record something the writer should look at."""
        self._add(Severity.WARNING, path, message, fix, line)

    def note(self, path: str, message: str, fix: str = "", *, line: int | None = None) -> None:
        """Record something that was understood though written unusually."""
        self._add(Severity.NOTE, path, message, fix, line)

    def _add(self, severity: Severity, path: str, message: str, fix: str, line: int | None) -> None:
        known = line or self.lines.get(path)
        self.entries.append(Issue(severity, message, file=self.file, line=known, path=path, fix=fix))

    def in_order(self) -> list[Issue]:
        """Return the issues by line, those without a line last, each place in order of recording."""
        return sorted(self.entries, key=lambda issue: (issue.line is None, issue.line or 0))


@dataclass(frozen=True, slots=True)
class Reading(Generic[T]):
    """What a file said, and everything that is wrong with it."""

    value: T
    issues: list[Issue]
    file: str = ""

    @property
    def errors(self) -> list[Issue]:
        """The issues that kept something from being used."""
        return [issue for issue in self.issues if issue.severity is Severity.ERROR]


def shown(value: object, limit: int = 60) -> str:
    """Return `value` as it can be quoted in a message: on one line and not too long."""
    text = value if isinstance(value, str) else repr(value)
    flat = "".join(char if char.isprintable() else "?" for char in text)
    return f"{flat[:limit]}…" if len(flat) > limit else flat
