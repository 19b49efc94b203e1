"""The static site: every page of the leaderboard as a file, and the data that their script reads."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from ccl_bench import __version__
from ccl_bench.base.errors import CclBenchError, InputError, UsageError
from ccl_bench.base.text import INERT_PATTERN_ONCE, shown_json
from ccl_bench.leaderboard.bundle.format import LISTED, open_bundle
from ccl_bench.leaderboard.pages.answer import question_page
from ccl_bench.leaderboard.pages.compare import best_pair, compare_page
from ccl_bench.leaderboard.pages.feed import runs_feed
from ccl_bench.leaderboard.pages.gaps import gaps_page
from ccl_bench.leaderboard.pages.links import SHORT_ID, SiteLinks, question_name
from ccl_bench.leaderboard.pages.reference import metrics_page
from ccl_bench.leaderboard.pages.render import (
    ASSETS,
    BADGES,
    DIRECTIONS,
    load_asset,
    number_cell,
    render_page,
)
from ccl_bench.leaderboard.pages.reported import source_page
from ccl_bench.leaderboard.pages.run import full_report, published_run_page
from ccl_bench.leaderboard.pages.table import HEADINGS, PHASES, table_page
from ccl_bench.leaderboard.pages.titles import metric_hint, metric_title
from ccl_bench.leaderboard.pages.workload import workload_page, workloads_page
from ccl_bench.leaderboard.store import query_result
from ccl_bench.leaderboard.store.answers import every_question
from ccl_bench.leaderboard.store.columns import (
    AXES,
    EXPORT_FIELDS,
    FILTER_LABELS,
    NUMBER_FILTERS,
    SORTED_BY,
    TEXT_FILTERS,
)
from ccl_bench.leaderboard.store.parquet_export import write_parquet
from ccl_bench.leaderboard.store.query import RunQuery, complete_query, default_columns
from ccl_bench.leaderboard.store.query_result import export_csv, export_json
from ccl_bench.leaderboard.store.reported_rows import STATE
from ccl_bench.leaderboard.store.rows import number_rows
from ccl_bench.leaderboard.store.tables import RUNS, VALUES, WORKLOADS
from ccl_bench.report.render.html import LIBRARY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from sqlalchemy import Connection

    from ccl_bench.engine import Progress
    from ccl_bench.leaderboard.store import Store

__all__ = ["WrittenSite", "write_site"]


_HIDDEN = {"history_stamp", "has_report", "superseded_by", "is_listed", "curve", "interactivity"}
"""Columns that no page of the script shows."""


def data_scripts(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield each script as (path below `data/`, text)."""
    metrics = query_result.measured_metrics(connection)
    metric_data: dict[str, Any] = {}
    for number, metric in enumerate(metrics):
        unit, better = query_result.unit_and_direction(connection, metric)
        words = {"title": metric_title(metric), "hint": metric_hint(metric)}
        metric_data[metric] = {"unit": unit, "better": better, "file": number, **words}
    # What the script needs to answer like the server.
    site = {
        "metrics": metric_data,
        "phase": complete_query(RunQuery(), query_result.count_phases(connection)).phase,
        "usual": default_columns(),
        "texts": TEXT_FILTERS,
        "degrees": NUMBER_FILTERS,
        "axes": AXES,
        "sortedBy": SORTED_BY,
        "labels": FILTER_LABELS,
        "headings": HEADINGS,
        "listed": [*(state.value for state in LISTED), STATE],
        "badges": BADGES,
        "directions": DIRECTIONS,
        "fields": EXPORT_FIELDS,
        "formula": INERT_PATTERN_ONCE,
    }
    yield "site.js", _assignment("site", site)
    statement = select(RUNS).where(RUNS.c.state.in_(query_result.SHOWN_STATES)).order_by(RUNS.c.id)
    runs = [dict(row) for row in connection.execute(statement).mappings()]
    places = {run["id"]: place for place, run in enumerate(runs)}
    for run in runs:
        if run["source"]:
            # The script searches in its other columns, and the source has a page.
            run |= {"searched": None, "submitter": None, "name": None, "id": run["id"][:SHORT_ID]}
    workloads = connection.execute(select(WORKLOADS).order_by("key")).mappings().all()
    workload_places = {workload["key"]: place for place, workload in enumerate(workloads)}
    run_data = {
        "workloads": [{name: each[name] for name in ("key", "label", "size")} for each in workloads],
        "rows": [
            {name: value for name, value in run.items() if name not in _HIDDEN and value not in (None, "")}
            | {"row": row, "workload": workload_places[run["workload"]]}
            for row, run in enumerate(runs)
        ],
    }
    yield "runs.js", _assignment("runs", run_data)
    for number, metric in enumerate(metrics):
        values = _number_data(connection, metric, places)
        yield f"numbers/{number}.js", _assignment(f"numbers[{_literal(metric)}]", values)


