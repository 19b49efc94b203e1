"""Runs and tables for tests across ranks: generated, real ones changed on the way, written by hand."""

import gzip
import json
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import polars as pl

from ccl_bench.analysis.derived import DERIVED
from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.evaluate.compute import evaluate, evaluate_metrics
from ccl_bench.evaluate.load import load_tables, needed_inputs
from ccl_bench.result import Result
from ccl_bench.run import open_run
from ccl_bench.schema import KEYS

EXAMPLES = Path(__file__).parents[3] / "examples" / "runs"

_SIDE_FILES = ("run_metadata.json", "step_times_per_rank.json", "training_metrics.json")

DERIVED.load()


def tables_and_codes(folder: Path, *names: str) -> tuple[dict[str, pl.DataFrame], list[str]]:
    """Return tables of a run by name, and the codes of the findings that come up when they are made."""
    evidence = load_tables(open_run(folder), names, jobs=1, use_cache=False)
    return {name: evidence.inputs[name] for name in names}, [finding.code for finding in evidence.findings]


def tables(folder: Path, *names: str) -> dict[str, pl.DataFrame]:
    """Return tables of a run by name."""
    return tables_and_codes(folder, *names)[0]


def codes(folder: Path, *names: str) -> list[str]:
    """Return the codes of the findings that come up when tables of a run are made."""
    return tables_and_codes(folder, *names)[1]


def tables_and_results(
    folder: Path, names: Sequence[str], metrics: Sequence[str]
) -> tuple[dict[str, pl.DataFrame], dict[str, Result]]:
    """Return tables and metrics of a run by name, whose traces are read once for both."""
    run = open_run(folder)
    evidence = load_tables(run, [*needed_inputs(run, metrics), *names], jobs=1, use_cache=False)
    found = evaluate_metrics(run.facts, metrics, evidence)
    return {name: evidence.inputs[name] for name in names}, {one.metric: one for one in found}


def results(folder: Path, *metrics: str) -> list[Result]:
    """Return metrics of a run, whether they have a value or not."""
    return evaluate(open_run(folder), metrics, jobs=1, use_cache=False)


def result(folder: Path, metric: str) -> Result:
    """Return one metric of a run, whether it has a value or not."""
    return results(folder, metric)[0]


def measured(folder: Path, metric: str) -> Result:
    """Return one metric of a run, which must have a value."""
    found = result(folder, metric)
    assert found.status == "ok", found.reason
    return found


def document(path: Path) -> dict[str, Any]:
    """Return a trace as json.load gives it."""
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as stream:
        return msgspec.json.decode(stream.read())


@cache
def documents(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the traces of a run that nobody changes, by rank."""
    found = [document(path) for path in sorted(folder.glob("*.json*")) if path.name not in _SIDE_FILES]
    return {one["distributedInfo"]["rank"]: one for one in found}


def rewrite(path: Path, change: Callable[[dict[str, Any]], None], to: Path | None = None) -> None:
    """Change a trace by a function of its document."""
    trace = document(path)
    change(trace)
    (to or path).write_text(json.dumps(trace))


def facts(**values: Any) -> Facts:
    """Return facts as a card would state them."""
    return Facts(**{name: Fact(value, "card") for name, value in values.items()})


def frame(table: str, rows: Sequence[dict[str, Any]]) -> pl.DataFrame:
    """Return a derived table as `gathered` puts it together; columns that no row names are null."""
    derived = DERIVED.get(table)
    columns = {name: [row.get(name) for row in rows] for name in derived.table.columns}
    made = derived.table.frame(columns)
    if derived.across_ranks:
        return made
    keys = [pl.Series(key, [row.get(key) for row in rows], dtype=pl.Int64) for key in KEYS]
    return made.with_columns(keys)


def call(rank: int, order: int, start: int, end: int, **more: Any) -> dict[str, Any]:
    """Return a row of `calls`: an all_reduce of 8 bytes in group `g` unless asked otherwise."""
    usual = {
        "trace": rank,
        "rank": rank,
        "call": order,
        "order": order,
        "step": 1,
        "start_ns": start,
        "end_ns": end,
        "collective": "all_reduce",
        "group": "g",
        "size_bytes": 8,
        "own_sizes": False,
        "uneven": False,
    }
    return usual | more


def group(name: str = "g", *members: int, **more: Any) -> dict[str, Any]:
    """Return a row of `groups`."""
    known = {
        "group": name,
        "members": list(members) or None,
        "size": len(members) or None,
        "known_from": "recorded",
        "dimension": "tp",
        "ambiguous": False,
        "seen_by": len(members),
    }
    return known | more


def matched(calls: Sequence[dict[str, Any]], *groups: dict[str, Any]) -> pl.DataFrame:
    """Return `matched` of calls in groups."""
    return DERIVED.get("matched").compute(frame("calls", calls), frame("groups", groups))
