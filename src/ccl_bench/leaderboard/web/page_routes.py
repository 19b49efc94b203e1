"""Routes of the HTML pages."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse, Response

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.format import CARD, ORIGIN, SENT
from ccl_bench.leaderboard.pages import compare as comparing
from ccl_bench.leaderboard.pages import pictures
from ccl_bench.leaderboard.pages import workload as of_workload
from ccl_bench.leaderboard.pages.feed import runs_feed
from ccl_bench.leaderboard.pages.gaps import gaps_page
from ccl_bench.leaderboard.pages.reference import api_page, metrics_page
from ccl_bench.leaderboard.pages.render import ASSETS, load_asset
from ccl_bench.leaderboard.pages.reported import ReportedSide, reported_page, source_page
from ccl_bench.leaderboard.pages.run import full_report, published_run_page
from ccl_bench.leaderboard.pages.table import table_page
from ccl_bench.leaderboard.store import query_result
from ccl_bench.leaderboard.store.query import RunQuery  # noqa: TC001  FastAPI looks it up
from ccl_bench.leaderboard.web.dependencies import current_store, page_links
from ccl_bench.leaderboard.web.security import DRAWING_POLICY, EMBEDDED

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccl_bench.leaderboard.store import Store
    from ccl_bench.leaderboard.store.query_result import ListedRun

router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)

_DRAWING = {"content-security-policy": DRAWING_POLICY}
_SVG = "image/svg+xml"
_TYPES = {"css": "text/css", "js": "text/javascript"}
_KEPT_SECONDS = 300
"""How long a browser may keep a style sheet without asking again."""


def _page(path: str) -> Callable[[Any], Any]:
    return router.api_route(path, methods=["GET", "HEAD"])


@_page("/")
def table(request: Request, query: Annotated[RunQuery, Query()]) -> str:
    """Show the table of runs."""
    with current_store(request).engine.connect() as connection:
        return table_page(connection, query, page_links(request))


@_page("/runs/{run}")
def one_run(request: Request, run: str) -> str:
    """Show one run."""
    store, listed = _find_run(request, run)
    if listed.run["source"]:
        with store.engine.connect() as connection:
            return reported_page(connection, listed, page_links(request))
    return published_run_page(store.bundle(listed.run["id"]), listed, page_links(request))


@_page("/sources/{name}")
def one_source(request: Request, name: str) -> str:
    """Show where rows that were reported elsewhere come from."""
    with current_store(request).engine.connect() as connection:
        source_rows = query_result.find_source(connection, name)
    if source_rows is None:
        raise InputError(f"there is no source {name}")
    return source_page(*source_rows, page_links(request))


@_page("/runs/{run}/report")
def run_report(request: Request, run: str) -> HTMLResponse:
    """Show the report of a run."""
    store, listed = _find_run(request, run)
    page = full_report(store.bundle(listed.run["id"]), page_links(request))
    return HTMLResponse(page, headers=_DRAWING)


@_page("/runs/{run}/files/{name}")
def run_file(request: Request, run: str, name: str) -> Response:
    """Return one file of a bundle as a download."""
    store, listed = _find_run(request, run)
    if name not in SENT:
        raise InputError(f"a bundle has no file {name}")
    path = store.bundle(listed.run["id"]).folder / name
    if not path.is_file():
        raise InputError(f"this run has no file {name}")
    kind = {CARD: "text/yaml", ORIGIN: "text/plain"}.get(name, "application/json")
    return FileResponse(path, media_type=kind, filename=f"{listed.run['id'][:12]}-{name}")


@_page("/gaps")
def all_gaps(request: Request) -> str:
    """Show which standard workloads have rows."""
    with current_store(request).engine.connect() as connection:
        return gaps_page(connection, page_links(request))


@_page("/runs/{run}/badge.svg")
def run_badge(request: Request, run: str) -> Response:
    """Return the badge of a run."""
    return Response(pictures.run_badge(_find_run(request, run)[1]), media_type=_SVG, headers=EMBEDDED)


@_page("/feed.atom")
def feed(request: Request) -> Response:
    """Return the feed of new runs."""
    with current_store(request).engine.connect() as connection:
        text = runs_feed(connection, page_links(request))
    return Response(text, media_type="application/atom+xml")


@_page("/workloads")
def all_workloads(request: Request) -> str:
    """Show the workloads."""
    with current_store(request).engine.connect() as connection:
        return of_workload.workloads_page(query_result.list_workloads(connection), page_links(request))


@_page("/workloads/{key}")
def one_workload(request: Request, key: str, metric: str = "", by: str = "") -> str:
    """Show one workload and the trend of a metric."""
    workload, runs = _find_workload(request, key)
    return of_workload.workload_page(workload, runs, page_links(request), metric=metric, by=by)


@_page("/workloads/{key}/picture.svg")
def workload_picture(request: Request, key: str, metric: str = "", by: str = "") -> Response:
    """Return the trend of a metric of a workload as a picture for other pages."""
    picture = pictures.workload_picture(*_find_workload(request, key), metric=metric, by=by)
    if picture is None:
        raise InputError(f"no run of the workload {key} has a value to draw")
    return Response(picture, media_type=_SVG, headers=EMBEDDED)


@_page("/compare")
def compare(request: Request, run: Annotated[list[str], Query()] = []) -> HTMLResponse:  # noqa: B006
    """Compare runs; without any, the two best comparable ones of the largest workload."""
    if not run:
        with current_store(request).engine.connect() as connection:
            offered = comparing.best_pair(connection)
        try:
            return _comparison(request, offered, comparing.OFFERED if offered else "")
        except InputError:  # a stranger's run must not take the page from others
            return _comparison(request, [], "")
    note = f"At most {comparing.MAX_RUNS} runs can be compared." if len(run) > comparing.MAX_RUNS else ""
    return _comparison(request, list(dict.fromkeys(run))[: comparing.MAX_RUNS], note)


def _comparison(request: Request, runs: list[str], note: str) -> HTMLResponse:
    chosen = [_find_run(request, each) for each in runs]
    pairs = [
        (ReportedSide(listed) if listed.run["source"] else store.bundle(listed.run["id"]), listed)
        for store, listed in chosen
    ]
    return HTMLResponse(comparing.compare_page(pairs, page_links(request), note=note), headers=_DRAWING)


@_page("/metrics")
def all_metrics(request: Request) -> str:
    """Show the definitions of the metrics."""
    return metrics_page(page_links(request))


@_page("/api")
def interface(request: Request) -> str:
    """Show the page of the HTTP API."""
    return api_page(request.app.openapi(), page_links(request))


@_page("/static/{name}")
def shared(request: Request, name: str) -> Response:
    """Return a style sheet or script."""
    if name not in ASSETS:
        raise InputError(f"there is no file {name}")
    text = load_asset(name)
    tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
    headers = {"etag": tag, "cache-control": f"max-age={_KEPT_SECONDS}"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return PlainTextResponse(text, media_type=_TYPES[name.rpartition(".")[2]], headers=headers)


def _find_run(request: Request, run: str) -> tuple[Store, ListedRun]:
    store = current_store(request)
    with store.engine.connect() as connection:
        listed = query_result.find_run(connection, run)
    if listed is None:
        raise InputError(f"there is no run {run}", fix="Identifiers are hexadecimal, 8 digits or more.")
    return store, listed


def _find_workload(request: Request, key: str) -> tuple[dict[str, Any], list[ListedRun]]:
    with current_store(request).engine.connect() as connection:
        workload = query_result.find_workload(connection, key)
        if workload is None:
            raise InputError(f"there is no workload {key}")
        return workload, query_result.runs_of_workload(connection, workload["key"])