def _number_data(connection: Connection, metric: str, places: dict[str, int]) -> list[Any]:
    """Return one item per run: value, text, rank, ranked, kind, note, doubt; 0 without a number.

    Only numbers of one kind are comparable: same revision, unit and way of measuring. `doubt` marks a number
    with an error in its data; note and doubt are left out if both are empty.
    """
    items: list[Any] = [0] * len(places)
    kinds: dict[tuple[Any, ...], int] = {}
    statement = number_rows().where(VALUES.c.metric == metric).order_by(VALUES.c.run)
    for row in connection.execute(statement).mappings():
        number = query_result.RunNumber(**{name: row[name] for name in row if name not in {"run", "metric"}})
        cell = number_cell(metric, number)
        if row["run"] in places:
            kind = kinds.setdefault((number.revision, number.unit, number.measured), len(kinds))
            # What others reported has a file with every digit.
            value = number.value if number.revision else float(f"{number.value:.6g}")
            item = [value, cell.text, number.place, number.ranked, kind]
            apart = [cell.note, bool(number.errors)]
            items[places[row["run"]]] = [*item, *apart] if any(apart) else item
    return items


def _assignment(name: str, value: Any) -> str:
    return f"cclBench.{name} = {_literal(value)};\n"


def _literal(value: Any) -> str:
    """Return a value as JavaScript that cannot end the script around it."""
    return shown_json(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


_TOP = SiteLinks()
_PUBLISHED = RunQuery(origin="published")
"""What the files for spreadsheets hold: rows reported elsewhere would make them larger than all pages."""
_DRAW_FIX = "withdraw the run, and report this with its identifier"

MARK = ".ccl-bench-site"
"""File that marks a folder as a site that may be replaced."""


@dataclass(frozen=True, slots=True)
class WrittenSite:
    """The outcome of writing a site."""

    runs: int
    files: int
    left_out: tuple[CclBenchError, ...]
    """Runs and reports that could not be rendered, and why."""


def write_site(
    store: Store, folder: Path, *, force: bool = False, progress: Progress | None = None
) -> WrittenSite:
    """Write the site into a folder, completely or not at all; `force` replaces an existing one.

    `progress` is called with the number of written runs and their total.
    """
    folder = folder.resolve()
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        if not (folder / MARK).is_file():
            fix = "choose another directory"
            raise UsageError(f"{folder} already exists and is not a leaderboard", fix=fix)
        if not force:
            fix = "give --force to replace it, or another directory"
            raise UsageError(f"{folder} already exists", fix=fix)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}.") as temporary:
        site = Path(temporary) / "site"
        written = _SiteWriter(store, site).write(progress)
        site.chmod(0o755)
        if folder.exists():
            folder.rename(Path(temporary) / "before")
        site.rename(folder)
    return written


