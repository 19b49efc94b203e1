"""A query: which runs, in which order, with which columns; as an address writes it, and with its defaults."""

from __future__ import annotations

import pkgutil
import tomllib
from functools import cache
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
"""Degrees of parallelism."""

TEXT_FILTERS = ("model", "hardware", "framework", "communication_library", "precision")
"""Columns of text that a query may narrow down."""

NUMBER_FILTERS = ("device_count", "node_count", *AXES)
"""Columns of numbers that a query may narrow down."""

SORTED_BY = (
    *TEXT_FILTERS,
    *NUMBER_FILTERS,
    "submitted_at",
    "submitter",
    "name",
    "batch_size",
    "seq_len",
    "state",
)
"""Fields that runs can be sorted by, beside metrics."""

_LARGEST = 2**31 - 1


def _as_list(value: object) -> object:
    """Take one value for a list of one, and empty fields of a form for none."""
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return [each for each in values if each != ""]


def _empty_as_none(value: object) -> object:
    """Take an empty field of a form for none."""
    return None if value == "" else value


def _printable(text: str) -> str:
    """Leave out control characters, which no database searches for."""
    return "".join(char for char in text if char.isprintable())


Word = Annotated[str, Field(max_length=200), AfterValidator(_printable)]
Words = Annotated[
    list[Word],
    BeforeValidator(_as_list),
    AfterValidator(lambda words: [word for word in words if word]),
    Field(max_length=60),
]
Degree = Annotated[Annotated[int, Field(ge=1, le=_LARGEST)] | None, BeforeValidator(_empty_as_none)]


class RunQuery(BaseModel):
    """Which published runs, in which order."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    q: Annotated[Word, Field(description="Words that all must occur somewhere in a run.")] = ""
    phase: Annotated[
        Literal["", "any", "training", "inference"], Field(description="`any` or nothing for both.")
    ] = ""
    model: Annotated[Words, Field(description="Models, any of them.")] = []
    hardware: Annotated[Words, Field(description="Models of the device, any of them.")] = []
    framework: Annotated[Words, Field(description="Frameworks, any of them.")] = []
    communication_library: Annotated[Words, Field(description="Communication libraries, any of them.")] = []
    precision: Annotated[Words, Field(description="Number formats, any of them.")] = []
    device_count: Annotated[Degree, Field(description="Devices of the run.")] = None
    node_count: Annotated[Degree, Field(description="Nodes of the run.")] = None
    dp_replicate: Annotated[Degree, Field(description="Data-parallel degree that replicates weights.")] = None
    dp_shard: Annotated[Degree, Field(description="Data-parallel degree that shards weights.")] = None
    tp: Annotated[Degree, Field(description="Tensor-parallel degree.")] = None
    pp: Annotated[Degree, Field(description="Pipeline-parallel degree.")] = None
    cp: Annotated[Degree, Field(description="Context-parallel degree.")] = None
    ep: Annotated[Degree, Field(description="Expert-parallel degree.")] = None
    workload: Annotated[Word, Field(description="Key of a workload, or its beginning.")] = ""
    state: Annotated[
        Literal["", "self_reported", "verified", "withdrawn", "superseded"],
        Field(description="Nothing for both that are ranked."),
    ] = ""
    sort: Annotated[Word, Field(description="A metric, or a field such as submitted_at or model.")] = ""
    order: Annotated[
        Literal["", "asc", "desc"], Field(description="Nothing for the best, or the newest, first.")
    ] = ""
    together: Annotated[
        Literal["", "yes", "no"], Field(description="Whether runs of one workload stand together.")
    ] = ""
    columns: Annotated[Words, Field(description="Metrics to give.")] = []
    page: Annotated[int, Field(ge=1, le=100_000)] = 1
    size: Annotated[int, Field(ge=1, le=500, description="Runs on a page.")] = 50


def complete_query(query: RunQuery, phases: dict[str, int]) -> RunQuery:
    """Return the query with what it leaves open: phase, order and columns."""
    commonest = max(("training", "inference"), key=lambda phase: phases.get(phase, 0))
    is_known = bool(phases.get(commonest))
    phase = query.phase or (commonest if is_known and not query.workload else "any")
    usual = default_columns(phase)
    sort = query.sort or ("submitted_at" if phase == "any" and not query.workload else usual[0])
    together = query.together or ("no" if sort in SORTED_BY else "yes")
    chosen = query.columns or usual
    columns = chosen if sort in SORTED_BY or sort in chosen else [sort, *chosen]
    return query.model_copy(
        update={"phase": phase, "sort": sort, "together": together, "columns": list(dict.fromkeys(columns))}
    )


def default_columns(phase: str) -> list[str]:
    """Return the metrics that a table of a phase shows where nobody chose others."""
    return columns_by_phase()[phase]


@cache
def columns_by_phase() -> dict[str, list[str]]:
    """Return the same by phase."""
    return tomllib.loads((pkgutil.get_data(__package__, "columns.toml") or b"").decode())
