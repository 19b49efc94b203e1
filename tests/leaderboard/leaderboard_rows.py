"""Fills the index of a store with thousands of runs that have no files: enough to be slow, if it can be."""

from __future__ import annotations

import hashlib
from datetime import timedelta
from functools import cache
from typing import TYPE_CHECKING, Any

from leaderboard_bundles import START, UNITS, Made, many, revision_now
from leaderboard_bundles import WORKLOADS as MOST_WORKLOADS
from sqlalchemy import insert

from ccl_bench.card import card_in_text
from ccl_bench.card.comparison_fields import fields_of
from ccl_bench.leaderboard.store import rows, writing
from ccl_bench.leaderboard.store.rows import workload_row
from ccl_bench.leaderboard.store.tables import RUNS, VALUES, WORKLOADS

if TYPE_CHECKING:
    from ccl_bench.leaderboard.store import Store

_AS_IN_THE_INDEX = (
    "phase", "precision", "seq_len", "hardware", "framework", "framework_version", "dp_shard", "tp", "pp",
    "submitter", "name",
)  # fmt: skip


@cache
def _workload(phase: str, model: str, precision: str, batch: int) -> dict[str, Any]:
    made = Made(phase=phase, model=model, precision=precision, batch=batch)
    return {**workload_row(fields_of(card_in_text(made.card).value)), "size": 0}


def filled(store: Store, count: int, *, workloads: int = MOST_WORKLOADS, seed: int = 11) -> list[Made]:
    """Write runs into the index beside those that are there, and return what they were made of."""
    found = list(many(count, seed=seed, workloads=workloads))
    runs, values, theirs = [], [], {}
    for made in found:
        workload = _workload(made.phase, made.model, made.precision, made.batch)
        theirs[workload["key"]] = workload
        runs.append(_run(made, workload["key"]))
        values += [
            rows.placed_value(runs[-1], _value(runs[-1]["id"], name, value))
            for name, value in made.values.items()
        ]
    with writing(store.engine) as connection:
        known = set(connection.execute(WORKLOADS.select()).scalars())
        connection.execute(insert(WORKLOADS), [row for key, row in theirs.items() if key not in known])
        connection.execute(insert(RUNS), runs)
        connection.execute(insert(VALUES), values)
        rows.change_counts(connection, added=(runs, values))
        rows.update_workloads(connection, theirs)
    return found


def _run(made: Made, workload: str) -> dict[str, Any]:
    return {
        **{name: getattr(made, name) for name in _AS_IN_THE_INDEX},
        "id": hashlib.sha256(made.name.encode()).hexdigest(),
        "state": made.state.value,
        "is_listed": 1,
        "submitted_at": f"{START + timedelta(days=made.day):%Y-%m-%dT%H:%M:%SZ}",
        "superseded_by": None,
        "workload": workload,
        "is_rankable": 1,
        "model": made.model,
        "batch_size": made.batch,
        "input_len": made.seq_len,
        "output_len": 128,
        **dict.fromkeys(("concurrency", "source", "variant", "curve", "interactivity")),
        "device_count": made.devices,
        "node_count": made.nodes,
        "communication_library": made.library,
        "communication_version": made.library_version,
        "dp_replicate": 1,
        "cp": 1,
        "ep": 1,
        "tool_version": "0.1.0",
        "trace_url": None,
        "has_report": 0,
        "searched": f"{made.name} {made.submitter} {made.hardware} {made.model} {made.framework}".lower(),
        "history_stamp": "",
    }


def _value(run: str, name: str, value: float) -> dict[str, Any]:
    unit, better = UNITS[name]
    return {
        "run": run,
        "metric": name,
        "value": value,
        "unit": unit,
        "better": better,
        "revision": revision_now(name),
        "measured": "window: ProfilerStep",
        "errors": 0,
        "doubts": 0,
        **dict.fromkeys(("low", "high", "repeats")),
    }
