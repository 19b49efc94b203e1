"""The whole answer to a question as CSV or JSON, piece by piece."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.store.answer import answered
from ccl_bench.report.formatting import exact

if TYPE_CHECKING:
    from collections.abc import Iterator

    from sqlalchemy import Engine

    from ccl_bench.leaderboard.store.answer import Listed
    from ccl_bench.leaderboard.store.question import Question

_AT_ONCE = 500
_HIDDEN = {"searched", "history_stamp", "is_rankable"}
"""Columns of the index that are of no use outside it."""
_FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings that make a spreadsheet take text for a formula."""

FIELDS = (
    "id",
    "state",
    "submitted_at",
    "submitter",
    "name",
    "workload",
    "phase",
    "model",
    "precision",
    "batch_size",
    "seq_len",
    "hardware",
    "device_count",
    "node_count",
    "framework",
    "framework_version",
    "communication_library",
    "communication_version",
    "dp_replicate",
    "dp_shard",
    "tp",
    "pp",
    "cp",
    "ep",
    "tool_version",
    "trace_url",
)
"""Columns of a CSV before those of metrics."""


def plain(listed: Listed) -> dict[str, Any]:
    """Return a run as plain data."""
    row = {name: value for name, value in listed.run.items() if name not in _HIDDEN}
    row["has_report"] = bool(row["has_report"])
    row["workload_label"] = listed.workload
    return row | {"numbers": {name: asdict(number) for name, number in sorted(listed.numbers.items())}}


def everything(engine: Engine, question: Question) -> Iterator[Listed]:
    """Yield every run that a question asks for, on whatever page."""
    page, seen, total = 1, 0, 1
    while seen < total:
        asked = question.model_copy(update={"page": page, "size": _AT_ONCE})
        with engine.connect() as connection:
            found = answered(connection, asked, question.columns or None)
        if not found.runs:
            return
        yield from found.runs
        page, seen, total = page + 1, seen + len(found.runs), found.total


def csv_of(engine: Engine, question: Question, metrics: list[str]) -> Iterator[str]:
    """Yield the answer as CSV: a row for each run, a column for each metric, and one for each rank."""
    line = io.StringIO()
    writer = csv.writer(line, lineterminator="\n")
    head = [name for metric in metrics for name in (metric, f"{metric} rank", f"{metric} ranked")]
    writer.writerow([*FIELDS, *head])
    for listed in everything(engine, question):
        cells: list[Any] = [_harmless(listed.run[name]) for name in FIELDS]
        for metric in metrics:
            number = listed.numbers.get(metric)
            cells += [exact(number.value), number.place, number.ranked] if number else ["", "", ""]
        writer.writerow(cells)
        yield line.getvalue()
        line.seek(0)
        line.truncate()
    yield line.getvalue()


def json_of(engine: Engine, question: Question) -> Iterator[str]:
    """Yield the answer as a JSON list."""
    before = "["
    for listed in everything(engine, question):
        yield f"{before}\n{json.dumps(plain(listed), allow_nan=False)}"
        before = ","
    yield "[]\n" if before == "[" else "\n]\n"


def _harmless(value: Any) -> Any:
    """Return text that no spreadsheet takes for a formula."""
    return f"'{value}" if isinstance(value, str) and value.startswith(_FORMULA) else value
