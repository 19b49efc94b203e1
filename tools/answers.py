"""From a run and the names of metrics to the plain numbers and texts of a tool's dict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.result.step_choice import EVERY_STEP, StepChoice

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ccl_bench.result import Result

Number = int | float


@dataclass(frozen=True, slots=True)
class Answers:
    """What a tool makes its dict of: the results of metrics, and tables beneath them."""

    results: dict[str, Result]
    tables: dict[str, Any]

    def of(self, *names: str) -> list[Result]:
        """Return the results of the named metrics."""
        return [self.results[name] for name in names]


def need_place(place: str | Path) -> None:
    """Raise InputError if there is nothing at `place`, a path or an address."""
    from ccl_bench.storage import is_remote, to_path

    path = to_path(place)
    if not is_remote(path) and not path.exists():
        raise InputError("there is no such file or directory", where=str(place), fix="check the path")


def answers_of(
    names: Iterable[str],
    trace_dir: str | Path,
    workload_card_path: str | Path | None,
    profile_mode: str,
    choice: StepChoice = EVERY_STEP,
    *,
    tables: Iterable[str] = (),
) -> Answers:
    """Return the results of the named metrics for the run at `trace_dir`, and tables of it, read at once.

    They are of the chosen steps.

    A table that cannot be computed is absent. Raises InputError if there is nothing to read and
    UsageError for an unknown name or mode.
    """
    from ccl_bench.evaluate.compute import evaluate_metrics
    from ccl_bench.evaluate.load import load_tables, needed_inputs
    from ccl_bench.run import open_run

    names, tables = list(names), list(tables)
    run = open_run(trace_dir, card=workload_card_path, profile_mode=profile_mode, choice=choice)
    evidence = load_tables(run, dict.fromkeys([*tables, *needed_inputs(run, names)]))
    results = {result.metric: result for result in evaluate_metrics(run.facts, names, evidence)}
    known_tables = {name: evidence.inputs[name] for name in tables if name in evidence.inputs}
    return Answers(results, known_tables)


def plain(number: float) -> Number:
    """Return a whole number as an integer, another as it is."""
    return int(number) if float(number).is_integer() else number


def answer(key: str, result: Result) -> dict[str, Number | str]:
    """Return {key: value} of a result, or {metric_reason: why there is none}."""
    if result.value is None:
        reason = f"{result.status.replace('_', ' ')}: {result.reason}"
        return {f"{result.metric}_reason": reason}
    return {key: plain(result.value)}


def known_or_reason(name: str, reason: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the known `values`, or {name_reason: reason} if none is known."""
    known_values = {key: value for key, value in values.items() if value is not None and value != {}}
    return known_values or {f"{name}_reason": f"not measurable: {reason}"}


def share_pct(table: Any, part: str, whole: str) -> float | None:
    """Return one column of a table as percent of another, mean over ranks; None without rows."""
    from ccl_bench.metrics.shared.per_step import mean_of, shares_by_rank

    shares = shares_by_rank(table, part, whole)
    return None if shares.is_empty() else mean_of(shares, "pct")


def renamed(details: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return those of `details` that `names` maps to a key, under that key; what is None is left out."""
    return {key: details[name] for name, key in names.items() if details.get(name) is not None}


def origin(results: Iterable[Result]) -> dict[str, list[str] | list[int]]:
    """Return the basis of the numbers: the sources of steps, the ranks, and the findings about the data."""
    from ccl_bench.report.results import remarks

    measured = [result for result in results if result.value is not None]
    return {
        "windows": list(dict.fromkeys(result.window for result in measured if result.window)),
        "ranks": sorted({rank for result in measured for rank in result.ranks}),
        "findings": remarks(measured),
    }
