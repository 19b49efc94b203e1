"""The numbers to look at first, and what is wrong with the data under them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.context import OF_STEP, tile
from ccl_bench.report.formatting import counted, duration, percent, step_word
from ccl_bench.report.page_model import Finding

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import Number
    from ccl_bench.result.inspection import InspectedIssue

_ALIKE = 2
"""Findings of one kind that are told one by one; the others are counted."""


def headline(looked: Context) -> tuple[Number, ...]:
    """Return those that have a value."""
    return (
        *tile(looked, "throughput_tokens_sec", "Throughput", note=_each(looked)),
        *tile(looked, "iteration_wall_clock_time", step_time_label(looked), note=_steps(looked)),
        *tile(looked, "mfu", "Model FLOPs utilisation"),
        *tile(looked, "total_token_throughput", "Token throughput", note="input and output"),
        *tile(looked, "output_throughput", "Output throughput"),
        *tile(looked, "request_throughput", "Request throughput"),
        *tile(looked, "TTFT", "Time to first token", note=_percentiles(looked, "TTFT")),
        *tile(looked, "TPOT", "Time per output token", note=_percentiles(looked, "TPOT")),
        *tile(looked, "ITL", "Inter-token latency", note=_percentiles(looked, "ITL")),
        *tile(looked, "request_latency", "Request latency", note=_percentiles(looked, "request_latency")),
        *tile(looked, "goodput", "Goodput"),
        *tile(looked, "gpu_busy", "Device busy"),
        *tile(looked, "exposed_communication_time", "Exposed communication", note=_exposed(looked)),
        *tile(looked, "comm_comp_overlap", "Communication hidden"),
        *tile(looked, "bubble_size_pipeline", "Pipeline bubble", note=_bubble(looked)),
        *tile(
            looked,
            "straggler",
            "Lost to stragglers",
            shown=lambda value: percent(100 * value),
            note=_late(looked),
        ),
        *tile(looked, "peak_memory_allocated", "Peak memory"),
        *tile(
            looked, "memory_fragmentation", "Memory in no tensor", shown=lambda value: percent(100 * value)
        ),
        *tile(looked, "token_to_expert_assignment", "Imbalance of experts"),
        *tile(looked, "training_quality", "Loss at the last step"),
    )


def step_time_label(looked: Context) -> str:
    """Return what the length of a step is called; a whole trace that counts as one has another name."""
    word = step_word(looked.valued("iteration_wall_clock_time"))
    return "Step time" if word == "step" else word.capitalize()


def _details(looked: Context, metric: str) -> dict[str, Any]:
    result = looked.valued(metric)
    return result.details if result else {}


def _each(looked: Context) -> str:
    details = _details(looked, "throughput_tokens_sec")
    per_gpu = details.get("tokens_per_s_per_gpu")
    return f"{per_gpu:,.0f} for each of {details['gpus']} GPUs" if per_gpu else ""


def _steps(looked: Context) -> str:
    result = looked.valued("iteration_wall_clock_time")
    spread = result.details.get("spread_s", {}) if result else {}
    count = spread.get("count", 0)
    if not result or not count:
        return ""
    source = f", from {result.window}" if result.window else ""
    if count < 2:
        return f"of one {step_word(looked.valued('iteration_wall_clock_time'))}{source}"
    among = f"{duration(spread['min'])} to {duration(spread['max'])} in {counted(count, 'step')}"
    return f"mean; median {duration(spread['p50'])}, {among}{source}"


def _percentiles(looked: Context, metric: str) -> str:
    details = _details(looked, metric)
    spread = details.get("distribution_s") or details.get("as_stored_s") or {}
    return ", ".join(f"{name} {duration(spread[name])}" for name in ("p50", "p99") if name in spread)


def _exposed(looked: Context) -> str:
    share = _details(looked, "exposed_communication_time").get("pct_of_step")
    return "" if share is None else f"{percent(share)} {OF_STEP}"


def _bubble(looked: Context) -> str:
    share = _details(looked, "bubble_size_pipeline").get("fraction_ratio")
    return "" if share is None else f"{percent(100 * share)} {OF_STEP}"


def _late(looked: Context) -> str:
    details = _details(looked, "straggler")
    late = details.get("late_ranks", [])
    who = f"slowest: rank {details['slowest_rank']}" if late else "no rank is late"
    return f"{OF_STEP}; {who}"


def findings(issues: Iterable[InspectedIssue]) -> tuple[Finding, ...]:
    """Return what is wrong, the worst first; of many of one kind the first ones and their number."""
    kinds: dict[tuple[str, str], list[InspectedIssue]] = {}
    for issue in issues:
        kinds.setdefault((issue.code or issue.message, issue.severity), []).append(issue)
    shown = []
    for alike in kinds.values():
        told = alike if len(alike) <= _ALIKE + 1 else alike[:_ALIKE]
        shown += [_finding(issue) for issue in told[:-1]]
        shown.append(_finding(told[-1], len(alike) - len(told)))
    return tuple(shown)


def _finding(issue: InspectedIssue, others: int = 0) -> Finding:
    place = f"{issue.file}:{issue.line}" if issue.file and issue.line else issue.file
    place = ": ".join(filter(None, (place, issue.path)))
    return Finding(issue.severity, issue.message, place, issue.code, issue.fix, others)
