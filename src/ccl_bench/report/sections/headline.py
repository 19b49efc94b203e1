"""The headline numbers, and the findings about the data."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.base.text import counted
from ccl_bench.report.context import OF_STEP, tile
from ccl_bench.report.formatting import duration, percent, step_word
from ccl_bench.report.page_model import PageFinding
from ccl_bench.report.results import ALIKE
from ccl_bench.report.sections.serving import distribution

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.base.findings import Issue
    from ccl_bench.report.context import Context
    from ccl_bench.report.page_model import Tile
    from ccl_bench.result.details import (
        BubbleDetails,
        ExposedDetails,
        MfuDetails,
        StepTimeDetails,
        StragglerDetails,
        ThroughputDetails,
    )


def headline(context: Context) -> tuple[Tile, ...]:
    """Return the headline numbers that have a value."""
    model, bubble = context.valued("mfu"), context.valued("bubble_size_pipeline")
    peak = f"of {cast('MfuDetails', model.details)['gpu_peak_source']}" if model else ""
    bubble_share = ""
    if bubble is not None:
        bubble_share = f"{percent(100 * cast('BubbleDetails', bubble.details)['fraction_ratio'])} {OF_STEP}"
    return (
        *tile(context, "throughput_tokens_sec", "Throughput", note=_each(context)),
        *tile(context, "iteration_wall_clock_time", step_time_label(context), note=_steps(context)),
        *tile(context, "mfu", "Model FLOPs utilisation", note=peak),
        *tile(context, "total_token_throughput", "Token throughput", note="input and output"),
        *tile(context, "output_throughput", "Output throughput"),
        *tile(context, "request_throughput", "Request throughput"),
        *tile(context, "TTFT", "Time to first token", note=_percentiles(context, "TTFT")),
        *tile(context, "TPOT", "Time per output token", note=_percentiles(context, "TPOT")),
        *tile(context, "ITL", "Inter-token latency", note=_percentiles(context, "ITL")),
        *tile(context, "request_latency", "Request latency", note=_percentiles(context, "request_latency")),
        *tile(context, "goodput", "Goodput"),
        *tile(context, "gpu_busy", "Device busy", note=_busy(context)),
        *tile(context, "exposed_communication_time", "Exposed communication", note=exposed_share(context)),
        *tile(
            context,
            "comm_comp_overlap",
            "Communication hidden",
            note=_over_ranks(context, "comm_comp_overlap"),
        ),
        *tile(context, "bubble_size_pipeline", "Pipeline bubble", note=bubble_share),
        *tile(
            context,
            "straggler",
            "Lost to stragglers",
            formatter=lambda value: percent(100 * value),
            note=_late(context),
        ),
        *tile(
            context,
            "peak_memory_allocated",
            "Peak memory",
            note=highest_device(context, "peak_memory_allocated"),
        ),
        *tile(
            context,
            "memory_fragmentation",
            "Memory in no tensor",
            formatter=lambda value: percent(100 * value),
            note=highest_device(context, "memory_fragmentation"),
        ),
        *tile(context, "token_to_expert_assignment", "Imbalance of experts"),
        *tile(context, "training_quality", "Loss at the last step"),
    )


def step_time_label(context: Context) -> str:
    """Return the label of the step time, which differs if a whole trace counts as one step."""
    word = step_word(context.valued("iteration_wall_clock_time"))
    return "Step time" if word == "step" else word.capitalize()


def _each(context: Context) -> str:
    result = context.valued("throughput_tokens_sec")
    if result is None:
        return ""
    details = cast("ThroughputDetails", result.details)
    per_gpu = details.get("tokens_per_s_per_gpu")
    each = f"{per_gpu:,.0f} for each of {details['gpus']} GPUs" if per_gpu else ""
    return "; ".join(filter(None, (each, f"{details['tokens_per_step']:,} tokens a step")))


def _over_ranks(context: Context, metric: str) -> str:
    """Return the minimum and maximum over ranks of a percentage."""
    result = context.valued(metric)
    per_rank: dict[str, float] = result.details.get("per_rank_pct", {}) if result else {}
    if len(per_rank) < 2:
        return ""
    low, high = (pick(per_rank, key=lambda rank: per_rank[rank]) for pick in (min, max))
    if per_rank[low] == per_rank[high]:
        return "on every rank"
    return f"rank {low}: {percent(per_rank[low])} to rank {high}: {percent(per_rank[high])}"


def highest_device(context: Context, metric: str) -> str:
    """Return the device with the largest value of a metric of memory; empty if unknown."""
    result = context.valued(metric)
    device = str(result.details.get("highest_device", "")) if result else ""
    return f"highest on {'rank ' if device[:1].isdigit() else ''}{device}" if device else ""


def _steps(context: Context) -> str:
    result = context.valued("iteration_wall_clock_time")
    spread = cast("StepTimeDetails", result.details)["spread_s"] if result else {}
    count = int(spread.get("count", 0))
    if not result or not count:
        return ""
    source = f", from {result.window}" if result.window else ""
    if count < 2:
        return f"of one {step_word(context.valued('iteration_wall_clock_time'))}{source}"
    among = f"{duration(spread['min'])} to {duration(spread['max'])} in {counted(count, 'step')}"
    return f"mean; median {duration(spread['p50'])}, {among}{source}"


def _percentiles(context: Context, metric: str) -> str:
    result = context.valued(metric)
    spread = distribution(result) if result else {}
    return ", ".join(f"{name} {duration(spread[name])}" for name in ("p50", "p99") if name in spread)


def exposed_share(context: Context) -> str:
    """Return the share of a step with exposed communication and its parts, in words; empty if unknown."""
    result = context.valued("exposed_communication_time")
    if result is None:
        return ""
    details = cast("ExposedDetails", result.details)
    share = f"{percent(details['pct_of_step'])} {OF_STEP}"
    if context.valued("exposed_wait_time") is None:
        return share
    parts = [f"{duration(seconds)} {part}" for part, seconds in details.get("parts_s", {}).items() if seconds]
    return "; ".join(filter(None, (share, ", ".join(parts))))


def share_of_step(context: Context, metric: str) -> str:
    """Return the share of a step of a part of exposed communication, in words; empty if unknown."""
    result = context.valued(metric)
    return f"{percent(cast('ExposedDetails', result.details)['pct_of_step'])} {OF_STEP}" if result else ""


def _busy(context: Context) -> str:
    """Return the range over ranks, and how much of the busy time waits in communication."""
    result = context.valued("gpu_busy")
    waiting = result.details.get("waiting_pct") if result and context.valued("exposed_wait_time") else None
    spinning = f"{percent(waiting)} of the step waits in communication" if waiting else ""
    return "; ".join(filter(None, (spinning, _over_ranks(context, "gpu_busy"))))


def _late(context: Context) -> str:
    result = context.valued("straggler")
    if result is None:
        return ""
    details = cast("StragglerDetails", result.details)
    slowest = f"slowest: rank {details['slowest_rank']}" if details["late_ranks"] else "no rank is late"
    return f"{'of the recorded time' if 'recorded_s' in details else OF_STEP}; {slowest}"


def findings(issues: Iterable[Issue]) -> tuple[PageFinding, ...]:
    """Return the findings, the most severe first; of many of one kind the first ones and their number."""
    kinds: dict[tuple[str, str], list[Issue]] = {}
    for issue in issues:
        kinds.setdefault((issue.code or issue.message, issue.severity), []).append(issue)
    entries = []
    for group in kinds.values():
        listed = group if len(group) <= ALIKE + 1 else group[:ALIKE]
        entries += [_finding(issue) for issue in listed[:-1]]
        entries.append(_finding(listed[-1], len(group) - len(listed)))
    return tuple(entries)


def _finding(issue: Issue, others: int = 0) -> PageFinding:
    place = f"{issue.file}:{issue.line}" if issue.file and issue.line else issue.file
    place = ": ".join(filter(None, (place, issue.path)))
    return PageFinding(issue.severity, issue.message, place, issue.code, issue.fix, others)
