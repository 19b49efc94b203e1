"""One run as a page of text: findings, throughput, overlap, bandwidth and traffic by collective."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.console import Described, Group, Text, aligned, heading, indented, printed
from ccl_bench.report.identity import identity, title
from ccl_bench.report.inspection import issues
from ccl_bench.report.latency import serving
from ccl_bench.report.numbers import duration, percent, short
from ccl_bench.report.results import STATUS_WORDS
from ccl_bench.report.sections.seen import OF_STEP
from ccl_bench.report.traffic import bandwidth, dimensions, traffic
from ccl_bench.report.words import counted, plain, step_word

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from rich.console import RenderableType

    from ccl_bench.result import Result
    from ccl_bench.result.inspection import Inspection

COLUMNS = 100
"""Width of a page that is written to a file."""

Results = dict[str, "Result"]
Row = tuple[str, str, str]


def text(found: Inspection, results: Iterable[Result]) -> str:
    """Return the page as it is written to a file."""
    return printed(page(found, results), width=COLUMNS)


def page(found: Inspection, results: Iterable[Result]) -> Group:
    """Return the page of a run; the same run gives the same page."""
    by_name = {result.metric: result for result in results}
    sections = (
        ("Run", _rows(identity(found))),
        ("Findings", issues(found.issues) if found.issues else Text("nothing wrong")),
        ("Serving", serving(by_name)),
        ("Throughput", _rows(_throughput(by_name))),
        ("Overlap in a mean traced step, mean over ranks", _rows(_overlap(by_name))),
        ("Network bandwidth", bandwidth(by_name)),
        ("Traffic of one GPU in one step", traffic(by_name)),
        ("Traffic by parallelism dimension", dimensions(by_name)),
        ("Waiting", _rows(_waiting(by_name))),
        ("Pipeline", _rows(_known(_pipeline(by_name)))),
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


def _pipeline(results: Results) -> Iterator[Row]:
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
