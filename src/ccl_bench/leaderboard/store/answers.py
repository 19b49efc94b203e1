"""Answers to a visitor's question: the best rows by system or library, and libraries compared in pairs."""

from __future__ import annotations

import pkgutil
import tomllib
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from operator import attrgetter, itemgetter
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

from sqlalchemy import func, select

from ccl_bench.analysis.serving.curves import interpolated, pareto_front
from ccl_bench.leaderboard.bundle.format import State
from ccl_bench.leaderboard.store.board_numbers import DERIVED
from ccl_bench.leaderboard.store.columns import AXES
from ccl_bench.leaderboard.store.query import RunQuery
from ccl_bench.leaderboard.store.query_result import Matching, counted_by, is_narrowed, where_clauses
from ccl_bench.leaderboard.store.rows import is_listed
from ccl_bench.leaderboard.store.tables import RUN_COUNTS, RUNS, VALUES, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from sqlalchemy import Column, Connection, Row

INTERACTIVITY = "interactivity"


@dataclass(frozen=True, slots=True)
class Goal:
    """What matters to a visitor: a metric of a phase."""

    phase: str
    metric: str
    title: str
    words: str
    one_work: bool = False


@cache
def goals() -> tuple[Goal, ...]:
    """Return the goals, in order of preference."""
    raw = pkgutil.get_data(__package__, "questions.toml") or b""
    return tuple(Goal(**each) for each in tomllib.loads(raw.decode())["goal"])


class Candidate(NamedTuple):
    """One row that answers, with its number."""

    run: dict[str, Any]
    """Columns of its row: a few for every candidate; `describe` adds those that a page shows."""
    value: float
    unit: str
    better: str
    interactivity: float | None
    """Tokens/s of a user; None if the row has no time per output token."""

    @property
    def order(self) -> tuple[float, str]:
        """A key that sorts the better number first."""
        return (self.value if self.better == "lower" else -self.value, self.run["id"])


@dataclass(frozen=True, slots=True)
class Hollow:
    """A point between two measured ones of a curve, on a line with both axes logarithmic."""

    run: dict[str, Any]
    """The measured row next to it, with the higher throughput."""
    interactivity: float
    value: float


@dataclass(frozen=True, slots=True)
class PairedLibraries:
    """Two libraries on rows that agree in everything else; ratios are `second` by `first`."""

    first: str
    second: str
    ratios: list[float]
    runs: list[tuple[str, str]]
    better: str

    @property
    def middle(self) -> float:
        """Median ratio."""
        return median(self.ratios)


@dataclass(frozen=True, slots=True)
class BoardAnswer:
    """The answer to a question, with the question as it was understood."""

    query: RunQuery
    goal: Goal
    workload: tuple[str, str] | None
    """Key and label of the only workload; None where rows of several can be compared."""
    by: str
    """Column that distinguishes the best rows: `hardware`, or `communication_library`."""
    best: list[Candidate]
    """The best row of each system or library, the best first."""
    measured: Candidate | None
    """The best row whose numbers were recomputed from their traces; None if nobody measured one here."""
    is_derived: bool
    """Whether a number of these rows follows from others that were measured, and was not itself."""
    points: list[Candidate]
    """Every row that answers, by identifier."""
    ranked: list[Candidate]
    """The same, the best first."""
    fronts: dict[str, list[Candidate]]
    """System → its points that no other one of it dominates, by rising interactivity."""
    hollow: list[Hollow]
    """The value of each system at the asked interactivity, between measured points."""
    pairs: list[PairedLibraries]
    goals: list[Goal]
    """Goals that rows of this question have numbers for."""
    others: list[tuple[dict[str, Any], int]]
    """Further questions with their number of rows: changes of the query."""


_COLUMNS = ("id", "workload", "hardware", "communication_library", "curve", "state")
"""Columns that every candidate has: a question may have thousands."""
_DESCRIBED = (
    *("id", "submitted_at", "submitter", "name", "source", "variant"),
    *("model", "precision", "batch_size", "seq_len", "input_len", "output_len", "concurrency"),
    *("device_count", "node_count", "framework", "framework_version", "communication_version", *AXES),
)
_AT_ONCE = 500
"""Rows that one statement names: a database takes a limited number of parameters."""
_FIRST = 20
"""Numbers among which one of a row of the question is looked for first."""
_QUESTIONS = 12
"""Further questions that are offered."""


