"""From a run and the names of metrics to the plain numbers and texts of a tool's dict."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from ccl_bench.result import Result

Number = int | float


def results_of(
    names: Iterable[str], trace_dir: str | Path, workload_card_path: str | Path | None, profile_mode: str
) -> dict[str, Result]:
    """Return {name: result} of the named metrics for the run at `trace_dir`.

    Raises InputError where there is nothing to read and UsageError for an unknown name or mode.
    """
    from ccl_bench.cli.opening import opened_run
    from ccl_bench.evaluate import evaluate

    run = opened_run(trace_dir, card=workload_card_path, profile_mode=profile_mode)
    return {result.metric: result for result in evaluate(run, names)}


def plain(number: float) -> Number:
    """Return a whole number as an integer, another as it is."""
    return int(number) if float(number).is_integer() else number


def answer(key: str, result: Result) -> dict[str, Number | str]:
    """Return {key: value} of a result, or {metric_reason: why there is none}."""
    if result.value is None:
        reason = f"{result.status.replace('_', ' ')}: {result.reason}"
        return {f"{result.metric}_reason": reason}
    return {key: plain(result.value)}


def renamed(details: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Return those of `details` that `names` maps to a key, under that key."""
    return {key: details[name] for name, key in names.items() if name in details}


def origin(results: Iterable[Result]) -> dict[str, list[str] | list[int]]:
    """Return what the numbers rest on: how steps were found, the ranks, and what is wrong with the data."""
    from ccl_bench.report.results import remarks

    measured = [result for result in results if result.value is not None]
    return {
        "windows": list(dict.fromkeys(result.window for result in measured if result.window)),
        "ranks": sorted({rank for result in measured for rank in result.ranks}),
        "findings": remarks(measured),
    }
