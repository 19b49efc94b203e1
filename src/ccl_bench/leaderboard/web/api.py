"""The HTTP API for readers: runs, one run and workloads, as JSON, CSV and Parquet."""

from __future__ import annotations

import json
import tempfile
from typing import IO, TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, HTTPException, Query, Request
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel, Field, create_model

from ccl_bench import __version__
from ccl_bench.base.text import escape_json
from ccl_bench.leaderboard.store import query_result
from ccl_bench.leaderboard.store.answers import answer
from ccl_bench.leaderboard.store.columns import CARD_COLUMNS
from ccl_bench.leaderboard.store.log import last_entry
from ccl_bench.leaderboard.store.parquet_export import write_parquet
from ccl_bench.leaderboard.store.query import RunQuery  # noqa: TC001  FastAPI looks it up
from ccl_bench.leaderboard.store.query_result import (
    export_csv,
    export_json,
    find_runs,
    measured_metrics,
    run_as_dict,
)
from ccl_bench.leaderboard.web.dependencies import current_store

if TYPE_CHECKING:
    from collections.abc import Iterator


class NumberAnswer(BaseModel):
    """One number of one run."""

    value: float
    unit: str
    better: Literal["higher", "lower", "neither"]
    revision: int = Field(description="Of the metric's definition.")
    measured: str = Field(description="How it was measured, if that decides which numbers are comparable.")
    errors: int = Field(description="Findings about the data that are errors: such a number is not ranked.")
    doubts: int = Field(description="Warnings and errors that affect the number.")
    place: int | None = Field(description="Rank among comparable runs, 1 is best; null if not ranked.")
    ranked: int | None = Field(description="Number of runs that it is ranked among.")
    low: float | None = Field(description="Smallest of repeats; null where nobody repeated it.")
    high: float | None = Field(description="Largest of repeats.")
    repeats: int | None = Field(description="Number of repeats, of which the value is the median.")


class _RunIdentity(BaseModel):
    """Identity of a published run."""

    id: str = Field(description="SHA-256 of the bundle.")
    state: Literal["self_reported", "verified", "withdrawn", "superseded", "reported"]
    submitted_at: str = Field(description="ISO 8601, UTC.")
    submitter: str
    superseded_by: str | None
    name: str = Field(description="Name of the run's directory.")
    workload: str = Field(description="Key of the workload: runs with the same one did the same work.")
    workload_label: str


if TYPE_CHECKING:
    _RunColumns = _RunIdentity
else:
    _RunColumns = create_model(
        "_RunColumns",
        __base__=_RunIdentity,
        **{
            column.name: (column.type | None, Field(description=column.description))
            for column in CARD_COLUMNS
        },
    )


class RunAnswer(_RunColumns):
    """One published run."""

    tool_version: str = Field(description="Version of ccl-bench.")
    trace_url: str | None
    has_report: bool
    signed_by: str | None = Field(
        description="Id of the publisher's key that signed the origin; null for an unsigned run."
    )
    source: str | None = Field(description="Source of a row that was reported elsewhere; null for a run.")
    variant: str | None = Field(description="What else its configuration is, in words.")
    numbers: dict[str, NumberAnswer] = Field(description="Metric to number.")


class RunsAnswer(BaseModel):
    """One page of runs."""

    total: int = Field(description="Runs on all pages.")
    page: int
    size: int
    runs: list[RunAnswer]


class EventAnswer(BaseModel):
    """One change of a run's state."""

    state: str
    at: str
    by: str
    note: str
    superseded_by: str | None
    key: str = Field(description="Id of the key that signed the origin, where this event brought it.")


class RunDetails(BaseModel):
    """One published run with everything in its bundle."""

    run: RunAnswer
    card: dict[str, Any] = Field(description="Fields that the card states, by name.")
    results: list[dict[str, Any]] = Field(
        description="The results, in the format of ccl-metrics --format json."
    )
    provenance: dict[str, Any]
    history: list[EventAnswer]