def answer(connection: Connection, query: RunQuery, matching: Matching | None = None) -> BoardAnswer | None:
    """Return the answer to a completed query; None if no row has a number that any goal asks for.

    A query that names no model is answered for the one with the most rows, and says so. `matching` are the
    counts of the query, if the caller has them.
    """
    phase = query.phase if query.phase in {"training", "inference"} else _commonest_phase(connection)
    query = query.model_copy(update={"phase": phase})
    if not query.model and not query.workload and (model := _commonest_model(connection, query, matching)):
        query = query.model_copy(update={"model": [model]})
    others = _other_questions(connection, query)
    if phase == "inference" and query.input_len is None and query.output_len is None:
        if is_narrowed(query.model_copy(update={"model": []})):
            for input_len, output_len, _ in _commonest_lengths(connection, query, 1):
                query = query.model_copy(update={"input_len": input_len, "output_len": output_len})
        elif others and others[0][0]["input_len"] is not None:
            query = query.model_copy(update=others[0][0])
    rows = _rows(connection, query)
    workloads = sorted({row[1] for row in rows.values()})
    offered = _goals_with_rows(connection, rows, workloads, phase)
    goal = _chosen_goal(offered, query.matters, phase)
    if goal is None:
        return None
    points = _candidates(connection, rows, workloads, goal.metric)
    pairs = _pairs(connection, points)
    workload = None
    if goal.one_work and points:
        by_workload: dict[str, list[Candidate]] = {}
        for each in points:
            by_workload.setdefault(each.run["workload"], []).append(each)
        key, points = max(by_workload.items(), key=lambda item: (len(item[1]), item[0]))
        label = connection.execute(select(WORKLOADS.c.label).where(WORKLOADS.c.key == key)).scalar_one()
        workload = (key, label)
    floor = query.interactivity
    ranked = _ranked(points)
    answering = [p for p in ranked if floor is None or (p.interactivity or 0.0) >= floor]
    by = "hardware"
    if (
        len({point.run[by] for point in answering}) == 1
        and len({p.run["communication_library"] for p in answering}) > 1
    ):
        by = "communication_library"
    best = _best(answering, by)
    measured = next((each for each in answering if each.run["state"] == State.VERIFIED), None)
    describe(connection, [*best, *([measured] if measured else [])])
    fronts = _fronts(points) if phase == "inference" and goal.metric != INTERACTIVITY else {}
    return BoardAnswer(
        query,
        goal,
        workload,
        by,
        best,
        measured,
        _is_derived(connection, best, goal.metric),
        points,
        ranked,
        fronts,
        _hollow(points, floor),
        pairs,
        [*offered],
        others,
    )


def _is_derived(connection: Connection, rows: Sequence[Candidate], metric: str) -> bool:
    """Whether the board derived a number of some rows from other ones."""
    of_rows = VALUES.c.run.in_([each.run["id"] for each in rows[:_AT_ONCE]])
    derived = select(VALUES.c.run).where(of_rows, VALUES.c.metric == metric)
    return (
        connection.execute(derived.where(VALUES.c.measured.startswith(DERIVED)).limit(1)).first() is not None
    )


def _commonest_phase(connection: Connection) -> str:
    counts = RUN_COUNTS.c
    statement = select(counts.phase).where(counts.field == "", counts.phase != "")
    return connection.execute(statement.order_by(counts["count"].desc()).limit(1)).scalar() or "training"


def _commonest_model(connection: Connection, query: RunQuery, matching: Matching | None) -> str | None:
    if matching is None or matching.phase != query.phase:
        counted = connection.execute(counted_by(query, "model"))
        models = [(model, rows) for model, rows in counted if model is not None]
    else:
        models = matching.options["model"]
    return min(models, key=lambda each: (-each[1], each[0]), default=("", 0))[0] or None


def _commonest_models(connection: Connection, query: RunQuery, most: int) -> list[tuple[str, int]]:
    """Return the models of a phase with their numbers of rows, those with the most first."""
    counts = RUN_COUNTS.c
    models = select(counts.value, counts["count"]).where(counts.field == "model", counts.phase == query.phase)
    ordered = models.order_by(counts["count"].desc(), counts.value).limit(most)
    return [(model, rows) for model, rows in connection.execute(ordered)]


def _commonest_lengths(
    connection: Connection, query: RunQuery, most: int
) -> list[tuple[int, int | None, int]]:
    """Return tokens of a prompt and of an answer with their numbers of rows, those with the most first."""
    counted = counted_by(query, "input_len", "output_len")
    input_len, output_len, count = counted.selected_columns
    ordered = counted.where(input_len.is_not(None)).order_by(count.desc(), input_len, output_len).limit(most)
    return [(row[0], row[1], row[2]) for row in connection.execute(ordered)]


