"""Findings across traces: where ranks or sources contradict each other, and what cannot be matched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.communication.matching import MESSAGES
from ccl_bench.analysis.execution_trace.linking import COMPARED, LEAST_RATE
from ccl_bench.analysis.steps.steps import mean_step_ns
from ccl_bench.analysis.steps.steps import step_times as recorded_step_times
from ccl_bench.base.findings import Finding
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.base.units import GIGA, ROUNDING_NS, SECOND_NS
from ccl_bench.catalog.collectives import collectives as known_collectives
from ccl_bench.catalog.devices import device, fastest_link_bytes_per_s, models
from ccl_bench.result import WHOLE_TRACE

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts


_KEY = ["iteration", "group", "number"]
"""The columns that identify a collective."""


def disagreements(matched: pl.DataFrame) -> list[Finding]:
    """Report contradictions between ranks of a recorded group; an assumed group proves nothing."""
    of_known_size = matched.filter(~pl.col("agrees"), pl.col("size").is_not_null())
    disagreeing = of_known_size.unique(_KEY, keep="first", maintain_order=True)
    if disagreeing.is_empty():
        return []
    first = disagreeing.row(0, named=True)
    message = (
        f"{disagreeing.height} collectives differ between ranks in name or size, first number "
        f"{first['number']} of group {first['group']}; their waiting is unknown"
    )
    return [Finding("collectives-disagree", "error", message, count=disagreeing.height)]


def missing_members(matched: pl.DataFrame) -> list[Finding]:
    """Report collectives of which not every member has a trace."""
    incomplete = matched.filter(pl.col("present") < pl.col("size")).unique(_KEY)
    if incomplete.is_empty():
        return []
    message = (
        f"{incomplete.height} collectives lack members in the traces: their transfer times are upper bounds "
        "and their waits lower bounds"
    )
    return [Finding("members-missing", "warning", message, count=incomplete.height)]


def lacking(matched: pl.DataFrame) -> list[Finding]:
    """Report the number of steps in which some traces lack collectives, and the source of waits then."""
    steps = matched.drop_nulls("step").unique(["iteration", "step", "trace"])
    incomplete = steps.filter(pl.col("gaps") > 0)
    if incomplete.is_empty():
        return []
    count, total = (table.select("iteration", "step").n_unique() for table in (incomplete, steps))
    lacking_traces = incomplete.filter(pl.col("lacks") > 0)
    ranks = ", ".join(map(str, lacking_traces["rank"].drop_nulls().unique().sort()))
    basis = (
        f"waits come from the other {total - count}"
        if count < total
        else "waits come from the traces that lack only a few"
    )
    message = (
        f"in {count} of {total} steps, traces lack collectives that other traces of their groups have"
        f"{f' (ranks {ranks})' if ranks else ''}; {basis}"
    )
    return [Finding("collectives-lacking", "warning", message, count=count)]


def refused_arrivals(arrivals: pl.DataFrame) -> list[Finding]:
    """Report collectives at which the order of arrival is unknown."""
    without_order = arrivals.filter(pl.col("order").is_null())
    if without_order.is_empty():
        return []
    message = (
        f"the order of arrival at {without_order.height} of {arrivals.height} collectives is unknown: the "
        "uncertainty of the clocks exceeds the time between arrivals"
    )
    return [Finding("arrival-refused", "note", message, count=without_order.height)]


def ambiguous_groups(groups: pl.DataFrame) -> list[Finding]:
    """Report groups that more ranks use than they have members."""
    ambiguous = groups.filter("ambiguous")
    if ambiguous.is_empty():
        return []
    message = (
        f"{ambiguous.height} process groups do not list their members, and several may share a name; "
        "their calls are not matched"
    )
    return [Finding("groups-ambiguous", "warning", message, count=ambiguous.height)]


def groups_off_the_mesh(groups: pl.DataFrame) -> list[Finding]:
    """Report groups that lie along another axis than the one that they are described as."""
    contradicting = groups.filter("contradicts_mesh")
    if contradicting.is_empty():
        return []
    first = contradicting.row(0, named=True)
    message = (
        f"{contradicting.height} process groups are described as one axis but lie along another in the "
        f"stated mesh, first {first['group']}: stages, and dimensions of groups without a description, "
        "may be wrong"
    )
    return [Finding("mesh-contradicted", "warning", message, count=contradicting.height)]


def foreign_groups(call_groups: pl.DataFrame) -> list[Finding]:
    """Report groups that a rank communicates in without being one of the members that it lists."""
    listed = call_groups.drop_nulls(["rank", "members"])
    foreign = listed.filter(~pl.col("members").list.contains(pl.col("rank")))
    if foreign.is_empty():
        return []
    first = foreign.row(0, named=True)
    message = (
        f"{counted(foreign.height, 'process group lists', 'process groups list')} members without the rank "
        f"that communicates in it, first {first['members']} on rank {first['rank']}: one of them is wrong"
    )
    return [Finding("groups-foreign", "error", message, count=foreign.height)]


def assumed_groups(matched: pl.DataFrame) -> list[Finding]:
    """Report groups of which neither members nor size are recorded."""
    assumed = matched.filter(pl.col("size").is_null())
    if assumed.is_empty():
        return []
    count = assumed["group"].n_unique()
    message = (
        f"{count} process groups have no recorded members or size; the calls on one stream are treated as "
        "one group of all ranks that use it"
    )
    if mismatched := assumed.filter(~pl.col("agrees"))["group"].n_unique():
        message += f"; the calls of {mismatched} do not match, and their waiting is unknown"
    return [Finding("groups-assumed", "warning", message, count=count)]


def unmatched_streams(matched: pl.DataFrame) -> list[Finding]:
    """Report streams without recorded groups on which ranks made different calls."""
    count = matched.filter(pl.col("size").is_null(), ~pl.col("agrees"))["group"].n_unique()
    if not count:
        return []
    message = (
        f"ranks made different calls on {counted(count, 'stream')} of which no group is recorded: they "
        "belong to different groups, or calls of a rank were lost"
    )
    return [Finding("streams-unmatched", "note", message, count=count)]


def unequal_messages(messages: pl.DataFrame) -> list[Finding]:
    """Report messages of which sender and receiver state different sizes."""
    unequal = messages.filter(~pl.col("agrees"))
    if unequal.is_empty():
        return []
    first = unequal.row(0, named=True)
    message = (
        f"{counted(unequal.height, 'message differs', 'messages differ')} in size between sender and "
        f"receiver, first number {first['number']} from rank {first['source']} to rank {first['target']}"
    )
    return [Finding("messages-disagree", "error", message, count=unequal.height)]


def calls_without_size(traffic: pl.DataFrame) -> list[Finding]:
    """Report calls that move data and state no size."""
    # Of `coalesced` calls the parts may be unknown, which is no lack.
    sized = [name for name, facts in known_collectives().items() if facts.transfers]
    without_size = traffic.filter(pl.col("size_bytes").is_null() & pl.col("collective").is_in(sized))
    if without_size.is_empty():
        return []
    names = ", ".join(without_size["collective"].unique().sort())
    message = f"{without_size.height} of {traffic.height} communication calls have no recorded size ({names})"
    return [Finding("calls-without-size", "warning", message, count=without_size.height)]


def even_assumed(table: pl.DataFrame) -> list[Finding]:
    """Report exchanges of which nothing says whether their parts are even."""
    count = table.filter(pl.col("uneven").is_null()).height
    if not count:
        return []
    message = (
        f"{count} calls of all-to-all record no split sizes and are treated as even: if they are not, their "
        "sizes and waiting are wrong"
    )
    return [Finding("splits-unknown", "warning", message, count=count)]


def unpaired(traffic: pl.DataFrame) -> list[Finding]:
    """Report ranges of gloo that no operator describes: they are named as gloo carries them out."""
    unpaired = traffic.filter(~pl.col("is_paired"))
    if unpaired.is_empty():
        return []
    names = ", ".join(unpaired["collective"].unique().sort())
    message = (
        f"the operators that started {unpaired.height} of {traffic.height} gloo ranges are uncertain "
        f"({names}): a reduce-scatter may be among the all-reduces, and groups and sizes may be missing"
    )
    return [Finding("calls-unpaired", "warning", message, count=unpaired.height)]


def messages_to_self(traffic: pl.DataFrame) -> list[Finding]:
    """Report messages whose other end is the rank that sends or receives them."""
    messages = traffic.filter(pl.col("collective").is_in(MESSAGES))
    count = messages.filter(pl.col("peer") == pl.col("rank")).height
    if not count:
        return []
    message = (
        f"{counted(count, 'message goes', 'messages go')} from a rank to itself: "
        "the trace names the wrong rank, so senders and receivers are unknown"
    )
    return [Finding("message-to-self", "error", message, count=count)]


def unknown_peers(traffic: pl.DataFrame) -> list[Finding]:
    """Report messages that do not name their other end."""
    messages = traffic.filter(pl.col("collective").is_in(MESSAGES))
    count = messages["peer"].null_count()
    if not count:
        return []
    message = f"{count} of {messages.height} sends and receives do not name the other rank"
    return [Finding("peers-unknown", "warning", message, count=count)]


def overlapping_calls(calls: pl.DataFrame) -> list[Finding]:
    """Report collectives of a host that begin before the one before them on their thread has ended.

    A thread of gloo carries out one after another. Messages only start there, and may go on side by side.
    """
    on_threads = calls.filter(pl.col("is_paired").is_not_null(), ~pl.col("collective").is_in(MESSAGES))
    reach_ns = pl.col("end_ns").cum_max().shift(1).over("trace", "stream")
    beside = on_threads.sort("trace", "start_ns").filter(reach_ns - pl.col("start_ns") > ROUNDING_NS)
    if beside.is_empty():
        return []
    ranks = ", ".join(map(str, beside["rank"].drop_nulls().unique().sort()))
    message = (
        f"{counted(beside.height, 'collective begins', 'collectives begin')} before the one before it on the "
        f"same thread ended{f' (ranks {ranks})' if ranks else ''}: a thread carries out one after another, "
        "so times are wrong"
    )
    return [Finding("calls-overlap", "error", message, count=beside.height)]


def impossible_rates(transfers: pl.DataFrame, devices: pl.DataFrame) -> list[Finding]:
    """Report calls that are faster than any link of the devices, and than switches that reduce make them."""
    fastest = fastest_link_bytes_per_s()
    links = []
    for name in devices["name"].unique().drop_nulls():
        of_models = [device(model).link_bytes_per_s_per_direction for model in models(name)]
        links.append(max(filter(None, of_models), default=fastest))
    limit = _WITH_SWITCHES * max(links, default=fastest)
    rate = pl.col("size_bytes") * pl.col("bus_factor").fill_null(1.0) / (pl.col("time_ns") + ROUNDING_NS)
    beyond = transfers.filter(rate * SECOND_NS > limit)
    if beyond.is_empty():
        return []
    subject = counted(beyond.height, "call is", "calls are")
    message = (
        f"{subject} faster than {limit / GIGA:,.0f} GB/s, which no link of the devices is: sizes or times "
        "are wrong, or several ranks share a device"
    )
    return [Finding("rate-impossible", "error", message, count=beyond.height)]


_WITH_SWITCHES = 2
"""Times the speed of a link that an all-reduce may show where switches reduce (NVLink SHARP)."""


POWER = 0.8
"""Power of ten by which lengths of a rank differ from those of others where they are in another unit.

