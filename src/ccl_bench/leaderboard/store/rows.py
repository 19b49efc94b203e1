"""The rows of the index: how a bundle becomes rows, and how comparable numbers are ranked."""

from __future__ import annotations

import hashlib
import json
import math
from functools import cache
from typing import TYPE_CHECKING, Any

from sqlalchemy import and_, case, func, select, update

from ccl_bench import metrics
from ccl_bench.catalog import devices
from ccl_bench.comparison import comparison_key, unknown_fields
from ccl_bench.comparison.comparability import result_rules
from ccl_bench.leaderboard.bundle.format import LISTED, REPORT, history_stamp
from ccl_bench.leaderboard.store.columns import CARD_COLUMNS
from ccl_bench.leaderboard.store.tables import RUNS, VALUES, WORKLOADS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from sqlalchemy import Connection, Subquery
    from sqlalchemy.sql.elements import ColumnElement

    from ccl_bench.comparison.comparability import Fields
    from ccl_bench.leaderboard.bundle.format import Bundle
    from ccl_bench.leaderboard.store.columns import CardColumn
    from ccl_bench.metrics import Metric
    from ccl_bench.result import Result


@cache
def known_metrics() -> dict[str, Metric]:
    """Return the metrics by their names, without those that are another's number in another unit."""
    return {metric.name: metric for metric in metrics.load() if not metric.variant_of}


@cache
def unit_variants() -> frozenset[str]:
    """Return the names of those that are."""
    return frozenset(metric.name for metric in metrics.load() if metric.variant_of)


Row = dict[str, Any]

MAX_TEXT = 500
"""Characters of a text that the index keeps."""
_LONGEST_NAME = 100
_LARGEST = 2**31 - 1


def run_row(bundle: Bundle) -> Row:
    """Return the row of a published run."""
    history, fields, made = bundle.history, bundle.fields, bundle.provenance
    last, first = history[-1], history[0]
    row: Row = {
        "id": bundle.id,
        "state": last.state.value,
        "submitted_at": first.at or single_line(made.made_at),
        "submitter": single_line(first.by or bundle.card.card.contributor or ""),
        "superseded_by": last.superseded_by,
        "workload": workload_key(fields),
        "is_rankable": int(not unknown_fields(fields)),
        "name": single_line(made.run),
        "tool_version": single_line(made.tool_version),
        "trace_url": _text(made.trace_url or bundle.card.card.trace_url),
        "has_report": int((bundle.folder / REPORT).exists()),
        "signed_by": bundle.signed_by,
        "history_stamp": history_stamp(bundle.folder),
    }
    row |= {column.name: _card_value(column, fields) for column in CARD_COLUMNS}
    names = (row["name"], row["submitter"], row["hardware"], row["model"], bundle.card.card.description)
    words = [*names, *fields.values(), bundle.id]
    row["searched"] = single_line(
        " ".join(str(word) for word in words if word is not None).lower(), 4 * MAX_TEXT
    )
    return row


def workload_row(fields: Fields) -> Row:
    """Return the row of the workload that a run belongs to."""
    said = {name: value for name, value in comparison_key(fields) if value is not None}
    if model := _model(said):
        said["model.model_family"] = model
    return {
        "key": workload_key(fields),
        "label": single_line(", ".join(_label_parts(said)) or "unknown workload"),
        "fields": json.dumps(said),
    }


def workload_key(fields: Fields) -> str:
    """Return the hash of what runs must have in common to be ranked together."""
    return hashlib.sha256(json.dumps(comparison_key(fields)).encode()).hexdigest()


def value_rows(bundle: Bundle) -> Iterator[Row]:
    """Yield a row for each number; one that is another's in another unit is left out."""
    by_name = {single_line(result.metric, _LONGEST_NAME): result for result in bundle.results}
    for name, found in by_name.items():
        if name in unit_variants() or found.value is None or not math.isfinite(found.value):
            continue
        known = known_metrics().get(name)
        severities = [finding.severity for finding in found.findings]
        yield {
            "run": bundle.id,
            "metric": name,
            "value": found.value,
            "unit": single_line(found.unit),
            "better": known.better if known else found.better,
            "revision": _number(found.provenance.metric_revision) or 0,
            "measured": measurement_basis(found),
            "errors": severities.count("error"),
            "doubts": severities.count("error") + severities.count("warning"),
        }


