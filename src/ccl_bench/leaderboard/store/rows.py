"""Rows of the index: conversion of bundles, counts, and ranks of numbers."""

from __future__ import annotations

import hashlib
import json
import math
import struct
from collections import Counter
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Integer, bindparam, case, delete, exists, func, literal, select, update
from sqlalchemy.dialects import postgresql, sqlite

from ccl_bench import metrics
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.text import plain
from ccl_bench.card.comparison_fields import unknown_fields
from ccl_bench.catalog import devices, models
from ccl_bench.comparison import comparison_key
from ccl_bench.comparison.comparability import result_rules
from ccl_bench.leaderboard.bundle.format import LISTED, REPORT, history_stamp
from ccl_bench.leaderboard.store.board_numbers import DERIVED, LITTLE, board_numbers, derive
from ccl_bench.leaderboard.store.columns import CARD_COLUMNS, NUMBER_FILTERS, TEXT_FILTERS
from ccl_bench.leaderboard.store.tables import (
    ELSEWHERE,
    GROUPED,
    RANK_COUNTS,
    RUN_COUNTS,
    RUN_GROUPS,
    RUNS,
    VALUES,
    WORKLOADS,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sqlalchemy import Connection, ScalarSelect, Select, Table
    from sqlalchemy.sql.elements import ColumnElement

    from ccl_bench.card.comparison_fields import Fields
    from ccl_bench.leaderboard.bundle.format import Bundle
    from ccl_bench.metrics import Metric
    from ccl_bench.result import Result


@cache
def known_metrics() -> dict[str, Metric]:
    """Return the metrics by name, without unit variants of others."""
    return {metric.name: metric for metric in metrics.load() if not metric.variant_of}


@cache
def unit_variants() -> frozenset[str]:
    """Return the names of the unit variants."""
    return frozenset(metric.name for metric in metrics.load() if metric.variant_of)


Row = dict[str, Any]

MAX_TEXT = 500
"""Longest text in the index."""


def run_row(bundle: Bundle) -> Row:
    """Return the row of a published run."""
    history, fields, provenance = bundle.history, bundle.fields, bundle.provenance
    last, first = history[-1], history[0]
    row: Row = {
        "id": bundle.id,
        "state": last.state.value,
        "is_listed": int(last.state in LISTED),
        "submitted_at": first.at or single_line(provenance.made_at),
        "submitter": single_line(first.by or bundle.card.value.contributor or ""),
        "superseded_by": last.superseded_by,
        "workload": workload_key(fields),
        "is_rankable": int(not unknown_fields(fields)),
        "name": single_line(provenance.run),
        "tool_version": single_line(provenance.tool_version),
        "trace_url": _text(provenance.trace_url or bundle.card.value.trace_url),
        "has_report": int((bundle.folder / REPORT).exists()),
        "signed_by": bundle.signed_by,
        "history_stamp": history_stamp(bundle.folder),
    }
    row |= {"source": None, "variant": None, "curve": None, "interactivity": None}
    return row | described_row(
        fields, [row["name"], row["submitter"], bundle.card.value.description, bundle.id]
    )


def described_row(fields: Mapping[str, object], words: Iterable[object]) -> Row:
    """Return the columns of a row that describe what ran on what; a search finds them and further words."""
    row: Row = {}
    for column in CARD_COLUMNS:
        value = fields.get(column.field)
        row[column.name] = _number(value) if column.type is int else _short(_text(value))
    # Different spellings of one model or device share a filter: the catalog's name, where it knows one.
    row["model"] = _short(_model(fields))
    row["hardware"] = _device_name(row["hardware"]) if row["hardware"] else None
    every = [row["hardware"], row["model"], *fields.values(), *words]
    row["searched"] = single_line(
        " ".join(str(word) for word in every if word is not None).lower(), 4 * MAX_TEXT
    )
    return row


def workload_row(fields: Fields) -> Row:
    """Return the row of the workload that a run belongs to."""
    stated_values = {name: value for name, value in comparison_key(fields) if value is not None}
    if model := _model(stated_values):
        stated_values["model.model_family"] = model
    parts = [text.format(stated_values[name]) for name, text in _LABEL.items() if name in stated_values]
    if stated_values.get("model.granularity") not in {None, "model-fwd-bwd-pass"}:
        parts.append(f"traced {stated_values['model.granularity']}")
    return {
        "key": workload_key(fields),
        "label": single_line(", ".join(parts) or "unknown workload"),
        "fields": json.dumps(stated_values),
    }


_LABEL = {
    **dict.fromkeys(("model.model_family", "model.phase", "model.precision"), "{}"),
    "data.global_batch_size": "batch {}",
    "data.seq_len": "{} tokens a sequence",
    "data.input_len": "{} tokens in",
    "data.output_len": "{} tokens out",
    "model.architecture.num_layers": "{} layers",
    "data.dataset": "data {}",
}
"""Field → its part of the label of a workload."""


def workload_key(fields: Fields) -> str:
    """Return the hash of the fields that runs must have in common to be ranked together."""
    return hashlib.sha256(json.dumps(comparison_key(fields)).encode()).hexdigest()


def value_rows(bundle: Bundle, run: Row) -> Iterator[Row]:
    """Yield a row for each number of a run, without unit variants."""
    by_name = {single_line(result.metric, 100): result for result in bundle.results}
    by_metric: dict[str, Row] = {}
    for name, claimed in by_name.items():
        if name in unit_variants() or claimed.value is None or not math.isfinite(claimed.value):
            continue
        definition = known_metrics().get(name)
        severities = [finding.severity for finding in claimed.findings]
        number = {
            "run": bundle.id,
            "metric": name,
            "value": claimed.value,
            "unit": single_line(claimed.unit),
            "better": definition.better if definition else claimed.better,
            "revision": _number(claimed.provenance.metric_revision) or 0,
            "measured": measurement_basis(claimed),
            "errors": severities.count("error"),
            "doubts": severities.count("error") + severities.count("warning"),
            **_ONE_VALUE,
        }
        if not number["errors"]:
            by_metric[name] = number
        yield placed_value(run, number)
    for name, value, sources in derive(
        run, {metric: number["value"] for metric, number in by_metric.items()}
    ):
        of_board = board_numbers()[name]
        bases = [by_metric[metric]["measured"] for metric in sources]
        number = {
            "run": bundle.id,
            "metric": name,
            "value": value,
            "unit": of_board["unit"],
            "better": of_board["better"],
            # A number compares no further than those that it follows from.
            "revision": sum(by_metric[metric]["revision"] for metric in sources),
            "measured": single_line(
                "; ".join(dict.fromkeys(filter(None, [*([DERIVED] if sources == LITTLE else []), *bases])))
            ),
            "errors": 0,
            "doubts": max(by_metric[metric]["doubts"] for metric in sources),
            **_ONE_VALUE,
        }
        yield placed_value(run, number)


_ONE_VALUE = {"low": None, "high": None, "repeats": None}
"""Spread of a number that has none."""


def interactivity_of(numbers: Iterable[Row]) -> float | None:
    """Return tokens/s of a user among the rows of a run's numbers."""
    return next((number["value"] for number in numbers if number["metric"] == "interactivity"), None)


def measurement_basis(result: Result) -> str:
    """Return the basis of a measured number, if it decides which numbers are comparable."""
    basis = {"window": result.window}
    for rule in result_rules():
        if rule.what == "detail" and rule.effect == "blocks" and rule.detail in result.details:
            basis[rule.detail.replace("_", " ")] = str(result.details[rule.detail])
    return single_line(", ".join(f"{name}: {value}" for name, value in basis.items() if value))


def single_line(text: str, longest: int = MAX_TEXT) -> str:
    """Return text that every database accepts: one line, harmless, truncated."""
    return " ".join(plain(text).split())[:longest]


_SHORT_BYTES = 360
"""Of a text of a card: six of them are in one index, and PostgreSQL takes 2,700 bytes in an entry of one."""


def _short(text: str | None) -> str | None:
    return text.encode()[:_SHORT_BYTES].decode(errors="ignore") if text else text


def _text(value: object) -> str | None:
    return None if value is None else single_line(str(value)) or None


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value < 1 << 31 else None  # INTEGER of PostgreSQL


def _model(fields: Mapping[str, object]) -> str | None:
    """Return the catalog's name of a public model, else the name as written."""
    stated_model = _text(fields.get("model.model_family"))
    return _catalog_name(stated_model) if stated_model else None


@lru_cache(maxsize=1000)
def _catalog_name(name: str) -> str:
    # To look for similar names of one that the catalog lacks takes a millisecond.
    try:
        return models.model(name).name
    except NotMeasurable:
        return name


@lru_cache(maxsize=1000)
def _device_name(name: str) -> str:
    names = devices.models(name)
    return names[0] if len(names) == 1 else name


def is_listed() -> ColumnElement[bool]:
    """Return the condition that a run is listed."""
    return RUNS.c.is_listed == 1


COUNTED = (*TEXT_FILTERS, *NUMBER_FILTERS, "workload")
"""Fields by which runs are counted."""

_ALL, _COARSE, _FINE = 63, 47, 39
"""Bits of a rank key that its spans drop, level by level.

There are 32 coarse spans from a number to its double, and each holds 256 fine ones.
"""

_COMPARABLE_BY = ("metric", "better", "unit", "revision", "measured")
"""Fields that numbers of one workload must have in common to be ranked together."""


def placed_value(run: Row, number: Row) -> Row:
    """Return the row of a number with its sort keys: among all, in its workload, among comparable ones.

    Numbers are not ranked if their run is not listed, if its card does not state the workload, or if an error
    in the data makes them doubtful.
    """
    comparable = None
    if run["is_listed"] and run["is_rankable"] and not number["errors"] and number["better"] != "neither":
        comparable_key = json.dumps([run["workload"], *(number[name] for name in _COMPARABLE_BY)])
        comparable = hashlib.sha256(comparable_key.encode()).hexdigest()[:32]
    return {
        **number,
        "workload": run["workload"],
        "is_listed": run["is_listed"],
        "comparable": comparable,
        "rank_key": _rank_key(number["value"], number["better"]),
    }


def _rank_key(value: float, better: str) -> int:
    """Return a 64-bit integer that rises from the best number to the worst, equal for equal ones.

    The bits of a positive number, read as an integer, rise with it; those of a negative one fall.
    """
    (bits,) = struct.unpack("<q", struct.pack("<d", (value if better == "lower" else -value) + 0.0))
    return int(bits) if bits >= 0 else -(int(bits) + (1 << 63))


def change_counts(
    connection: Connection,
    *,
    added: tuple[Iterable[Row], Iterable[Row]] = ((), ()),
    removed: tuple[Iterable[Row], Iterable[Row]] = ((), ()),
) -> None:
    """Update the counts for rows of runs and of their numbers that were added and removed."""
    runs: Counter[tuple[Any, ...]] = Counter()
    numbers: Counter[tuple[Any, ...]] = Counter()
    groups: Counter[tuple[Any, ...]] = Counter()
    for (its_runs, its_numbers), by in ((added, 1), (removed, -1)):
        for run in its_runs:
            source = ELSEWHERE if run["source"] else None
            groups[run["is_listed"], run["state"], source, *(run[name] for name in GROUPED)] += by
            if run["is_listed"]:
                fields = {"": "", **{name: run[name] for name in COUNTED if run[name] is not None}}
                for name, value in fields.items():
                    runs[run["phase"] or "", name, str(value)] += by
        for number in its_numbers:
            if number["comparable"]:
                for level in (_ALL, _COARSE, _FINE):
                    numbers[number["comparable"], level, number["rank_key"] >> level] += by
    by_key = {(group_key(group), *group): by for group, by in groups.items()}
    for table, changes in ((RUN_COUNTS, runs), (RANK_COUNTS, numbers), (RUN_GROUPS, by_key)):
        _add_to(connection, table, changes)


def group_key(group: tuple[Any, ...]) -> str:
    """Return the hash of what the runs of a group have in common."""
    return hashlib.sha256(json.dumps(group).encode()).hexdigest()[:32]


def _add_to(connection: Connection, table: Table, changes: Mapping[tuple[Any, ...], int]) -> None:
    """Add to the counts of a table, and drop counts of zero.

    Rows are changed in one order, so that two writers never wait for each other.
    """
    keys = list(table.primary_key)
    names = [column.name for column in table.c]
    rows = [
        dict(zip(names, (*place, by), strict=True))
        for place, by in sorted(changes.items(), key=lambda change: change[0][: len(keys)])
        if by
    ]
    if not rows:
        return
    insertion = {"sqlite": sqlite, "postgresql": postgresql}[connection.dialect.name].insert(table)
    raised = insertion.on_conflict_do_update(
        index_elements=keys, set_={"count": table.c.count + insertion.excluded["count"]}
    )
    connection.execute(raised, rows)
    if fallen := [{f"_{name}": value for name, value in row.items()} for row in rows if row["count"] < 0]:
        same = [key == bindparam(f"_{key.name}") for key in keys]
        connection.execute(delete(table).where(*same, table.c["count"] == 0), fallen)


def update_workloads(connection: Connection, workloads: Iterable[str]) -> None:
    """Recount the listed runs of some workloads, and remove those without any run."""
    of_these = WORKLOADS.c.key.in_(sorted(workloads))
    has_runs = exists().where(RUNS.c.workload == WORKLOADS.c.key)
    connection.execute(delete(WORKLOADS).where(of_these, ~has_runs))
    size = select(func.count()).where(RUNS.c.workload == WORKLOADS.c.key, is_listed()).scalar_subquery()
    connection.execute(update(WORKLOADS).where(of_these).values(size=size))


@cache
def number_rows() -> Select[Any]:
    """Return the query for numbers with their ranks: `place` counts the better ones, `ranked` all of them.

    Better numbers in whole spans are counted by span; only those in the same small span are compared one by
    one. So a rank takes about as long among 100 numbers as among 100,000.
    """
    # Measured with SQLite, processor time of the newest page: 8 ms of 10,000 runs and 10 ms of 100,000. To
    # count the better rows takes 14 ms and 34 ms, and 160 ms where 10,000 runs share one workload; a window
    # over all comparable rows takes 115 ms and 2.3 s.
    counts, near, key = RANK_COUNTS.c, VALUES.alias(), VALUES.c.rank_key
    coarse, fine = _shifted(key, ">>", _COARSE), _shifted(key, ">>", _FINE)
    first_fine, first_key = _shifted(coarse, "<<", _COARSE - _FINE), _shifted(fine, "<<", _FINE)
    better = (
        _counted(counts.level == _COARSE, counts.span < coarse),
        _counted(counts.level == _FINE, counts.span >= first_fine, counts.span < fine),
        select(func.count())
        .where(near.c.comparable == VALUES.c.comparable, near.c.rank_key >= first_key, near.c.rank_key < key)
        .correlate(VALUES)
        .scalar_subquery(),
    )
    is_ranked = VALUES.c.comparable.is_not(None)
    place = case((is_ranked, 1 + better[0] + better[1] + better[2]))
    ranked = case((is_ranked, _counted(counts.level == _ALL)))
    columns = [column for column in VALUES.c if column.name not in _ORDERING]
    return select(*columns, place.label("place"), ranked.label("ranked"))


def _shifted(number: ColumnElement[int], direction: str, bits: int) -> ColumnElement[int]:
    return number.op(direction, return_type=BigInteger())(literal(bits, Integer))


_ORDERING = {"workload", "is_listed", "comparable", "rank_key"}
"""Internal columns that order numbers."""


def _counted(*conditions: ColumnElement[bool]) -> ScalarSelect[Any]:
    """Return the count of comparable numbers in the spans that match conditions."""
    total = func.coalesce(func.sum(RANK_COUNTS.c["count"]), 0)
    is_comparable = RANK_COUNTS.c.comparable == VALUES.c.comparable
    return select(total).where(is_comparable, *conditions).correlate(VALUES).scalar_subquery()