def _other_questions(connection: Connection, query: RunQuery) -> list[tuple[dict[str, Any], int]]:
    """Return further questions: lengths of this model, and the models with the most rows."""
    questions: list[tuple[dict[str, Any], int]] = []
    if query.phase == "inference" and query.model:
        of_model = RunQuery(model=query.model, phase=query.phase)
        questions += [
            ({"input_len": input_len, "output_len": output_len, "model": query.model}, rows)
            for input_len, output_len, rows in _commonest_lengths(connection, of_model, _QUESTIONS)
        ]
    questions += [
        ({"model": [model], "input_len": None, "output_len": None}, rows)
        for model, rows in _commonest_models(connection, query, _QUESTIONS)
        if [model] != query.model
    ]
    return questions


def every_question(connection: Connection, fewest: int = 5) -> list[dict[str, Any]]:
    """Return the questions that a board can answer: models of a phase, and pairs of lengths of a server.

    Lengths with fewer rows than `fewest` show no curve.
    """
    columns = (RUNS.c.phase, RUNS.c.model, RUNS.c.input_len, RUNS.c.output_len)
    statement = select(*columns, func.count()).where(
        is_listed(), RUNS.c.phase.is_not(None), RUNS.c.model.is_not(None)
    )
    questions: dict[tuple[Any, ...], None] = {}
    for phase, model, input_len, output_len, rows in connection.execute(
        statement.group_by(*columns).order_by(*columns)
    ):
        questions[phase, model, None, None] = None
        if phase == "inference" and input_len and output_len and rows >= fewest:
            questions[phase, model, input_len, output_len] = None
    names = ("phase", "model", "input_len", "output_len")
    return [dict(zip(names, each, strict=True)) for each in questions]


def _rows(connection: Connection, query: RunQuery) -> dict[str, Row[*tuple[Any, ...]]]:
    """Return a few columns of the rows of a query by identifier, their interactivity last."""
    statement = select(*(RUNS.c[name] for name in (*_COLUMNS, INTERACTIVITY))).where(
        *where_clauses(query, is_scan=True)
    )
    return {row[0]: row for row in connection.execute(statement).all()}


def _numbers(
    connection: Connection,
    metric: str,
    workloads: Sequence[str],
    *columns: Column[Any],
    most: int | None = None,
) -> Iterator[Row[*tuple[Any, ...]]]:
    """Yield the run and some columns of the numbers of a metric in workloads, at most so many of each part.

    They are neighbours in an index: to look the number of each row up takes several times as long.
    """
    for start in range(0, len(workloads), _AT_ONCE):
        is_of_rows = VALUES.c.workload.in_(workloads[start : start + _AT_ONCE])
        statement = select(VALUES.c.run, *columns).where(is_of_rows, VALUES.c.metric == metric).limit(most)
        yield from connection.execute(statement).all()


def _goals_with_rows(
    connection: Connection, rows: Mapping[str, Row[*tuple[Any, ...]]], workloads: Sequence[str], phase: str
) -> dict[Goal, int]:
    """Return the goals of a phase that rows have numbers for, with how many; of a server one is enough."""
    counts = {}
    for goal in goals():
        if goal.phase == phase:
            metric, most = goal.metric, _FIRST if phase == "inference" else None
            runs = [run for (run,) in _numbers(connection, metric, workloads, most=most)]
            counts[goal] = sum(run in rows for run in runs)
            if most and not counts[goal] and len(runs) >= most:  # there may be more
                counts[goal] = sum(run in rows for (run,) in _numbers(connection, metric, workloads))
    return {goal: count for goal, count in counts.items() if count}


def _chosen_goal(offered: dict[Goal, int], metric: str, phase: str) -> Goal | None:
    """Return the goal that a query names, else the first one; of a training, the one with the most rows."""
    if metric:
        return next((goal for goal in offered if goal.metric == metric), None)
    if phase == "inference":
        return next(iter(offered), None)
    return max(offered, key=lambda goal: offered[goal], default=None)


def _candidates(
    connection: Connection, rows: Mapping[str, Row[*tuple[Any, ...]]], workloads: Sequence[str], metric: str
) -> list[Candidate]:
    """Return the rows that have a number of a metric, sorted by identifier."""
    columns = (VALUES.c.value, VALUES.c.unit, VALUES.c.better, VALUES.c.errors)
    numbers = _numbers(connection, metric, workloads, *columns)
    of_rows = sorted((number for number in numbers if number[0] in rows and not number[4]), key=itemgetter(0))
    return [
        Candidate(dict(zip(_COLUMNS, row := rows[run], strict=False)), value, unit, better, row[-1])
        for run, value, unit, better, _ in of_rows
    ]


