"""What the index answers to a question: runs, their numbers with ranks, and what else there is to ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sqlalchemy import String, and_, case, cast, func, literal, select, union_all

from ccl_bench.leaderboard.store.known import known_metrics
from ccl_bench.leaderboard.store.question import NUMBERS, SORTED_BY, TEXTS
from ccl_bench.leaderboard.store.ranks import is_listed
from ccl_bench.leaderboard.store.tables import RUNS, VALUES, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from sqlalchemy import Connection, Select
    from sqlalchemy.sql.elements import ColumnElement

    from ccl_bench.leaderboard.store.question import Question

_MOST_WORDS = 12


@dataclass(frozen=True, slots=True)
class Number:
    """One number of one run."""

    value: float
    unit: str
    better: str
    revision: int
    measured: str
    """How, as far as numbers that were measured otherwise do not compare."""
    errors: int
    doubts: int
    """Findings beyond notes that touch it."""
    place: int | None
    """Rank among comparable runs; None where it is not ranked."""
    ranked: int | None
    """Runs that it is ranked among."""

    @property
    def is_best(self) -> bool:
        """Whether it is the best of several."""
        return self.place == 1 and (self.ranked or 0) > 1


@dataclass(frozen=True, slots=True)
class Listed:
    """One run with the numbers that were asked for."""

    run: dict[str, Any]
    """Its row in the index."""
    workload: str
    """What it ran, in words."""
    workload_size: int
    """Listed runs of that workload."""
    numbers: dict[str, Number] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Answer:
    """One page of runs."""

    runs: list[Listed]
    total: int
    """Runs on all pages."""


def answered(connection: Connection, question: Question, columns: Sequence[str] | None = None) -> Answer:
    """Return the page of runs that a question asks for, with the numbers of some metrics, or of all."""
    where = conditions(question)
    total = connection.execute(select(func.count()).select_from(RUNS).where(*where)).scalar_one()
    asked = _ordered(select(RUNS, WORKLOADS.c.label, WORKLOADS.c.size).where(*where), question)
    asked = asked.limit(question.size).offset((question.page - 1) * question.size)
    rows = [dict(row) for row in connection.execute(asked).mappings()]
    wanted = None if columns is None else {*columns, question.sort}
    numbers = numbers_of(connection, [row["id"] for row in rows], wanted)
    return Answer(
        [Listed(row, row.pop("label"), row.pop("size"), numbers.get(row["id"], {})) for row in rows], total
    )


def numbers_of(
    connection: Connection, runs: Sequence[str], names: Iterable[str] | None = None
) -> dict[str, dict[str, Number]]:
    """Return the numbers of some runs by run and metric; of the named metrics only, if any are named."""
    found: dict[str, dict[str, Number]] = {run: {} for run in runs}
    asked = select(VALUES).where(VALUES.c.run.in_(runs))
    if names is not None:
        asked = asked.where(VALUES.c.metric.in_(sorted(names)))
    for row in connection.execute(asked).mappings():
        plain = {name: value for name, value in row.items() if name not in {"run", "metric"}}
        found[row["run"]][row["metric"]] = Number(**plain)
    return found


def conditions(question: Question, *, but: str = "") -> list[ColumnElement[bool]]:
    """Return what a run must fulfil; `but` names a column that may be anything."""
    state = question.state
    found = [RUNS.c.state == state if state else is_listed()]
    if question.phase not in {"", "any"}:
        found.append(RUNS.c.phase == question.phase)
    for name in TEXTS:
        if name != but and (wanted := getattr(question, name)):
            found.append(RUNS.c[name].in_(wanted))
    for name in NUMBERS:
        if name != but and (number := getattr(question, name)) is not None:
            found.append(RUNS.c[name] == number)
    if question.workload:
        found.append(RUNS.c.workload.startswith(question.workload, autoescape=True))
    words = question.q.lower().split()[:_MOST_WORDS]
    return found + [RUNS.c.searched.contains(word, autoescape=True) for word in words]


def _ordered(asked: Select[Any], question: Question) -> Select[Any]:
    """Return the question to the database with the order of its answer."""
    asked = asked.join(WORKLOADS, WORKLOADS.c.key == RUNS.c.workload)
    groups = (
        [WORKLOADS.c.size.desc(), WORKLOADS.c.label, WORKLOADS.c.key] if question.together == "yes" else []
    )
    column: ColumnElement[Any]
    if question.sort in SORTED_BY or not question.sort:
        column = RUNS.c[question.sort or "submitted_at"]
        is_falling = question.order == "desc" or (not question.order and column is RUNS.c.submitted_at)
    else:
        asked = asked.outerjoin(VALUES, and_(VALUES.c.run == RUNS.c.id, VALUES.c.metric == question.sort))
        column = VALUES.c.value
        is_falling = question.order == "desc"
        if not question.order:
            column, is_falling = (
                case((VALUES.c.better == "lower", -VALUES.c.value), else_=VALUES.c.value),
                True,
            )
    missing_last = case((column.is_(None), 1), else_=0)
    return asked.order_by(*groups, missing_last, column.desc() if is_falling else column.asc(), RUNS.c.id)


def choices(connection: Connection, question: Question) -> dict[str, list[tuple[str, int]]]:
    """Return the values that each column may be narrowed down to, each with the runs that are left then."""
    parts = [
        select(
            literal(name).label("name"), cast(RUNS.c[name], String).label("value"), func.count().label("runs")
        )
        .where(*conditions(question, but=name), RUNS.c[name].is_not(None))
        .group_by(RUNS.c[name])
        for name in (*TEXTS, *NUMBERS)
    ]
    found: dict[str, list[tuple[str, int]]] = {name: [] for name in (*TEXTS, *NUMBERS)}
    for name, value, runs in connection.execute(union_all(*parts)):
        found[name].append((value, runs))
    return {
        name: sorted(values, key=lambda each: (int(each[0]) if name in NUMBERS else 0, each[0].lower()))
        for name, values in found.items()
    }


def phases(connection: Connection) -> dict[str, int]:
    """Return the listed runs of each phase."""
    asked = select(RUNS.c.phase, func.count()).where(is_listed()).group_by(RUNS.c.phase)
    return {phase or "unknown": runs for phase, runs in connection.execute(asked)}


def measured_metrics(connection: Connection) -> list[str]:
    """Return the metrics that some run has a number of, sorted.

    The index of the table is read from one name to the next, so that the answer takes no longer the more
    numbers there are.
    """
    first = select(func.min(VALUES.c.metric).label("metric")).cte("names", recursive=True)
    following = select(func.min(VALUES.c.metric)).where(VALUES.c.metric > first.c.metric).scalar_subquery()
    names = first.union_all(select(following).where(first.c.metric.is_not(None)))
    asked = select(names.c.metric).where(names.c.metric.is_not(None))
    return sorted(connection.execute(asked).scalars())


def definition(connection: Connection, metric: str) -> tuple[str, str]:
    """Return unit and better direction of a metric, also of one that only another program knows."""
    if known := known_metrics().get(metric):
        return known.unit, known.better
    asked = select(VALUES.c.unit, VALUES.c.better).where(VALUES.c.metric == metric).limit(1)
    row = connection.execute(asked).first()
    return (row[0], row[1]) if row else ("", "neither")