Units differ by a power of ten, and no device is six times as fast as another of its run.
"""

FEWEST_NAMES = 5
"""Names that ranks have in common from which on a difference is one of units: of fewer, one may decide."""


def lengths_of_another_unit(name_lengths: pl.DataFrame) -> list[Finding]:
    """Report traces whose kernels, or operators, take ten times as long or short as the same in others."""
    logs = name_lengths.with_columns(log=pl.col("median_ns").log10())
    same = ("table", "name")
    others = logs.with_columns(traces=pl.col("trace").n_unique().over(same)).filter(pl.col("traces") > 1)
    opposite = pl.col("log").sum().over(same) - pl.col("log")
    usual = pl.when(pl.col("traces") == 2).then(opposite).otherwise(pl.col("log").median().over(same))
    factors = (
        others.with_columns(power=pl.col("log") - usual)
        .group_by("trace", "rank", "table", maintain_order=True)
        .agg(pl.col("power").median(), names=pl.len())
        .filter(pl.col("power").abs() >= POWER, pl.col("names") >= FEWEST_NAMES)
    )
    if factors.is_empty():
        return []
    first = factors.row(0, named=True)
    ranks = ", ".join(map(str, factors["rank"].unique(maintain_order=True)))
    what = "kernels" if first["table"] == "kernels" else "operators"
    message = (
        f"{what} of rank {first['rank']} take {10 ** first['power']:,.4g} times as long as the same ones of "
        f"other ranks: times of one of them are in another unit (ranks {ranks} differ)"
    )
    return [Finding("times-of-another-unit", "error", message, count=factors["trace"].n_unique())]


def unmatched_messages(bubbles: pl.DataFrame) -> list[Finding]:
    """Report exposed messages of a pipeline of which the other end is not recorded."""
    count = int(bubbles["unmatched"].sum())
    if not count:
        return []
    message = (
        f"{count} exposed messages have no recorded partner; their whole time counts as waiting, "
        "so bubbles are upper bounds"
    )
    return [Finding("messages-unmatched", "warning", message, count=count)]


STEP_TOLERANCE = 0.05
"""Share by which step times of two sources may differ without a finding; profilers cost time."""


def differing_step_times(stated_times: pl.DataFrame, steps: pl.DataFrame) -> list[Finding]:
    """Compare the step times of a side file with those of the traces."""
    marked = steps.filter(pl.col("source") != WHOLE_TRACE)
    source = "".join(stated_times["source"].unique().sort().head(1))
    if marked.is_empty() or stated_times.is_empty() or source in set(steps["source"]):
        return []
    both = (stated_times, recorded_step_times(marked))
    stated_s, traced_s = (mean_step_ns(times) / SECOND_NS for times in both)
    if abs(traced_s - stated_s) <= STEP_TOLERANCE * stated_s:
        return []
    message = (
        f"a step takes {stated_s:.4g} s in {source} and {traced_s:.4g} s in the traces; the file gives the "
        "step time; shares of a step refer to the traced step"
    )
    return [Finding("step-times-differ", "note", message)]


def memory_beyond_device(peaks: pl.DataFrame, devices: pl.DataFrame, facts: Facts) -> list[Finding]:
    """Compare the memory that the allocator reserved with the memory of the device."""
    fact = facts.gpu_hbm_bytes
    size_bytes = fact.value if fact else devices["memory_bytes"].max()
    source = fact.source if fact else "the traces"
    reserved = peaks["peak_reserved_bytes"].max()
    if not isinstance(size_bytes, int) or not isinstance(reserved, int) or reserved <= size_bytes:
        return []
    message = (
        f"the allocator held {reserved / GIGA:.4g} GB of a device with {size_bytes / GIGA:.4g} GB ({source})"
    )
    return [Finding("memory-beyond-device", "error", message)]


def without_history(peaks: pl.DataFrame) -> list[Finding]:
    """Report snapshots that show no history of the allocator."""
    without_history = peaks.filter((pl.col("events") == 0) & (pl.col("reserved_bytes") > 0))
    if without_history.is_empty():
        return []
    which = counted(without_history.height, "snapshot has", "snapshots have")
    message = f"{which} no history, so peaks are unknown"
    return [Finding("memory-history-missing", "warning", message, count=without_history.height)]


def with_late_history(peaks: pl.DataFrame) -> list[Finding]:
    """Report histories of the allocator that begin when memory was in use."""
    not_empty = peaks.filter(pl.col("start_allocated_bytes") > 0)
    if not_empty.is_empty():
        return []
    largest_gb = int(not_empty["start_allocated_bytes"].max()) / GIGA  # type: ignore[arg-type]
    message = (
        f"{counted(not_empty.height, 'history begins', 'histories begin')} with up to {largest_gb:.3g} GB "
        "allocated; earlier peaks are not visible and may be higher"
    )
    return [Finding("memory-history-late", "warning", message, count=not_empty.height)]


def contradicting_history(peaks: pl.DataFrame) -> list[Finding]:
    """Report events of the allocator that contradict others."""
    count = int(peaks["contradictions"].sum())
    if not count:
        return []
    which = counted(count, "event contradicts", "events contradict")
    message = f"{which} later ones of the allocator, or its state at the snapshot"
    return [Finding("memory-history-contradicts", "error", message, count=count)]


def out_of_memory(peaks: pl.DataFrame) -> list[Finding]:
    """Report failed allocations."""
    count = int(peaks["ooms"].sum())
    if not count:
        return []
    devices = peaks.filter(pl.col("ooms") > 0).height
    message = f"memory ran out {counted(count, 'time')} on {counted(devices, 'device')}"
    return [Finding("memory-ran-out", "warning", message, count=count)]


_WHOLE = 0.95
"""Share of linked operators below which the two recordings are not of the same steps.