def _ranked(points: Sequence[Candidate]) -> list[Candidate]:
    """Return points by identifier as points by `order`."""
    if len({each.better for each in points}) > 1:
        return sorted(points, key=attrgetter("order"))
    is_falling = bool(points) and points[0].better != "lower"
    return sorted(points, key=attrgetter("value"), reverse=is_falling)


def describe(connection: Connection, candidates: Iterable[Candidate]) -> None:
    """Complete the rows of some candidates."""
    waiting = {each.run["id"]: each.run for each in candidates if "name" not in each.run}
    ids = [*waiting]
    for start in range(0, len(ids), _AT_ONCE):
        is_waiting = RUNS.c.id.in_(ids[start : start + _AT_ONCE])
        statement = select(*(RUNS.c[name] for name in _DESCRIBED)).where(is_waiting)
        for row in connection.execute(statement).mappings():
            waiting[row["id"]].update(row)


def _best(ranked: Iterable[Candidate], by: str) -> list[Candidate]:
    best: dict[str, Candidate] = {}
    for each in ranked:
        best.setdefault(each.run[by] or "unknown", each)
    return [*best.values()]


def _fronts(points: Sequence[Candidate]) -> dict[str, list[Candidate]]:
    by_system: dict[str, list[Candidate]] = {}
    for each in points:
        if each.interactivity:
            by_system.setdefault(each.run["hardware"] or "unknown", []).append(each)
    fronts = {}
    for name, its in by_system.items():
        sign = -1.0 if its[0].better == "lower" else 1.0
        front = pareto_front([p.interactivity or 0.0 for p in its], [sign * p.value for p in its])
        fronts[name] = [its[index] for index in front]
    return fronts


def _hollow(points: Sequence[Candidate], floor: float | None) -> list[Hollow]:
    """Return the highest value of each system at the asked interactivity, between measured points of a curve.

    Leaving out a measured point and reading it off the line of its neighbours gives the time per output token
    within 5 %; a time to first token is not read off (docs/sweeps.md).
    """
    if floor is None or not points or points[0].better == "lower":
        return []
    curves: dict[str, list[Candidate]] = {}
    for each in points:
        if each.interactivity and each.run["curve"]:
            curves.setdefault(each.run["curve"], []).append(each)
    best: dict[str, Hollow] = {}
    for its in curves.values():
        by_users = {p.interactivity: p for p in sorted(its, key=lambda p: p.value) if p.interactivity}
        value = interpolated([*by_users], [p.value for p in by_users.values()], floor)
        if value is None or floor in by_users:
            continue
        nearest = max(
            (p for users, p in by_users.items() if users < floor), key=lambda p: p.interactivity or 0.0
        )
        name = nearest.run["hardware"] or "unknown"
        if name not in best or value > best[name].value:
            best[name] = Hollow(nearest.run, floor, value)
    measured = dict.fromkeys(best, 0.0)
    for each in points:
        if (each.interactivity or 0.0) >= floor and (name := each.run["hardware"] or "unknown") in measured:
            measured[name] = max(measured[name], each.value)
    return [each for name, each in best.items() if each.value > measured[name]]


_SAME = (
    "workload",
    "hardware",
    "device_count",
    "node_count",
    "framework",
    "source",
    "variant",
    "concurrency",
    *AXES,
)
"""What two rows have in common that differ in their communication library alone."""
_PAIR = 2


def _pairs(connection: Connection, points: Iterable[Candidate]) -> list[PairedLibraries]:
    """Return each pair of libraries with the ratios of their numbers; of rows that agree the best counts."""
    with_library = [each for each in points if each.run["communication_library"]]
    if len({each.run["communication_library"] for each in with_library}) < _PAIR:
        return []
    describe(connection, with_library)
    alike: dict[tuple[Any, ...], dict[str, Candidate]] = {}
    for each in with_library:
        library = each.run["communication_library"]
        libraries = alike.setdefault(tuple(each.run[name] for name in _SAME), {})
        if library not in libraries or each.order < libraries[library].order:
            libraries[library] = each
    pairs: dict[tuple[str, str], PairedLibraries] = {}
    for libraries in alike.values():
        # NCCL is what most rows have, so that others are compared with it.
        for first, second in combinations(sorted(libraries, key=lambda name: (name != "NCCL", name)), 2):
            one, other = libraries[first], libraries[second]
            if one.value > 0:
                pair = pairs.setdefault((first, second), PairedLibraries(first, second, [], [], one.better))
                pair.ratios.append(other.value / one.value)
                pair.runs.append((one.run["id"], other.run["id"]))
    return sorted(pairs.values(), key=lambda pair: (-len(pair.ratios), pair.first, pair.second))
