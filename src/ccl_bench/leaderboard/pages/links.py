"""Where pages are: on a server, or as files beside each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.leaderboard.store.question import Question

SHORT = 12
"""Characters of an identifier that addresses carry."""


def query(question: Question, **changes: Any) -> str:
    """Return a question as the query of an address, `changes` taken in; what says nothing is left out."""
    asked = question.model_dump() | changes
    blank = type(question)().model_dump()
    said = {name: value for name, value in asked.items() if value != blank[name] and value is not None}
    return urlencode(said, doseq=True)


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses on a server, below `root`."""

    root: str = ""
    is_static: bool = False

    def table(self, question: Question | None = None, **changes: Any) -> str:
        """Return the table that answers a question."""
        asked = query(question, **changes) if question else urlencode(changes, doseq=True)
        return f"{self.root}/{f'?{asked}' if asked else ''}"

    def run(self, run: str) -> str:
        """Return the page of a run."""
        return f"{self.root}/runs/{run[:SHORT]}"

    def report(self, run: str) -> str:
        """Return the report of a run."""
        return f"{self.run(run)}/report"

    def file(self, run: str, name: str) -> str:
        """Return a file of a run's bundle."""
        return f"{self.run(run)}/files/{name}"

    def workloads(self) -> str:
        """Return the list of workloads."""
        return f"{self.root}/workloads"

    def workload(self, key: str, **asked: str) -> str:
        """Return the page of a workload."""
        tail = f"?{urlencode(asked)}" if asked else ""
        return f"{self.root}/workloads/{key[:SHORT]}{tail}"

    def metrics(self, name: str = "") -> str:
        """Return the definitions, or that of one metric."""
        return f"{self.root}/metrics{f'#metric-{name}' if name else ''}"

    def compare(self, runs: Iterable[str] = ()) -> str:
        """Return the comparison of runs."""
        asked = urlencode({"run": [run[:SHORT] for run in runs]}, doseq=True)
        return f"{self.root}/compare{f'?{asked}' if asked else ''}"

    def download(self, question: Question, form: str) -> str:
        """Return the whole answer to a question as a file, `csv` or `json`."""
        asked = query(question, page=1, size=50)
        return f"{self.root}/api/v1/runs.{form}{f'?{asked}' if asked else ''}"

    def interface(self) -> str:
        """Return the page about the interface for programs."""
        return f"{self.root}/api"

    def asset(self, name: str) -> str:
        """Return a style sheet or script."""
        return f"{self.root}/static/{name}"
