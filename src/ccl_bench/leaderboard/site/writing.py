"""Writes the leaderboard as files: every page, the data of its script, and the bundles to download."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench import __version__
from ccl_bench.base.errors import CclBenchError, UsageError
from ccl_bench.leaderboard.pages.compare import compare_page
from ccl_bench.leaderboard.pages.definitions import metrics_page
from ccl_bench.leaderboard.pages.frame import ASSETS, asset
from ccl_bench.leaderboard.pages.report import report
from ccl_bench.leaderboard.pages.run import run_page
from ccl_bench.leaderboard.pages.table import PHASES, table_page
from ccl_bench.leaderboard.pages.workload import workload_page, workloads_page
from ccl_bench.leaderboard.site.data import scripts
from ccl_bench.leaderboard.site.links import SiteLinks
from ccl_bench.leaderboard.store import answer, lookup
from ccl_bench.leaderboard.store.bundle import checked
from ccl_bench.leaderboard.store.export import csv_of, json_of
from ccl_bench.leaderboard.store.question import Question
from ccl_bench.report.render.html import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sqlalchemy import Connection

    from ccl_bench.engine import Progress
    from ccl_bench.leaderboard.store import Store

_TOP = SiteLinks()

MARK = ".ccl-bench-site"
"""File by which a folder is known as a site that may be replaced."""


@dataclass(frozen=True, slots=True)
class Written:
    """What a site came to."""

    runs: int
    files: int
    left_out: tuple[CclBenchError, ...]
    """Runs and reports that could not be shown, and why."""


def write_site(store: Store, folder: Path, *, force: bool = False, told: Progress | None = None) -> Written:
    """Write the site into a folder, all of it or nothing; `force` replaces one that is there.

    `told` is called with the number of runs written and their total.
    """
    folder = folder.resolve()
    _may_write(folder, force=force)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        made = Path(temporary) / "site"
        written = _Site(store, made).written(told)
        made.chmod(0o755)
        if folder.exists():
            folder.rename(Path(temporary) / "before")
        made.rename(folder)
    return written


def _may_write(folder: Path, *, force: bool) -> None:
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not (folder / MARK).is_file():
        raise UsageError(f"{folder} is there already and is no leaderboard", fix="choose another directory")
    if not force:
        raise UsageError(f"{folder} is there already", fix="give --force to replace it, or another directory")


class _Site:
    """A site in the making."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._files = 0
        self._left_out: list[CclBenchError] = []
        self._has_reports = False

    def written(self, told: Progress | None) -> Written:
        """Write everything, runs first: one that turns out to be damaged is then listed nowhere."""
        with self._store.engine.connect() as connection:
            runs = lookup.shown(connection)
            below = SiteLinks(up="../", phases=answer.phases(connection))
        damaged = []
        for done, run in enumerate(runs, start=1):
            try:
                self._run(run, below)
            except CclBenchError as error:
                self._left_out.append(error)
                damaged.append(run)
            if told:
                told(done, len(runs))
        self._store.index(damaged)
        self._lists()
        for name in ASSETS:
            if name != LIBRARY or self._has_reports:
                self._write(f"static/{name}", asset(name))
        self._write(MARK, f"ccl-bench {__version__}\n")
        return Written(len(runs) - len(damaged), self._files, tuple(self._left_out))

    def _lists(self) -> None:
        """Write what shows several runs."""
        with self._store.engine.connect() as connection:
            phases = answer.phases(connection)
            top, below = SiteLinks(phases=phases), SiteLinks(up="../", phases=phases)
            self._tables(connection, top)
            self._workloads(connection, top, below)
            for path, text in scripts(connection):
                self._write(f"data/{path}", text)
            metrics = answer.measured_metrics(connection)
        self._write("compare.html", compare_page([], top))
        self._write("metrics.html", metrics_page(top))
        self._write("runs.csv", csv_of(self._store.engine, Question(), metrics))
        self._write("runs.json", json_of(self._store.engine, Question()))

    def _tables(self, connection: Connection, to: SiteLinks) -> None:
        """Write every page of the table of each phase."""
        for phase in PHASES:
            if phase != "any" and not to.phases.get(phase):
                continue
            count = sum(to.phases.values()) if phase == "any" else to.phases[phase]
            for place in range(1, max(1, -(-count // Question().size)) + 1):
                asked = Question.model_validate({"phase": phase, "page": place})
                self._write(to.table(asked), table_page(connection, asked, to))

    def _workloads(self, connection: Connection, top: SiteLinks, below: SiteLinks) -> None:
        found = lookup.workloads(connection)
        self._write("workloads.html", workloads_page(found, top))
        for workload in found:
            runs = lookup.runs_of(connection, workload["key"])
            self._write(top.workload(workload["key"]), workload_page(workload, runs, below))

    def _run(self, run: str, to: SiteLinks) -> None:
        """Write the pages of a run and copy its bundle; raise InputError for one that is damaged."""
        with self._store.engine.connect() as connection:
            listed = lookup.run_named(connection, run)
        if listed is None:
            return
        bundle = checked(self._store.folder / run)
        page = run_page(bundle, listed, to)
        self._write(_TOP.run(run), page)
        for name in bundle.files:
            self._write(_TOP.file(run, name), bundle.bytes(name))
        if listed.run["has_report"]:
            try:
                self._write(_TOP.report(run), report(bundle, to))
                self._has_reports = True
            except CclBenchError as error:
                self._left_out.append(error)

    def _write(self, name: str, content: str | bytes | Iterable[str]) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            with path.open("w", encoding="utf-8") as stream:
                stream.writelines([content] if isinstance(content, str) else content)
        self._files += 1
