"""The interface for programs that read: runs, one run, workloads, as JSON and CSV."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import StreamingResponse

from ccl_bench import __version__
from ccl_bench.leaderboard.store import lookup
from ccl_bench.leaderboard.store.answer import answered, measured_metrics
from ccl_bench.leaderboard.store.export import csv_of, json_of, plain
from ccl_bench.leaderboard.store.question import Question  # noqa: TC001  FastAPI looks it up
from ccl_bench.leaderboard.web.asking import store_of
from ccl_bench.leaderboard.web.models import (
    EventAnswer,
    Health,
    Refusal,
    RunAnswer,
    RunDetails,
    RunsAnswer,
    WorkloadAnswer,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

router = APIRouter(prefix="/api/v1", tags=["results"])

_MISSING: dict[int | str, dict[str, Any]] = {404: {"model": Refusal, "description": "There is none."}}
_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {}}, "description": "All pages."}}
_LIST: dict[int | str, dict[str, Any]] = {200: {"model": list[RunAnswer], "description": "All pages."}}


@router.get("/health")
def health(request: Request) -> Health:
    """Tell whether the server and its database answer."""
    return Health(status="ok", version=__version__, runs=store_of(request).count)


@router.get("/runs")
def runs(request: Request, question: Annotated[Question, Query()]) -> RunsAnswer:
    """Return a page of published runs, each with its numbers and ranks.

    Without `columns` all numbers are given.
    """
    with store_of(request).engine.connect() as connection:
        found = answered(connection, question, question.columns or None)
    listed = [RunAnswer.model_validate(plain(each)) for each in found.runs]
    return RunsAnswer(total=found.total, page=question.page, size=question.size, runs=listed)


@router.get("/runs.csv", responses=_CSV, response_class=StreamingResponse)
def runs_csv(request: Request, question: Annotated[Question, Query()]) -> StreamingResponse:
    """Return every run of the answer as CSV; `page` and `size` are not looked at."""
    engine = store_of(request).engine
    with engine.connect() as connection:
        metrics = question.columns or measured_metrics(connection)
    return _file(csv_of(engine, question, metrics), "text/csv; charset=utf-8", "runs.csv")


@router.get("/runs.json", responses=_LIST, response_class=StreamingResponse)
def runs_json(request: Request, question: Annotated[Question, Query()]) -> StreamingResponse:
    """Return every run of the answer as a JSON list; `page` and `size` are not looked at."""
    return _file(json_of(store_of(request).engine, question), "application/json", "runs.json")


@router.get("/runs/{run}", responses=_MISSING)
def run(request: Request, run: str) -> RunDetails:
    """Return one run with its card, results, provenance and history; 8 digits of its identifier will do."""
    store = store_of(request)
    with store.engine.connect() as connection:
        listed = lookup.run_named(connection, run)
    if listed is None:
        raise HTTPException(404, f"there is no run {run}")
    bundle = store.bundle(listed.run["id"])
    return RunDetails(
        run=RunAnswer.model_validate(plain(listed)),
        card=bundle.fields,
        results=msgspec.to_builtins(bundle.results),
        provenance=msgspec.to_builtins(bundle.provenance),
        history=[
            EventAnswer(state=e.state, at=e.at, by=e.by, note=e.note, superseded_by=e.superseded_by)
            for e in bundle.history
        ],
    )


@router.get("/workloads")
def workloads(request: Request) -> list[WorkloadAnswer]:
    """Return the workloads that have listed runs, those with most runs first."""
    with store_of(request).engine.connect() as connection:
        found = lookup.workloads(connection)
    return [
        WorkloadAnswer(
            key=each["key"], label=each["label"], runs=each["size"], fields=json.loads(each["fields"])
        )
        for each in found
    ]


def _file(text: Iterator[str], kind: str, name: str) -> StreamingResponse:
    saved = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(text, media_type=kind, headers=saved)
