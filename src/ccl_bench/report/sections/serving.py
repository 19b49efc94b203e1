"""The section on serving as clients measured it: latencies of requests and tokens, and throughput."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.base.text import counted
from ccl_bench.report.charts.lines import curves
from ccl_bench.report.context import absent, cell, table, tile
from ccl_bench.report.formatting import duration, time_unit
from ccl_bench.report.page_model import PageChart, PageSection, Term

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.report.context import Context
    from ccl_bench.result import Result
    from ccl_bench.result.details import DecodePeriodDetails, ServingDetails

KEY, TITLE = "serving", "Serving"

TIMES = {
    "TTFT": "Time to first token",
    "TPOT": "Time per output token",
    "ITL": "Inter-token latency",
    "request_latency": "Request latency",
}
RATES = {
    "request_throughput": "Requests",
    "output_throughput": "Output tokens",
    "total_token_throughput": "Input and output tokens",
    "goodput": "Goodput: requests within the objectives",
    "kv_transfer_bandwidth": "KV cache moved by copies",
}
PASSES = {"prefill_step_time": "Prefill pass", "decode_step_time": "Decode pass"}

PARTS = {
    "kernels": "Kernels",
    "transfer": "Communication, transfer",
    "waiting": "Communication, waiting for other ranks",
    "communication": "Communication, transfer or waiting",
    "copies": "Copies",
    "host_between_passes": "Host, between passes",
    "host_in_passes": "Host, in passes",
    "gaps_between_kernels": "Gaps between kernels",
    "other_idle": "Idle for another reason",
    "prefill_of_others": "Prefill of other requests",
}
"""Part of the time between two tokens in steady state → its words; parts without time are not shown."""

STATISTICS = ("mean", "min", "p50", "p90", "p95", "p99", "max")
_DRAWN = 99
"""Percent of the times that are drawn; the longest ones would compress the others."""


def serving(context: Context) -> PageSection:
    """Return the section."""
    times = {label: result for name, label in (TIMES | PASSES).items() if (result := context.valued(name))}
    rates = [number for name, label in RATES.items() for number in tile(context, name, label)]
    period = context.valued("decode_period")
    if not times and not rates:
        return absent(KEY, TITLE, context.why(*TIMES))
    some = next(filter(None, map(context.valued, [*TIMES, *RATES])), None)
    details = cast("ServingDetails", some.details) if some else None
    notes = []
    if details and (requests := details.get("requests")):
        others = [f"{count:,} {end}" for end, count in requests.items() if end != "ok"]
        rest = f"; {', '.join(others)}" if others else ""
        succeeded = counted(requests.get("ok", 0), "request")
        notes.append(f"{details.get('tool', 'The benchmark')}: {succeeded} succeeded{rest}.")
    tables = []
    if times:
        spreads = {label: distribution(each) | {"mean": each.value or 0.0} for label, each in times.items()}
        used = [name for name in STATISTICS if any(name in spread for spread in spreads.values())]
        rows = [
            (Term(times[label].metric, label), *(cell(spread.get(name), duration) for name in used))
            for label, spread in spreads.items()
        ]
        tables.append(table(("latency", *used), rows, caption="Percentiles"))
    if period:
        parts = cast("DecodePeriodDetails", period.details)
        notes += _why(parts)
        shown = [(words, name) for name, words in PARTS.items() if parts["pieces_s"][name]]
        rows = [
            (words, cell(parts["pieces_s"][name], duration), cell(parts["pieces_pct"][name], "{:.1f}".format))
            for words, name in shown
        ]
        caption = "Time from one decode pass to the next in steady state, mean over ranks"
        tables.append(table(("part", "time", "share, %"), rows, caption=caption, note=_left_out(parts)))
    return PageSection(
        KEY,
        TITLE,
        "As the client of the benchmark measured it. Failed, cancelled and warm-up requests are excluded.",
        (
            *(number for name, label in TIMES.items() for number in tile(context, name, label)),
            *rates,
        ),
        tuple(chart for label, result in times.items() for chart in _chart(label, result)),
        tuple(tables),
        tuple(notes),
    )


def _why(parts: DecodePeriodDetails) -> list[str]:
    """Return what the time per token is made of, and why it is not the client's."""
    client = parts.get("client", {})
    notes = [f"{parts['sentence']}."]
    if "not_compared" in client:
        notes.append(f"TPOT is not divided: {client['not_compared']}.")
    if "trace_from_s" in client:
        begin, end = (duration(time) for time in (client["trace_from_s"], client["trace_until_s"]))
        notes.append(f"The trace covers {begin} to {end} of the benchmark, from the first request sent.")
    return notes


def _left_out(parts: DecodePeriodDetails) -> str:
    """Return which passes the parts are of, in words."""
    used, others = parts["passes"], parts["passes_left_out"]
    passes = ", ".join(f"{count:,} {phase}" for phase, count in used.items())
    left_out = [f"{count:,} ({state})" for state, count in others.items() if count]
    return f"Passes of all ranks: {passes}. Left out: {', '.join(left_out) or 'none'}."


def distribution(result: Result) -> dict[str, float]:
    """Return the distribution of a time: of single requests, else as the tool stored it."""
    details = cast("ServingDetails", result.details)
    return details.get("distribution_s") or details.get("as_stored_s") or {}


def _chart(label: str, result: Result) -> Iterator[PageChart]:
    percentiles = cast("ServingDetails", result.details).get("percentiles_s", [])
    if not percentiles or percentiles[0] == percentiles[-1]:
        return
    points = [(value, float(share)) for share, value in enumerate(percentiles[: _DRAWN + 1])]
    per, unit = time_unit([points[-1][0]])
    spec = curves(
        {label: [(value * per, share) for value, share in points]},
        x=f"{label.lower()}, {unit}",
        y="share at most that long, %",
        of="time",
    )
    summary = f"Half of them take at most {duration(points[50][0])}, 99 % at most {duration(points[99][0])}."
    rows = [(f"{share:g} %", cell(value, duration)) for value, share in points]
    rows.append(("100 %", cell(percentiles[-1], duration)))
    key = f"serving-{result.metric.lower().replace('_', '-')}"
    note = f"The longest 1 %, up to {duration(percentiles[-1])}, is not drawn."
    yield PageChart(key, label, spec, summary, table(("share", "at most"), rows, left=()), note)
