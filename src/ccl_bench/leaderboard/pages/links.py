"""Addresses of pages: on a server, or as files of a static site."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from ccl_bench.leaderboard.store.query import RunQuery, complete_query

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SHORT_ID = 12
"""Number of characters of an identifier in addresses."""


def query_string(query: RunQuery, **changes: Any) -> str:
    """Return a query with `changes` as the query string of an address, without empty fields."""
    fields = query.model_dump() | changes
    blank = type(query)().model_dump()
    parameters = {name: value for name, value in fields.items() if value != blank[name] and value is not None}
    return urlencode(parameters, doseq=True)


@dataclass(frozen=True, slots=True)
class Links:
    """Addresses on a server, below `root`."""

    root: str = ""
    is_static: bool = False

    def table(self, query: RunQuery | None = None, **changes: Any) -> str:
        """Return the address of the table for a query."""
        query_text = query_string(query, **changes) if query else urlencode(changes, doseq=True)
        return f"{self.root}/{f'?{query_text}' if query_text else ''}"

    def question(self, query: RunQuery, **changes: Any) -> str:
        """Return the page that answers a question."""
        return self.table(query, page=1, **changes)

    def run(self, run: str) -> str:
        """Return the page of a run."""
        return f"{self.root}/runs/{run[:SHORT_ID]}"

    def report(self, run: str) -> str:
        """Return the report of a run."""
        return f"{self.run(run)}/report"

    def file(self, run: str, name: str) -> str:
        """Return a file of a run's bundle."""
        return f"{self.run(run)}/files/{name}"

    def source(self, name: str) -> str:
        """Return the page of a source of rows reported elsewhere."""
        return f"{self.root}/sources/{name}"

    def gaps(self) -> str:
        """Return the page of standard workloads without rows."""
        return f"{self.root}/gaps"

    def workloads(self) -> str:
        """Return the list of workloads."""
        return f"{self.root}/workloads"

    def workload(self, key: str, **parameters: str) -> str:
        """Return the page of a workload."""
        tail = f"?{urlencode(parameters)}" if parameters else ""
        return f"{self.root}/workloads/{key[:SHORT_ID]}{tail}"

    def feed(self) -> str:
        """Return the feed of new runs."""
        return f"{self.root}/feed.atom"

    def badge(self, run: str) -> str:
        """Return the badge of a run; only a server has it."""
        return f"{self.run(run)}/badge.svg"

    def picture(self, key: str, **parameters: str) -> str:
        """Return the drawing of a workload as a picture; only a server has it."""
        return f"{self.root}/workloads/{key[:SHORT_ID]}/picture.svg?{urlencode(parameters)}"

    def metrics(self, name: str = "") -> str:
        """Return the definitions, or that of one metric."""
        return f"{self.root}/metrics{f'#metric-{name}' if name else ''}"

    def compare(self, runs: Iterable[str] = ()) -> str:
        """Return the comparison of runs."""
        query_text = urlencode({"run": [run[:SHORT_ID] for run in runs]}, doseq=True)
        return f"{self.root}/compare{f'?{query_text}' if query_text else ''}"

    def download(self, query: RunQuery, form: str) -> str:
        """Return the whole answer to a query as a file: `csv`, `json` or `parquet`."""
        query_text = query_string(query, page=1, size=50)
        return f"{self.root}/api/v1/runs.{form}{f'?{query_text}' if query_text else ''}"

    def interface(self) -> str:
        """Return the page about the interface for programs."""
        return f"{self.root}/api"

    def asset(self, name: str) -> str:
        """Return a style sheet or script."""
        return f"{self.root}/static/{name}"


def question_name(phase: str, model: str, input_len: int | None, output_len: int | None) -> str:
    """Return the name of a question in an address, such as `training-llama-3.1-8b`."""
    lengths = [str(length) for length in (input_len, output_len) if length]
    text = "-".join([phase, model.rpartition("/")[2].lower(), *lengths])
    digest = hashlib.sha256(f"{phase} {model} {lengths}".encode()).hexdigest()[:6]
    return f"{re.sub(r'[^a-z0-9.]+', '-', text).strip('-.')[:80]}-{digest}"


