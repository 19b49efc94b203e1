"""Where the pages of a static site are: files beside each other, by relative addresses."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ccl_bench.leaderboard.pages.defaults import completed
from ccl_bench.leaderboard.pages.links import SHORT, Links, query
from ccl_bench.leaderboard.store.question import Question

if TYPE_CHECKING:
    from collections.abc import Iterable

INDEX = "index.html"


@dataclass(frozen=True, slots=True)
class SiteLinks(Links):
    """Relative addresses; `up` leads from the folder of a page to the top of the site."""

    root: str = ""
    is_static: bool = True
    up: str = ""
    phases: dict[str, int] = field(default_factory=dict)
    """Listed runs by phase."""

    def table(self, question: Question | None = None, **changes: Any) -> str:
        """Return the table: a page of its own for each phase, else the one that a script narrows down."""
        asked = Question.model_validate((question.model_dump() if question else {}) | changes)
        own = self.file_of(asked)
        return f"{self.up}{own}" if own else f"{self.up}{INDEX}?{query(asked)}"

    def file_of(self, asked: Question) -> str | None:
        """Return the file with the answer to a question, if it is one that was written."""
        usual = completed(Question(phase=asked.phase), self.phases)
        if completed(asked, self.phases).model_copy(update={"page": 1}) != usual:
            return None
        if usual.phase == completed(Question(), self.phases).phase and asked.page == 1:
            return INDEX
        return f"{usual.phase}-{asked.page}.html"

    def run(self, run: str) -> str:
        """Return the page of a run."""
        return f"{self.up}runs/{run[:SHORT]}.html"

    def report(self, run: str) -> str:
        """Return the report of a run."""
        return f"{self.up}reports/{run[:SHORT]}.html"

    def file(self, run: str, name: str) -> str:
        """Return a file of a run's bundle."""
        return f"{self.up}files/{run[:SHORT]}/{name}"

    def workloads(self) -> str:
        """Return the list of workloads."""
        return f"{self.up}workloads.html"

    def workload(self, key: str, **_asked: str) -> str:
        """Return the page of a workload."""
        return f"{self.up}workloads/{key[:SHORT]}.html"

    def metrics(self, name: str = "") -> str:
        """Return the definitions, or that of one metric."""
        return f"{self.up}metrics.html{f'#metric-{name}' if name else ''}"

    def compare(self, runs: Iterable[str] = ()) -> str:
        """Return the comparison of runs."""
        asked = urlencode({"run": [run[:SHORT] for run in runs]}, doseq=True)
        return f"{self.up}compare.html{f'?{asked}' if asked else ''}"

    def download(self, _question: Question, form: str) -> str:
        """Return all runs as a file, `csv` or `json`."""
        return f"{self.up}runs.{form}"

    def asset(self, name: str) -> str:
        """Return a style sheet or script."""
        return f"{self.up}static/{name}"