Two recorders of the same steps start and stop a few operators apart.
"""


def et_disagreements(et_agreement: pl.DataFrame) -> list[Finding]:
    """Return the contradictions between Execution Traces and Kineto traces."""
    disagreeing = et_agreement.filter(~pl.col("agrees"))
    if disagreeing.is_empty():
        return []
    first = disagreeing.row(0, named=True)
    message = (
        f"{disagreeing.height} of {et_agreement.height} communication calls differ between Execution Trace "
        f"and Kineto, first {_sizes_in(first, 'et_')} and {_sizes_in(first, '')} on rank {first['rank']}"
    )
    return [Finding("et-kineto-disagree", "warning", message, count=disagreeing.height)]


def _sizes_in(call: dict[str, object], prefix: str) -> str:
    sent, received = (call[f"{prefix}{name}"] for name in COMPARED)
    return f"{call[f'{prefix}collective']} ({sent} bytes sent, {received} received)"


def unlinked(et_links: pl.DataFrame) -> list[Finding]:
    """Return findings about Execution Traces not, or not wholly, found in the Kineto trace of their rank."""
    incomplete = et_links.filter((pl.col("ops") > 0) & (pl.col("rate") < _WHOLE))
    return [
        Finding(
            "et-unlinked",
            "warning",
            f"{row['linked']:,} of {min(row['nodes'], row['ops']):,} operators of the Execution Trace of "
            f"rank {row['rank']} were found in its Kineto trace"
            + ("" if row["rate"] >= LEAST_RATE else "; the two are treated as recordings of different steps"),
            rank=row["rank"],
            count=min(row["nodes"], row["ops"]) - row["linked"],
        )
        for row in incomplete.iter_rows(named=True)
    ]