class BestRow(BaseModel):
    """The best row of one system or library."""

    run: str = Field(description="Identifier of the row.")
    state: str
    hardware: str | None
    device_count: int | None
    framework: str | None
    communication_library: str | None
    precision: str | None
    value: float
    unit: str
    interactivity: float | None = Field(description="Tokens per second of a user.")


class LibraryPair(BaseModel):
    """Two communication libraries on rows that agree in everything else."""

    first: str
    second: str
    ratios: list[float] = Field(description="Number of the second by that of the first, pair by pair.")
    runs: list[tuple[str, str]]


class QuestionAnswer(BaseModel):
    """The answer above the table, and the question as it was understood."""

    model: list[str]
    phase: str
    input_len: int | None
    output_len: int | None
    workload: str | None = Field(description="The only workload whose rows were compared.")
    metric: str
    interactivity: float | None
    best: list[BestRow]
    pairs: list[LibraryPair]
    rows: int = Field(description="Rows that were compared.")


class SourceAnswer(BaseModel):
    """A source of rows that were reported elsewhere."""

    name: str
    title: str
    address: str
    licence: str
    date: str
    rows: int


class WorkloadAnswer(BaseModel):
    """A workload: the common fields of runs that are ranked together."""

    key: str
    label: str
    runs: int = Field(description="Listed runs.")
    fields: dict[str, Any]


class Health(BaseModel):
    """Whether the server answers."""

    status: Literal["ok"]
    version: str
    runs: int = Field(description="Runs in the index, in any state.")


class LogHead(BaseModel):
    """The last entry of the log of the board."""

    entries: int = Field(description="Entries in the log.")
    head: str | None = Field(
        description="Number and hash of the last entry; keep it to check a later log. Null without entries."
    )


class Refusal(BaseModel):
    """Why a call was refused."""

    detail: str
    fix: str = ""


router = APIRouter(prefix="/api/v1", tags=["results"])

_PART_BYTES = 1 << 16
"""Of a file that is sent."""

_MISSING: dict[int | str, dict[str, Any]] = {404: {"model": Refusal, "description": "There is none."}}
_CSV: dict[int | str, dict[str, Any]] = {200: {"content": {"text/csv": {}}, "description": "All pages."}}
_PARQUET: dict[int | str, dict[str, Any]] = {
    200: {"content": {"application/vnd.apache.parquet": {}}, "description": "All pages."}
}
_LIST: dict[int | str, dict[str, Any]] = {200: {"model": list[RunAnswer], "description": "All pages."}}


@router.get("/health")
def health(request: Request) -> Health:
    """Report whether the server and its database answer."""
    return Health(status="ok", version=__version__, runs=current_store(request).count)


@router.get("/log")
def log(request: Request) -> LogHead:
    """Return the head of the log, in which every change of every run has an entry."""
    with current_store(request).engine.connect() as connection:
        last = last_entry(connection)
    return LogHead(entries=last.number if last else 0, head=last.head if last else None)


@router.get("/runs")
def runs(request: Request, query: Annotated[RunQuery, Query()]) -> RunsAnswer:
    """Return a page of published runs, each with its numbers and ranks.

    Without `columns` all numbers are given.
    """
    with current_store(request).engine.connect() as connection:
        result = find_runs(connection, query, query.columns or None)
    listed = [RunAnswer.model_validate(run_as_dict(each)) for each in result.runs]
    return RunsAnswer(total=result.total, page=query.page, size=query.size, runs=listed)


@router.get("/runs.csv", responses=_CSV, response_class=StreamingResponse)
def runs_csv(request: Request, query: Annotated[RunQuery, Query()]) -> StreamingResponse:
    """Return every run of the answer as CSV; `page` and `size` are ignored."""
    engine = current_store(request).engine
    with engine.connect() as connection:
        metrics = query.columns or measured_metrics(connection)
    return _file(export_csv(engine, query, metrics), "text/csv; charset=utf-8", "runs.csv")


@router.get("/runs.json", responses=_LIST, response_class=StreamingResponse)
def runs_json(request: Request, query: Annotated[RunQuery, Query()]) -> StreamingResponse:
    """Return every run of the answer as a JSON list; `page` and `size` are ignored."""
    return _file(export_json(current_store(request).engine, query), "application/json", "runs.json")


