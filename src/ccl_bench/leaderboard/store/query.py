"""Queries: selection, order and columns of runs, as an address states them, with defaults."""

from __future__ import annotations

import pkgutil
import tomllib
from functools import cache
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, create_model

from ccl_bench.base.text import plain
from ccl_bench.leaderboard.store.columns import FILTERS, SORTED_BY


def _as_list(value: object) -> object:
    """Convert a single value to a list, and an empty form field to none."""
    values = value if isinstance(value, list | tuple) else [] if value is None else [value]
    return [each for each in values if each != ""]


# As in the index: PostgreSQL refuses NUL.
Word = Annotated[str, Field(max_length=200), AfterValidator(plain)]
Words = Annotated[
    list[Word],
    BeforeValidator(_as_list),
    AfterValidator(lambda words: [word for word in words if word]),
    Field(max_length=60),
]
# The largest is that of an INTEGER of PostgreSQL; an empty field of a form is no filter.
Degree = Annotated[
    Annotated[int, Field(ge=1, le=2**31 - 1)] | None,
    BeforeValidator(lambda value: None if value == "" else value),
]


class _Search(BaseModel):
    """The base of every query."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    q: Annotated[Word, Field(description="Words that must all occur somewhere in a run.")] = ""
    phase: Annotated[
        Literal["", "any", "training", "inference"], Field(description="`any` or nothing for both.")
    ] = ""


if TYPE_CHECKING:

    class _Filters(_Search):
        model: list[str] = []
        input_len: int | None = None
        output_len: int | None = None

else:
    _Filters = create_model(
        "_Filters",
        __base__=_Search,
        **{
            column.name: (
                Annotated[
                    Words if column.type is str else Degree, Field(description=column.filter_description)
                ],
                [] if column.type is str else None,
            )
            for column in FILTERS
        },
    )


class RunQuery(_Filters):
    """A query for published runs: a filter for each column that has one, and the order."""

    workload: Annotated[Word, Field(description="Key of a workload, or a prefix of it.")] = ""
    state: Annotated[
        Literal["", "self_reported", "verified", "withdrawn", "superseded", "reported"],
        Field(description="Empty for both ranked states."),
    ] = ""
    origin: Annotated[
        Literal["", "published", "reported"],
        Field(description="`published` for runs with a bundle, `reported` for rows reported elsewhere."),
    ] = ""
    sort: Annotated[Word, Field(description="A metric, or a field such as submitted_at or model.")] = ""
    order: Annotated[
        Literal["", "asc", "desc"], Field(description="Empty for the best, or the newest, first.")
    ] = ""
    together: Annotated[
        Literal["", "yes", "no"], Field(description="Whether runs of one workload are grouped.")
    ] = ""
    columns: Annotated[Words, Field(description="Metrics to return.")] = []  # noqa: RUF012  pydantic copies it
    matters: Annotated[Word, Field(description="Metric of the answer above the table.")] = ""
    interactivity: Annotated[
        Annotated[float, Field(gt=0, le=1e6)] | None,
        BeforeValidator(lambda value: None if value == "" else value),
        Field(description="Least tokens per second of a user, for that answer."),
    ] = None
    page: Annotated[int, Field(ge=1, le=100_000)] = 1
    size: Annotated[int, Field(ge=1, le=500, description="Runs on a page.")] = 50


def complete_query(query: RunQuery, phases: dict[str, int]) -> RunQuery:
    """Return the query with defaults filled in: phase, order and columns."""
    commonest = max(("training", "inference"), key=lambda phase: phases.get(phase, 0))
    is_known = bool(phases.get(commonest))
    phase = query.phase or (commonest if is_known and not query.workload else "any")
    usual = default_columns()[phase]
    sort = query.sort or ("submitted_at" if phase == "any" and not query.workload else usual[0])
    together = query.together or ("no" if sort in SORTED_BY else "yes")
    metric_columns = query.columns or usual
    columns = metric_columns if sort in SORTED_BY or sort in metric_columns else [sort, *metric_columns]
    return query.model_copy(
        update={"phase": phase, "sort": sort, "together": together, "columns": list(dict.fromkeys(columns))}
    )


@cache
def default_columns() -> dict[str, list[str]]:
    """Return the metrics that a table of a phase shows by default; the phase `any` stands for all."""
    return tomllib.loads((pkgutil.get_data(__package__, "default_columns.toml") or b"").decode())