def measurement_basis(result: Result) -> str:
    """Return how a number was measured, where that decides which numbers are comparable."""
    said = {"window": result.window}
    for rule in result_rules():
        if rule.what == "detail" and rule.effect == "blocks" and rule.detail in result.details:
            said[rule.detail.replace("_", " ")] = str(result.details[rule.detail])
    return single_line(", ".join(f"{name}: {value}" for name, value in said.items() if value))


def single_line(text: str, longest: int = MAX_TEXT) -> str:
    """Return text that every database takes: in one line, without control characters, not too long."""
    printable = "".join(char if char.isprintable() else " " for char in str(text))
    return " ".join(printable.split())[:longest]


def _card_value(column: CardColumn, fields: Mapping[str, object]) -> str | int | None:
    """Return the value of a column: the catalog's name of a model or device, else as the card states it."""
    if column.name == "model":
        return _model(fields)
    if column.name == "hardware":
        return _device(fields)
    value = fields.get(column.field)
    return _number(value) if column.type is int else _text(value)


def _text(value: object) -> str | None:
    return None if value is None else single_line(str(value)) or None


def _number(value: object) -> int | None:
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if 0 <= value <= _LARGEST else None


def _model(fields: Mapping[str, object]) -> str | None:
    """Return the catalog's name of a public model, else the name as written."""
    from ccl_bench.base.errors import NotMeasurable
    from ccl_bench.catalog.models import model

    written = _text(fields.get("model.model_family"))
    try:
        return model(written).name if written else None
    except NotMeasurable:
        return written


def _device(fields: Mapping[str, object]) -> str | None:
    """Return the catalog's name of a device, where the name as written means one device only."""
    written = _text(fields.get("hardware.device.model"))
    known = devices.models(written) if written else []
    return known[0] if len(known) == 1 else written


def _label_parts(fields: Mapping[str, object]) -> Iterator[str]:
    """Yield what a workload is, for people."""
    for name in ("model.model_family", "model.phase", "model.precision"):
        if name in fields:
            yield str(fields[name])
    counts = (
        ("data.global_batch_size", "batch {}"),
        ("data.seq_len", "{} tokens a sequence"),
        ("data.input_len", "{} tokens in"),
        ("data.output_len", "{} tokens out"),
        ("model.architecture.num_layers", "{} layers"),
        ("data.dataset", "data {}"),
    )
    for name, text in counts:
        if name in fields:
            yield text.format(fields[name])
    if fields.get("model.granularity") not in {None, "model-fwd-bwd-pass"}:
        yield f"traced {fields['model.granularity']}"


COMPARABLE_BY = (
    RUNS.c.workload,
    VALUES.c.metric,
    VALUES.c.better,
    VALUES.c.unit,
    VALUES.c.revision,
    VALUES.c.measured,
)
"""What numbers must have in common to be ranked together."""


def refresh_ranks(connection: Connection, workloads: Iterable[str]) -> None:
    """Rank the numbers of some workloads anew, and count their runs.

    Left out are runs that are not listed or whose card does not say what was run, and numbers that an
    error in the data makes doubtful.
    """
    theirs = RUNS.c.workload.in_(sorted(workloads))
    ranked = _ranked_values(theirs)
    of_theirs = VALUES.c.run.in_(select(RUNS.c.id).where(theirs))
    connection.execute(update(VALUES).where(of_theirs).values(place=None, ranked=None))
    connection.execute(
        update(VALUES)
        .where(and_(VALUES.c.run == ranked.c.run, VALUES.c.metric == ranked.c.metric))
        .values(place=ranked.c.place, ranked=ranked.c.ranked)
    )
    size = select(func.count()).where(RUNS.c.workload == WORKLOADS.c.key, is_listed()).scalar_subquery()
    connection.execute(update(WORKLOADS).where(WORKLOADS.c.key.in_(sorted(workloads))).values(size=size))


def is_listed() -> ColumnElement[bool]:
    """Return the condition that a run is listed."""
    return RUNS.c.state.in_([state.value for state in LISTED])


def _ranked_values(condition: ColumnElement[bool]) -> Subquery:
    best_first = case((VALUES.c.better == "lower", VALUES.c.value), else_=-VALUES.c.value)
    return (
        select(
            VALUES.c.run,
            VALUES.c.metric,
            func.rank().over(partition_by=COMPARABLE_BY, order_by=best_first).label("place"),
            func.count().over(partition_by=COMPARABLE_BY).label("ranked"),
        )
        .join(RUNS, RUNS.c.id == VALUES.c.run)
        .where(condition, is_listed(), RUNS.c.is_rankable == 1)
        .where(VALUES.c.better != "neither", VALUES.c.errors == 0)
        .subquery()
    )