@router.get("/runs.parquet", responses=_PARQUET, response_class=StreamingResponse)
def runs_parquet(request: Request, query: Annotated[RunQuery, Query()]) -> StreamingResponse:
    """Return every run of the answer as Parquet, with the columns of the CSV.

    `page` and `size` are ignored.
    """
    engine = current_store(request).engine
    with engine.connect() as connection:
        metrics = query.columns or measured_metrics(connection)
    table = tempfile.TemporaryFile()  # noqa: SIM115  it lives until the answer is sent
    write_parquet(engine, query, metrics, table)
    table.seek(0)
    return _file(_parts(table), "application/vnd.apache.parquet", "runs.parquet")


@router.get("/runs/{run}", responses=_MISSING | {200: {"model": RunDetails}})
def run(request: Request, run: str) -> Response:
    """Return one run with its card, results, provenance and history; 8 digits of its identifier suffice."""
    store = current_store(request)
    with store.engine.connect() as connection:
        listed = query_result.find_run(connection, run)
    if listed is None:
        raise HTTPException(404, f"there is no run {run}")
    if listed.run["source"]:
        raise HTTPException(404, f"the row {run} was reported elsewhere and has no bundle")
    bundle = store.bundle(listed.run["id"])
    # Encoded without a copy as plain data: the details of a stranger may be large.
    details = {
        "run": RunAnswer.model_validate(run_as_dict(listed)).model_dump(),
        "card": bundle.fields,
        "results": bundle.results,
        "provenance": bundle.provenance,
        "history": [msgspec.structs.asdict(event) for event in bundle.history],
    }
    return Response(escape_json(msgspec.json.encode(details)), media_type="application/json")


@router.get("/answer", responses=_MISSING)
def question(request: Request, query: Annotated[RunQuery, Query()]) -> QuestionAnswer:
    """Return the best rows for a question: model, lengths, systems, and what matters."""
    with current_store(request).engine.connect() as connection:
        result = answer(connection, query)
    if result is None:
        raise HTTPException(404, "no row has a number that answers this")
    completed = result.query
    return QuestionAnswer(
        model=completed.model,
        phase=result.goal.phase,
        input_len=completed.input_len,
        output_len=completed.output_len,
        workload=result.workload[1] if result.workload else None,
        metric=result.goal.metric,
        interactivity=completed.interactivity,
        best=[
            BestRow(
                run=each.run["id"],
                **{name: each.run[name] for name in BestRow.model_fields if name in each.run},
                value=each.value,
                unit=each.unit,
                interactivity=each.interactivity,
            )
            for each in result.best
        ],
        pairs=[
            LibraryPair(first=pair.first, second=pair.second, ratios=pair.ratios, runs=pair.runs)
            for pair in result.pairs
        ],
        rows=len(result.points),
    )


@router.get("/sources")
def sources(request: Request) -> list[SourceAnswer]:
    """Return the sources of rows that were reported elsewhere."""
    with current_store(request).engine.connect() as connection:
        listed = query_result.list_sources(connection)
    return [
        SourceAnswer(
            **{name: getattr(each, name) for name in SourceAnswer.model_fields if name != "rows"}, rows=rows
        )
        for each, rows in listed
    ]


@router.get("/workloads")
def workloads(request: Request) -> list[WorkloadAnswer]:
    """Return the workloads that have listed runs, those with most runs first."""
    with current_store(request).engine.connect() as connection:
        rows = query_result.list_workloads(connection)
    return [
        WorkloadAnswer(
            key=each["key"], label=each["label"], runs=each["size"], fields=json.loads(each["fields"])
        )
        for each in rows
    ]


def _parts(file: IO[bytes]) -> Iterator[bytes]:
    with file:
        while part := file.read(_PART_BYTES):
            yield part


def _file(text: Iterator[str] | Iterator[bytes], kind: str, name: str) -> StreamingResponse:
    saved = {"content-disposition": f'attachment; filename="{name}"'}
    return StreamingResponse(text, media_type=kind, headers=saved)
