"""A report as text."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ccl_bench.report.console import Described, Group, Text, aligned, heading, indented, to_text
from ccl_bench.report.context import OF_STEP
from ccl_bench.report.formatting import counted, duration, percent, plain, short, size, step_word, with_unit
from ccl_bench.report.inspection import issues
from ccl_bench.report.page import identity, title
from ccl_bench.report.results import STATUS_WORDS
from ccl_bench.report.sections.communication import BANDWIDTHS
from ccl_bench.report.sections.serving import RATES, STATISTICS, TIMES, distribution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from datetime import datetime

    from rich.console import RenderableType

    from ccl_bench.result import Result
    from ccl_bench.result.inspection import Inspection

_SHOWN = tuple(name for name in STATISTICS if name not in {"min", "max"})


def _serving_table(results: dict[str, Result]) -> RenderableType | None:
    """Return the serving results; what has no value is left out, and so is all where nothing has one."""
    rates = [
        (Text(label, "dim"), with_unit(result.value, result.unit))
        for name, label in RATES.items()
        if (result := results.get(name)) and result.value is not None
    ]
    times = [
        (label, *_spread(result))
        for name, label in TIMES.items()
        if (result := results.get(name)) and result.value is not None
    ]
    parts: list[RenderableType] = []
    if rates:
        parts.append(aligned(("", ""), rates))
    if times:
        header = ("TIME", *(name.upper() for name in _SHOWN))
        parts.append(aligned(header, times, right=range(1, len(header))))
    return Group(*parts) if parts else None


def _spread(result: Result) -> list[str]:
    """Return the statistics of a time; the mean is the result's own."""
    known = distribution(result.details) | {"mean": result.value or 0.0}
    return [duration(known[name]) if name in known else "-" for name in _SHOWN]


GIGA = 1e9
Results = dict[str, "Result"]


def _bandwidth_table(results: Results) -> RenderableType | None:
    """Return how fast data moved, one row a kind of collective; what does not occur is left out."""
    rows = []
    for name, metric in BANDWIDTHS.items():
        result = results.get(metric)
        if result and result.value is not None:
            rows.append((name, *_bandwidth_cells(result.details, result.value)))
    if not rows:
        found = [result for metric in BANDWIDTHS.values() if (result := results.get(metric))]
        return _reason(found[0]) if found else None
    header = ("COLLECTIVE", "BUS", "ALGORITHM", "OF THE LINK", "CALLS", "BYTES", "TIME IS", "REACH")
    return aligned(header, rows, right=(1, 2, 3, 4, 5))


def _bandwidth_cells(details: dict[str, Any], bus: float) -> tuple[str, ...]:
    share = details.get("share_of_link_pct")
    return (
        f"{bus:.3f} GB/s",
        f"{details['algorithm_bandwidth_gb_per_s']:.3f} GB/s",
        "unknown" if share is None else percent(share),
        f"{details['calls_count']:,}",
        size(details["total_bytes"]),
        details["basis"],
        details.get("reach", "unknown"),
    )


def _traffic_table(results: Results) -> RenderableType | None:
    """Return what one GPU communicates in one step, one row a collective."""
    found, times = results.get("traffic_distribution_16"), results.get("total_communication_time")
    if found is None or found.value is None:
        return _reason(found) if found else None
    unions = times.details.get("per_collective_s", {}) if times else {}
    bytes_of, calls = found.details["per_collective_gb"], found.details["per_collective_calls"]
    rows = [
        (
            name,
            f"{calls.get(name, 0):,.4g}" if name in calls else "-",
            size(bytes_of[name] * GIGA) if name in bytes_of else "-",
            percent(100 * bytes_of[name] / found.value) if found.value and name in bytes_of else "-",
            duration(unions[name]) if name in unions else "-",
        )
        for name in dict.fromkeys((*bytes_of, *sorted(unions)))
    ]
    total = duration(times.value) if times and times.value is not None else "-"
    rows.append(("all", f"{sum(calls.values()):,.4g}", size(found.value * GIGA), "", total))
    silent = found.details.get("unattributed_calls_count", 0)
    table = aligned(("COLLECTIVE", "CALLS", "BYTES", "SHARE", "TIME"), rows, right=(1, 2, 3, 4))
    return Group(table, Text(f"{counted(silent, 'call')} of unknown size in all", "dim")) if silent else table


def _dimensions_table(results: Results) -> RenderableType | None:
    """Return what one GPU communicates in one step, one row a parallelism dimension."""
    result = results.get("traffic_distribution")
    if result is None or result.value is None:
        return _reason(result) if result else None
    rows = [
        (
            name,
            f"{row['calls_per_gpu_and_step']:,.4g}",
            "unknown" if (moved := row["bytes_per_gpu_and_step"]) is None else size(moved),
            "unknown" if (share := row["share_pct"]) is None else percent(share),
            duration(row["time_s_per_gpu_and_step"]),
        )
        for name, row in result.details["per_dimension"].items()
    ]
    return aligned(("DIMENSION", "CALLS", "BYTES", "SHARE", "TIME"), rows, right=(1, 2, 3, 4))


