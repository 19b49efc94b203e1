"""The data that the script of a static site reads: runs, and the numbers of each metric in a file."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from sqlalchemy import select

from ccl_bench.leaderboard.pages.defaults import completed, usual_columns
from ccl_bench.leaderboard.pages.frame import BADGES, DIRECTIONS
from ccl_bench.leaderboard.pages.table import HEADINGS, LABELS
from ccl_bench.leaderboard.pages.words import cell
from ccl_bench.leaderboard.store import answer
from ccl_bench.leaderboard.store.export import FIELDS
from ccl_bench.leaderboard.store.history import LISTED, SHOWN
from ccl_bench.leaderboard.store.question import AXES, NUMBERS, SORTED_BY, TEXTS, Question
from ccl_bench.leaderboard.store.tables import RUNS, VALUES, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Connection

_HIDDEN = {"history_stamp", "has_report", "superseded_by"}


def scripts(connection: Connection) -> Iterator[tuple[str, str]]:
    """Yield each script as (path below `data/`, text)."""
    metrics = answer.measured_metrics(connection)
    yield "site.js", _assigned("site", _site(connection, metrics))
    asked = select(RUNS).where(RUNS.c.state.in_([state.value for state in SHOWN])).order_by(RUNS.c.id)
    runs = [dict(row) for row in connection.execute(asked).mappings()]
    yield "runs.js", _assigned("runs", _runs(connection, runs))
    places = {run["id"]: place for place, run in enumerate(runs)}
    for number, metric in enumerate(metrics):
        values = _values(connection, metric, places)
        yield f"numbers/{number}.js", _assigned(f"numbers[{_literal(metric)}]", values)


def _site(connection: Connection, metrics: list[str]) -> dict[str, Any]:
    """Return what the script must know to answer as the server does."""
    known: dict[str, Any] = {}
    for number, metric in enumerate(metrics):
        unit, better = answer.definition(connection, metric)
        known[metric] = {"unit": unit, "better": better, "file": number}
    return {
        "metrics": known,
        "phase": completed(Question(), answer.phases(connection)).phase,
        "usual": usual_columns(),
        "texts": TEXTS,
        "degrees": NUMBERS,
        "axes": AXES,
        "sortedBy": SORTED_BY,
        "labels": LABELS,
        "headings": HEADINGS,
        "listed": [state.value for state in LISTED],
        "badges": BADGES,
        "directions": DIRECTIONS,
        "fields": FIELDS,
    }


def _runs(connection: Connection, runs: list[dict[str, Any]]) -> dict[str, Any]:
    workloads = [dict(row) for row in connection.execute(select(WORKLOADS).order_by("key")).mappings()]
    places = {workload["key"]: place for place, workload in enumerate(workloads)}
    return {
        "workloads": [{name: each[name] for name in ("key", "label", "size")} for each in workloads],
        "rows": [
            {name: value for name, value in run.items() if name not in _HIDDEN}
            | {"row": row, "workload": places[run["workload"]]}
            for row, run in enumerate(runs)
        ],
    }


def _values(connection: Connection, metric: str, places: dict[str, int]) -> list[Any]:
    """Return one item a run: value, text, rank, ranked, kind, note, doubt; 0 without a number.

    Only numbers of one kind compare: of one revision and unit, measured alike. A number that an error makes
    doubtful says so; note and doubt are left out where neither tells anything.
    """
    found: list[Any] = [0] * len(places)
    kinds: dict[tuple[Any, ...], int] = {}
    asked = select(VALUES).where(VALUES.c.metric == metric).order_by(VALUES.c.run)
    for row in connection.execute(asked).mappings():
        number = answer.Number(**{name: row[name] for name in row if name not in {"run", "metric"}})
        shown = cell(metric, number)
        if row["run"] in places:
            kind = kinds.setdefault((number.revision, number.unit, number.measured), len(kinds))
            item = [number.value, shown.text, number.place, number.ranked, kind]
            apart = [shown.note, bool(number.errors)]
            found[places[row["run"]]] = [*item, *apart] if any(apart) else item
    return found


def _assigned(name: str, value: Any) -> str:
    return f"cclBench.{name} = {_literal(value)};\n"


def _literal(value: Any) -> str:
    """Return a value as JavaScript, of which nothing can end the script that it stands in."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")