INDEX = "index.html"
_PAGES_WITH_REPORTED = 2
"""Pages of a phase that need no script on a board that also has rows reported elsewhere.

Thousands of such rows would take most of a site; `runs.parquet` has all, and every published run has a page.
"""


@dataclass(frozen=True, slots=True)
class SiteLinks(Links):
    """Relative addresses; `up` is the path from the folder of a page to the top of the site."""

    root: str = ""
    is_static: bool = True
    up: str = ""
    phases: dict[str, int] = field(default_factory=dict)
    """Listed runs by phase."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Beginning of the identifier of a row reported elsewhere → its source, which has the page."""
    questions: Mapping[tuple[tuple[str, Any], ...], str] = field(default_factory=dict)
    """Question, as sorted pairs of fields and values → the file of its page."""

    def table(self, query: RunQuery | None = None, **changes: Any) -> str:
        """Return the table: the page of a phase, or the one that a script filters."""
        changed_query = RunQuery.model_validate((query.model_dump() if query else {}) | changes)
        file = self.file_of(changed_query)
        return f"{self.up}{file}" if file else f"{self.up}{INDEX}?{query_string(changed_query)}"

    def file_of(self, query: RunQuery) -> str | None:
        """Return the file with the answer to a query, if it was written."""
        usual = complete_query(RunQuery(phase=query.phase), self.phases)
        if complete_query(query, self.phases).model_copy(update={"page": 1}) != usual:
            return None
        if usual.phase == complete_query(RunQuery(), self.phases).phase and query.page == 1:
            return INDEX
        if self.pages_as_files is not None and query.page > self.pages_as_files:
            return None
        return f"{usual.phase}-{query.page}.html"

    @property
    def pages_as_files(self) -> int | None:
        """Most pages of a phase that are files; None for all."""
        return _PAGES_WITH_REPORTED if self.sources else None

    def question(self, query: RunQuery, **changes: Any) -> str:
        """Return the page that answers a question, or the table that a script filters."""
        changed = query.model_copy(update=changes)
        key = {"phase": changed.phase, "model": changed.model[0] if len(changed.model) == 1 else None}
        lengths = {"input_len": changed.input_len, "output_len": changed.output_len}
        page = self.questions.get(tuple(sorted((key | lengths).items())))
        return f"{self.up}{page}" if page else self.table(query, page=1, **changes)

    def run(self, run: str) -> str:
        """Return the page of a run, or of the source of a row that was reported elsewhere."""
        if source := self.sources.get(run[:SHORT_ID]):
            return self.source(source)
        return f"{self.up}runs/{run[:SHORT_ID]}.html"

    def report(self, run: str) -> str:
        """Return the report of a run."""
        return f"{self.up}reports/{run[:SHORT_ID]}.html"

    def file(self, run: str, name: str) -> str:
        """Return a file of a run's bundle."""
        return f"{self.up}files/{run[:SHORT_ID]}/{name}"

    def source(self, name: str) -> str:
        """Return the page of a source of rows reported elsewhere."""
        return f"{self.up}sources/{name}.html"

    def gaps(self) -> str:
        """Return the page of standard workloads without rows."""
        return f"{self.up}gaps.html"

    def workloads(self) -> str:
        """Return the list of workloads."""
        return f"{self.up}workloads.html"

    def workload(self, key: str, **_parameters: str) -> str:
        """Return the page of a workload."""
        return f"{self.up}workloads/{key[:SHORT_ID]}.html"

    def feed(self) -> str:
        """Return the feed of new runs."""
        return f"{self.up}feed.atom"

    def metrics(self, name: str = "") -> str:
        """Return the definitions, or that of one metric."""
        return f"{self.up}metrics.html{f'#metric-{name}' if name else ''}"

    def compare(self, runs: Iterable[str] = ()) -> str:
        """Return the comparison of runs."""
        query_text = urlencode({"run": [run[:SHORT_ID] for run in runs]}, doseq=True)
        return f"{self.up}compare.html{f'?{query_text}' if query_text else ''}"

    def download(self, _question: RunQuery, form: str) -> str:
        """Return all runs as a file: `csv`, `json` or `parquet`."""
        return f"{self.up}runs.{form}"

    def asset(self, name: str) -> str:
        """Return a style sheet or script."""
        return f"{self.up}static/{name}"