def _reason(result: Result) -> Text:
    """Return why there is no value."""
    return Text(f"{STATUS_WORDS[result.status]}: {plain(result.reason)}")


_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


def text_report_name(found: Inspection, made_at: datetime) -> str:
    """Return `<timestamp>_<model>_dpXxY_tpZ_gpuN.txt`; X replicates weights, Y shards them.

    A pipeline adds `_ppP` after the tensor-parallel degree. Where nothing states a degree of
    parallelism the degrees are left out.
    """
    name = found.model or found.run.rstrip("/").rpartition("/")[2] or "run"
    parts = [f"{made_at:%Y%m%d_%H%M%S}", _UNSAFE.sub("_", name).strip("_.") or "run"]
    gpus = found.world_size or len(found.ranks)
    stated = {axis: _degree(found, axis) for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp")}
    if any(stated.values()):
        shards = stated["dp_shard"] or _rest(stated, gpus)
        parts += [f"dp{stated['dp_replicate'] or 1}x{shards}", f"tp{stated['tp'] or 1}"]
        parts += [f"pp{stated['pp']}"] if (stated["pp"] or 1) > 1 else []
    return "_".join([*parts, f"gpu{gpus}"]) + ".txt"


def _degree(found: Inspection, axis: str) -> int | None:
    fact = found.facts.get(axis)
    return fact.value if fact and isinstance(fact.value, int) else None


def _rest(stated: dict[str, int | None], gpus: int) -> int:
    """Return the ranks that the other degrees leave to sharding."""
    taken = 1
    for degree in stated.values():
        taken *= degree or 1
    return max(gpus // taken, 1)


COLUMNS = 100
"""Width of a page that is written to a file."""

Row = tuple[str, str, str]


def text(found: Inspection, results: Iterable[Result]) -> str:
    """Return the page as it is written to a file."""
    return to_text(page(found, results), width=COLUMNS)


def page(found: Inspection, results: Iterable[Result]) -> Group:
    """Return the page of a run; the same run gives the same page."""
    by_name = {result.metric: result for result in results}
    sections = (
        ("Run", _rows(identity(found))),
        ("Findings", issues(found.issues) if found.issues else Text("nothing wrong")),
        ("Serving", _serving_table(by_name)),
        ("Throughput", _rows(_throughput(by_name))),
        ("Overlap in a mean traced step, mean over ranks", _rows(_overlap(by_name))),
        ("Network bandwidth", _bandwidth_table(by_name)),
        ("Traffic of one GPU in one step", _traffic_table(by_name)),
        ("Traffic by parallelism dimension", _dimensions_table(by_name)),
        ("Waiting", _rows(_waiting(by_name))),
        ("Pipeline", _rows(_known(_pipeline_rows(by_name)))),
        ("Device memory", _rows(_known(_memory(by_name)))),
        ("Facts", _facts(found)),
        ("No value for", _missing(by_name.values())),
    )
    parts: list[RenderableType] = [heading(f"CCL-Bench report: {plain(title(found))}")]
    for name, content in sections:
        if content is not None:
            parts += [Text(), heading(name), indented(content)]
    return Group(*parts)


def _rows(rows: Iterable[Sequence[str]]) -> RenderableType | None:
    listed: list[tuple[str | Text, ...]] = [
        (Text(row[0], "dim"), *(plain(cell) for cell in row[1:])) for row in rows if any(row[1:])
    ]
    width = max((len(row) for row in listed), default=0)
    return aligned([""] * width, listed) if listed else None


def _line(
    label: str, result: Result | None, shown: Callable[[float], str], more: Callable[[dict[str, Any]], str]
) -> Iterator[Row]:
    """Yield a metric's line: the value and what its details add, or why there is none."""
    if result is None:
        return
    if result.value is None:
        yield label, "-", f"{STATUS_WORDS[result.status]}: {result.reason}"
    else:
        yield label, shown(result.value), more(result.details)


def _nothing(_details: dict[str, Any]) -> str:
    return ""


def _throughput(results: Results) -> Iterator[Row]:
    def tokens(details: dict[str, Any]) -> str:
        per_gpu = details.get("tokens_per_s_per_gpu")
        each = f"{per_gpu:,.1f} tokens/s for each of {details['gpus']} GPUs; " if per_gpu else ""
        return f"{each}{details['tokens_per_step']:,} tokens a step"

    def steps(details: dict[str, Any]) -> str:
        spread = details["spread_s"]
        names = {"p50": "median", "min": "min", "p95": "p95", "max": "max"}
        among = ", ".join(f"{name} {duration(spread[key])}" for key, name in names.items())
        varies = f", std {percent(100 * spread['cv'])} of the mean" if "cv" in spread else ""
        return f"mean of {counted(spread['count'], word)} on the slowest rank{source}; {among}{varies}"

    rate, timed = results.get("throughput_tokens_sec"), results.get("iteration_wall_clock_time")
    word = step_word(timed)
    source = f", from {timed.window}" if timed and timed.window else ""
    yield from _line("throughput", rate, lambda value: f"{value:,.1f} tokens/s", tokens)
    yield from _line("step time" if word == "step" else word, timed, duration, steps)
    peak = results.get("mfu")
    yield from _line("model FLOPs utilisation", peak, percent, lambda d: f"of {d['gpu_peak_source']}")
    yield from _line("device busy", results.get("gpu_busy"), percent, lambda d: _apart(d["per_rank_pct"]))


def _apart(per_rank: dict[str, float]) -> str:
    """Return the least and the most of a number that each rank has."""
    if len(per_rank) < 2:
        return ""
    low, high = (pick(per_rank, key=lambda rank: per_rank[rank]) for pick in (min, max))
    if per_rank[low] == per_rank[high]:
        return "on every rank"
    return f"rank {low}: {percent(per_rank[low])} to rank {high}: {percent(per_rank[high])}"


def _overlap(results: Results) -> Iterator[Row]:
    overlap, total = results.get("comm_comp_overlap"), results.get("total_communication_time")
    exposed = results.get("exposed_communication_time")
    share = results.get("communication_fraction")
    in_step = f"{percent(share.value)} {OF_STEP}" if share and share.value is not None else ""
    yield from _line("communication", total, duration, lambda _: in_step)
    yield from _line("hidden under compute", overlap, percent, lambda d: _apart(d["per_rank_pct"]))
    yield from _line("exposed", exposed, duration, lambda d: f"{percent(d['pct_of_step'])} {OF_STEP}")
    parts = overlap.details.get("mean_step_s", {}) if overlap else {}
    for name in ("compute", "fused", "exposed_memory", "idle"):
        if name in parts:
            yield name.replace("_", " "), duration(parts[name]), ""


def _waiting(results: Results) -> Iterator[Row]:
    def who(details: dict[str, Any]) -> str:
        late = details.get("late_ranks", [])
        return f"late: rank {', '.join(map(str, late))}" if late else "no rank is late beyond the noise"

    yield from _line("lag of the slowest", results.get("straggler_lag_16"), duration, _nothing)
    yield from _line("share of the traced step", results.get("straggler"), lambda v: percent(100 * v), who)
    busiest = results.get("load_imbalance_ratio")
    yield from _line("compute, max over mean", busiest, short, lambda d: f"most on rank {d['busiest_rank']}")


def _pipeline_rows(results: Results) -> Iterator[Row]:
    def beside_theory(details: dict[str, Any]) -> str:
        share = f"{percent(100 * details['fraction_ratio'])} {OF_STEP}"
        theory = details.get("theory")
        if not theory:
            return share
        return f"{share}; {theory['formula']} gives {percent(100 * theory['fraction_ratio'])}"

    yield from _line("bubble", results.get("bubble_size_pipeline"), duration, beside_theory)


def _memory(results: Results) -> Iterator[Row]:
    def where(details: dict[str, Any]) -> str:
        device = str(details["highest_device"])
        return f"highest on {'rank ' if device[:1].isdigit() else ''}{device}"

    peak, unused = results.get("peak_memory_allocated"), results.get("memory_fragmentation")
    yield from _line("peak allocated", peak, lambda value: f"{value:.3f} GB", where)
    yield from _line("reserved and unused", unused, lambda value: percent(100 * value), where)


def _known(rows: Iterable[Row]) -> list[Row]:
    """Return the rows that hold a number; why the others do not is told at the end of the page."""
    return [row for row in rows if row[1] != "-"]


def _facts(found: Inspection) -> RenderableType | None:
    rows = [
        (name, short(fact.value) if isinstance(fact.value, float) else str(fact.value), plain(fact.source))
        for name, fact in found.facts.items()
    ]
    return aligned(("FACT", "VALUE", "FROM"), rows) if rows else None


def _missing(results: Iterable[Result]) -> RenderableType | None:
    """Return why the other metrics have no value."""
    rows = [
        (result.metric, [Text(f"{STATUS_WORDS[result.status]}: {plain(result.reason)}")])
        for result in results
        if result.value is None
    ]
    return Described(rows) if rows else None