class _SiteWriter:
    """A site while it is written."""

    def __init__(self, store: Store, folder: Path) -> None:
        self._store = store
        self._folder = folder
        self._files = 0
        self._left_out: list[CclBenchError] = []
        self._has_reports = False
        self._known: SiteLinks | None = None

    def write(self, progress: Progress | None) -> WrittenSite:
        """Write everything, runs first, so that a damaged run is listed nowhere."""
        with self._store.engine.connect() as connection:
            runs = query_result.public_run_ids(connection)
            below = self._links(connection, "../")
        damaged: dict[str, CclBenchError] = {}
        for done, run in enumerate(runs, start=1):
            try:
                self._run(run, below)
            except CclBenchError as error:
                damaged[run] = error
            except OSError:
                raise
            except Exception as error:  # a stranger wrote the run: it must not cost others the site
                where = str(self._store.folder / run)
                damaged[run] = InputError(f"cannot be drawn: {error}", where=where, fix=_DRAW_FIX)
            if progress:
                progress(done, len(runs))
        self._left_out += damaged.values()
        self._store.leave_out(damaged)
        self._lists()
        for name in ASSETS:
            if name != LIBRARY or self._has_reports:
                self._write(f"static/{name}", load_asset(name))
        self._write(MARK, f"ccl-bench {__version__}\n")
        return WrittenSite(len(runs) - len(damaged), self._files, tuple(self._left_out))

    def _lists(self) -> None:
        """Write the pages about several runs."""
        with self._store.engine.connect() as connection:
            phases = query_result.count_phases(connection)
            top, below = self._links(connection), self._links(connection, "../")
            for phase in PHASES:
                count = sum(phases.values()) if phase == "any" else phases.get(phase, 0)
                if not count and phase != "any":
                    continue
                last = max(1, -(-count // RunQuery().size))
                for place in range(1, min(top.pages_as_files or last, last) + 1):
                    query = RunQuery.model_validate({"phase": phase, "page": place})
                    self._page(top.table(query), partial(table_page, connection, query, top), top)
            workloads = query_result.list_workloads(connection)
            self._write("workloads.html", workloads_page(workloads, top))
            for workload in workloads:
                runs = query_result.runs_of_workload(connection, workload["key"])
                draw = partial(workload_page, workload, runs, below)
                self._page(top.workload(workload["key"]), draw, below)
            for question, name in top.questions.items():
                draw = partial(question_page, connection, RunQuery.model_validate(dict(question)), below)
                self._page(name, draw, below)
            for source, rows in query_result.list_sources(connection):
                self._write(top.source(source.name), source_page(source, rows, below))
            self._write(top.gaps(), gaps_page(connection, top))
            for path, text in data_scripts(connection):
                self._write(f"data/{path}", text)
            metrics = query_result.measured_metrics(connection)
            feed = runs_feed(connection, top)
            offered = best_pair(connection)
        self._write("compare.html", compare_page([], top, offered=offered))
        self._write("metrics.html", metrics_page(top))
        self._write("feed.atom", feed)
        for name, lines in (
            ("runs.csv", export_csv(self._store.engine, _PUBLISHED, metrics)),
            ("runs.json", export_json(self._store.engine, _PUBLISHED)),
        ):
            self._write(name, lines)
        with (self._folder / "runs.parquet").open("wb") as stream:
            write_parquet(self._store.engine, RunQuery(), metrics, stream)
        self._files += 1

    def _links(self, connection: Connection, up: str = "") -> SiteLinks:
        """Return the addresses of the site's pages, seen from a folder."""
        if self._known is None:
            by_source = select(RUNS.c.id, RUNS.c.source).where(RUNS.c.source.is_not(None))
            sources = {run[:SHORT_ID]: source for run, source in connection.execute(by_source)}
            questions = {
                tuple(sorted(each.items())): f"questions/{question_name(**each)}.html"
                for each in every_question(connection)
            }
            self._known = SiteLinks(
                phases=query_result.count_phases(connection), sources=sources, questions=questions
            )
        return replace(self._known, up=up)

    def _run(self, run: str, to: SiteLinks) -> None:
        """Write the pages of a run and copy its bundle; raise InputError if it is damaged."""
        with self._store.engine.connect() as connection:
            listed = query_result.find_run(connection, run)
        if listed is None:
            return
        bundle = open_bundle(self._store.folder / run)
        page = published_run_page(bundle, listed, to)
        self._write(_TOP.run(run), page)
        for name in bundle.public_files:
            self._write(_TOP.file(run, name), bundle.bytes(name))
        if listed.run["has_report"]:
            try:
                self._write(_TOP.report(run), full_report(bundle, to))
                self._has_reports = True
            except CclBenchError as error:
                self._left_out.append(error)

    def _page(self, name: str, draw: Callable[[], str], to: SiteLinks) -> None:
        """Write a page about several runs; if it cannot be drawn, its place says so."""
        try:
            page = draw().encode()
        except Exception as error:  # strangers wrote the runs: one page must not cost the others
            self._left_out.append(InputError(f"cannot be drawn: {error}", where=name, fix=_DRAW_FIX))
            message = "This page cannot be drawn."
            page = render_page("message.html", "Missing page", to, message=message, fix="").encode()
        self._write(name, page)

    def _write(self, name: str, content: str | bytes | Iterable[str]) -> None:
        path = self._folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, str | bytes):
            path.write_bytes(content.encode() if isinstance(content, str) else content)
        else:
            with path.open("w", encoding="utf-8") as stream:
                stream.writelines(content)
        self._files += 1
