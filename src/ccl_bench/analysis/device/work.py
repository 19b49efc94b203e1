"""Work on the device, or on the CPU in a run without a device: its kind, and its launch.

The kind of a kernel follows from metadata, then from the operator that launched it, then from its name.
"""

from __future__ import annotations

import re

from ccl_bench.analysis.communication.arguments import starters
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.intervals import merge_intervals
from ccl_bench.analysis.names import (
    GLOO,
    OTHER,
    all_holding,
    holds_for,
    is_one_of,
    map_distinct,
    recorded_collectives,
)
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.collectives import canonical, is_fused, is_local, of_kernel, of_launcher
from ccl_bench.schema.table import keep_rows

COMPUTE, COMMUNICATION, FUSED, MEMORY = "compute", "communication", "fused", "memory"

PEER = "PtoP"
"""The kind of copy that goes from one device to another."""

TORCH = ("c10d::", "_c10d_functional::", "record_param_comms")
"""Operators of torch that start or await communication; each kernel of theirs is a call of its own."""

_DISPATCHED = re.compile(r"(?!autograd::|torch::)[a-z_]\w*::[\w.]+\Z")
"""Names of operators that torch's dispatcher calls: namespace and operator."""

_RANGES = ("host", "op", "nccl", "library", "mpi")
"""Rows of `collectives` that are ranges of a CPU thread around what they launch."""


@derived(
    reads={
        "kernels": (
            *("start_ns", "end_ns", "name", "collective", "stream", "correlation"),
            *("blocks_per_sm", "occupancy_pct"),
        ),
        "memcpy": ("start_ns", "end_ns", "kind", "stream", "correlation"),
        "launches": ("start_ns", "end_ns", "thread", "correlation"),
        "cpu_ops": ("start_ns", "end_ns", "name", "thread"),
        "collectives": ("start_ns", "end_ns", "source", "name", "thread"),
    },
    start_ns=("Int64", "start of the work, ns"),
    end_ns=("Int64", "end of the work, ns"),
    name=("Categorical", "name of the kernel; null for copies and sets"),
    is_kernel=("Boolean", "whether a kernel ran; else a copy engine worked"),
    kind=("String", "`compute`, `communication`, `fused` (both in one) or `memory`"),
    collective=("String", "canonical collective; null unless the kind is communication"),
    stream=("Int64", "stream of the device"),
    correlation=("Int64", "launch correlation"),
    occupied=("Float64", "share of the multiprocessors that its blocks can occupy, 0 to 1; else null"),
    occupancy_pct=("Float64", "estimated achieved occupancy, 0 to 100 %; else null"),
    launch_ns=("Int64", "start of the call that launched it, ns; null if not recorded"),
    launch_end_ns=("Int64", "end of that call, ns"),
    thread=("Int64", "CPU thread of that call"),
    launched_before=("Boolean", "whether it was launched before the recording"),
    operator=("String", "what the operator of communication around its launch carries out; null without one"),
    operator_ns=("Int64", "start of that operator, ns"),
    call_ns=("Int64", "start of that operator, where all it launches is one call, ns"),
)
def device_work(
    kernels: pl.DataFrame,
    memcpy: pl.DataFrame,
    launches: pl.DataFrame,
    cpu_ops: pl.DataFrame,
    collectives: pl.DataFrame,
) -> pl.DataFrame:
    """One kernel, copy or memory set of a device with its kind and its launch. No rows without a device.

    A communication operator launches communication, except kernels of libraries that work on one
    device alone and for copies inside the device. All that an operator launches which multiplies
    matrices and communicates at once is `fused`. All kernels of a CUDA graph have the same launch.
    """
    if kernels.is_empty() and memcpy.is_empty():
        return DERIVED.get("device_work").table.empty()
    per_sm = pl.col("blocks_per_sm")
    fused, local = all_holding(kernels["name"], is_fused, is_local)
    ran = kernels.select(
        *("start_ns", "end_ns", "name", "stream", "correlation"),
        is_kernel=pl.lit(value=True),
        between_devices=pl.lit(value=False),
        occupied=pl.when(per_sm >= 0).then(per_sm.clip(upper_bound=1.0)),
        occupancy_pct=pl.when(pl.col("occupancy_pct").is_between(0, 100)).then("occupancy_pct"),
        recorded=recorded_collectives(kernels["collective"]),
        by_name=map_distinct(kernels["name"], of_kernel),
        is_fused=fused,
        is_local=local,
    )
    moved = memcpy.select(
        *("start_ns", "end_ns", "stream", "correlation"),
        is_kernel=pl.lit(value=False),
        between_devices=(pl.col("kind") == PEER).fill_null(value=False),
        is_fused=pl.lit(value=False),
        is_local=pl.lit(value=False),
    )
    work = pl.concat([ran, moved], how="diagonal").sort("start_ns", maintain_order=True)
    placed = _with_operator(with_launch(work, launches), communicating_operators(cpu_ops, collectives))
    kinds = placed.with_columns(_kind().alias("kind")).with_columns(_call().alias("call_ns"))
    # A part of a call has the collective of its operator; a kernel that is a call itself that of its name.
    whole = pl.when(pl.col("call_ns").is_not_null()).then("operator")
    sure = pl.when(pl.col("by_name") != OTHER).then("by_name")
    collective = pl.coalesce("recorded", whole, sure, "operator", "by_name")
    named = kinds.with_columns(collective=pl.when(pl.col("kind") == COMMUNICATION).then(collective))
    return named.select(*DERIVED.get("device_work").table.columns)


def _kind() -> pl.Expr:
    launched = pl.col("operator").is_not_null()
    by_operator = launched & (pl.col("between_devices") | (pl.col("is_kernel") & ~pl.col("is_local")))
    return (
        pl.when(pl.col("recorded").is_not_null())
        .then(pl.lit(COMMUNICATION))
        .when(pl.col("is_fused") | (pl.col("operator") == FUSED).fill_null(value=False))
        .then(pl.lit(FUSED))
        .when(pl.col("by_name").is_not_null() | by_operator)
        .then(pl.lit(COMMUNICATION))
        .when("is_kernel")
        .then(pl.lit(COMPUTE))
        .otherwise(pl.lit(MEMORY))
    )


def _call() -> pl.Expr:
    """Return the operator that a piece of communication is one call with; null if it is a call itself.

    A barrier beside what moves data is a call of its own.
    """
    communicates = pl.col("kind") == COMMUNICATION
    copies = (communicates & ~pl.col("is_kernel")).any().over("thread", "operator_ns")
    unrecorded = (pl.col("recorded").is_null() & ~pl.col("of_torch")).fill_null(value=False)
    is_barrier = (pl.col("by_name") == "barrier").fill_null(value=False)
    return pl.when(communicates & ~is_barrier & (copies | unrecorded)).then("operator_ns")


def with_launch(work: pl.DataFrame, launches: pl.DataFrame) -> pl.DataFrame:
    """Add time and thread of the call that launched each piece, null if not recorded.

    CUPTI numbers launches from 1 in their order, so that 0 links nothing, and work with a number below the
    first that was recorded was launched before the recording. So was work without a number that started
    before the first recorded launch.
    """
    numbers, work_numbers = launches["correlation"], work["correlation"]
    first = (
        launches.select("correlation", "thread", launch_ns="start_ns", launch_end_ns="end_ns")
        .filter((numbers > 0) & is_one_of(numbers, work_numbers))
        .unique("correlation", keep="first", maintain_order=True)
    )
    joined = work.join(first, on="correlation", how="left", maintain_order="left")
    numbered = launches.select(pl.col("correlation", "start_ns").filter(pl.col("correlation") > 0).min())
    lowest, earliest = (pl.lit(bound, pl.Int64) for bound in numbered.row(0))
    is_numbered = (pl.col("correlation") > 0).fill_null(value=False)
    is_before = (
        pl.when(is_numbered).then(pl.col("correlation") < lowest).otherwise(pl.col("start_ns") < earliest)
    )
    return joined.with_columns(launched_before=is_before.fill_null(value=False))


def communicating_operators(cpu_ops: pl.DataFrame, collectives: pl.DataFrame) -> pl.DataFrame:
    """Return the operators and ranges on the CPU that launch communication, each with its collective."""
    place = ("start_ns", "end_ns", "thread")
    ranges = collectives.select(pl.col(*place, "name").filter(pl.col("source").is_in(_RANGES)))
    means = map_distinct(ranges["name"], lambda name: of_launcher(name) or canonical(name))
    recorded = ranges.select(*place, operator=means, of_torch=pl.lit(value=True))
    launches_some = holds_for(cpu_ops["name"], lambda name: of_launcher(name) is not None)
    launchers = keep_rows(cpu_ops[[*place, "name"]], launches_some)
    named = launchers.select(
        *place,
        operator=map_distinct(launchers["name"], of_launcher),
        of_torch=holds_for(launchers["name"], lambda name: name.startswith(TORCH)),
    )
    return pl.concat([recorded, named]).drop_nulls("operator")


def _with_operator(work: pl.DataFrame, operators: pl.DataFrame) -> pl.DataFrame:
    """Add to each piece the outermost operator of communication around its launch, null without one."""
    ordered = operators.sort("thread", "start_ns", "end_ns", descending=[False, False, True])
    reach = pl.col("end_ns").cum_max().shift(1).over("thread")
    around = ordered.filter((pl.col("start_ns") >= reach).fill_null(value=True)).select(
        "thread", "operator", "of_torch", operator_ns="start_ns", until_ns="end_ns"
    )
    if around.is_empty():
        return work.join(around.drop("until_ns"), on="thread", how="left")
    placed = (
        work.select("thread", "launch_ns")
        .with_row_index("row")
        .sort("launch_ns", nulls_last=True)
        .join_asof(
            around.sort("operator_ns"),
            left_on="launch_ns",
            right_on="operator_ns",
            by="thread",
            strategy="backward",
            coalesce=False,
            check_sortedness=False,
        )
        .sort("row")
    )
    inside = pl.col("launch_ns") < pl.col("until_ns")
    names = ("operator", "of_torch", "operator_ns")
    return work.with_columns(placed.select(pl.when(inside).then(name).alias(name) for name in names))


COMPUTING = (COMPUTE, FUSED)
"""Kinds of work in which a rank computes, alone or communicating in the same kernel."""


def computing_times(work: pl.DataFrame) -> pl.DataFrame:
    """Return the times in which a rank computed."""
    is_computing = (work["kind"] == COMPUTE) | (work["kind"] == FUSED)
    return keep_rows(work[["start_ns", "end_ns"]], is_computing)


@derived(
    reads={"cpu_ops": ("start_ns", "end_ns", "name", "process", "thread")},
    start_ns=("Int64", "start, ns"),
    end_ns=("Int64", "end, ns"),
    kind=("String", "`compute`, `communication`, `fused` (both in one) or `memory`"),
    is_kernel=("Boolean", "whether a kernel or an operator ran; else a copy engine worked"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    occupied=("Float64", "share of the multiprocessors that its blocks can occupy, 0 to 1; else null"),
    occupancy_pct=("Float64", "estimated achieved occupancy, 0 to 100 %; else null"),
)
def work(device_work: pl.DataFrame, cpu_ops: pl.DataFrame, annotations: pl.DataFrame) -> pl.DataFrame:
    """One interval in which something was worked on; which collective it was, `calls` says.

    On a device: kernels, copies and memory sets, never synchronisation events. On a run without
    a device the CPU stands in: `gloo:*` ranges are communication, operators of the dispatcher
    with what they call, and other operators that call none, are compute.
    """
    columns = DERIVED.get("work").table.columns
    if device_work.height:
        return device_work.select(*columns)
    ranges = gloo_ranges(annotations)
    computed = _computing(cpu_ops)
    if ranges.height:
        # What an operator calls on the thread of a range is part of the communication.
        enclosing = merge_intervals(ranges, "thread").select("start_ns", "thread", until_ns="end_ns")
        placed = computed.sort("start_ns").join_asof(
            enclosing.sort("start_ns"),
            on="start_ns",
            by="thread",
            strategy="backward",
            check_sortedness=False,
        )
        computed = placed.filter((pl.col("start_ns") >= pl.col("until_ns")).fill_null(value=True))
    none = pl.lit(None, dtype=pl.Float64)
    parts = [
        rows.select(
            *("start_ns", "end_ns"),
            kind=pl.lit(kind),
            is_kernel=pl.lit(value=True),
            stream="thread",
            occupied=none,
            occupancy_pct=none,
        )
        for rows, kind in ((ranges, COMMUNICATION), (computed, COMPUTE))
    ]
    return pl.concat(parts).sort("start_ns", maintain_order=True)


def gloo_ranges(annotations: pl.DataFrame) -> pl.DataFrame:
    """Return the ranges on the CPU in which gloo communicated."""
    is_gloo = holds_for(annotations["name"], lambda name: name.startswith(GLOO))
    return annotations.filter(is_gloo & ~annotations["on_device"])


def _computing(cpu_ops: pl.DataFrame) -> pl.DataFrame:
    """Return the operators that compute, each in no other one of them.

    An operator of the dispatcher (`aten::mm`) computes with all that it calls, unless it calls communication.
    Of all others (nodes of autograd, functions of Python), and of the callees of those that call
    communication, the operators that call no other one compute.
    """
    thread = ("process", "thread")
    ordered = cpu_ops.sort(*thread, "start_ns", "end_ns", descending=[False, False, False, True])
    communicates, is_dispatched = all_holding(
        ordered["name"], lambda name: name.startswith(TORCH), lambda name: bool(_DISPATCHED.match(name))
    )
    named = ordered.with_columns(communicates=communicates, is_dispatched=is_dispatched)
    next_call = pl.when("communicates").then("start_ns").shift(-1).backward_fill().over(thread)
    calls_communication = (next_call < pl.col("end_ns")).fill_null(value=False)
    is_leaf = (pl.col("start_ns").shift(-1).over(thread) >= pl.col("end_ns")).fill_null(value=True)
    computes = ~pl.col("communicates") & (is_leaf | (pl.col("is_dispatched") & ~calls_communication))
    reach = pl.col("end_ns").cum_max().shift(1).over(thread)
    return named.filter(computes).filter((pl.col("end_ns") > reach).fill_null(value=True))


@derived(
    start_ns=("Int64", "start of the work, ns"),
    end_ns=("Int64", "end of the work, ns"),
    kind=("String", "`compute`, `communication`, `fused` or `memory`"),
    collective=("String", "canonical collective, that of its call; null unless the kind is communication"),
    stream=("Int64", "stream of the device, or thread of the CPU"),
    on_device=("Boolean", "whether a device did it; on a run without one the CPU does all"),
    correlation=("Int64", "launch correlation; null on the CPU"),
    launch_ns=("Int64", "start of the call that launched it, ns; null if not recorded"),
    launch_end_ns=("Int64", "end of that call, ns"),
    thread=("Int64", "CPU thread of that call"),
)
def origins(
    work: pl.DataFrame,
    device_work: pl.DataFrame,
    described_calls: pl.DataFrame,
    annotations: pl.DataFrame,
    collectives: pl.DataFrame,
) -> pl.DataFrame:
    """One interval of work with its launch.

    On a device the two are joined by their correlation; all kernels of a CUDA graph have the
    same launch. Without a device an operator is its own launch, and a `gloo:*` range was launched
    by the operator that started it, where that is certain.
    """
    if device_work.height:
        pieces = device_work.rename({"collective": "by_name"}).with_columns(on_device=pl.lit(value=True))
    else:
        is_call = pl.col("kind") == COMMUNICATION
        computed = work.filter(~is_call).with_columns(
            launch_ns="start_ns", launch_end_ns="start_ns", thread="stream"
        )
        operator_starts = starters(gloo_ranges(annotations), collectives).select(
            "start_ns",
            stream="thread",
            thread="operator_thread",
            launch_ns="operator_ns",
            launch_end_ns="operator_end_ns",
        )
        communicated = work.filter(is_call).join(operator_starts, on=["start_ns", "stream"], how="left")
        pieces = (
            pl.concat([computed, communicated], how="diagonal")
            .sort("start_ns", maintain_order=True)
            .with_columns(
                on_device=pl.lit(value=False),
                correlation=pl.lit(None, dtype=pl.Int64),
                by_name=pl.lit(None, dtype=pl.String),
            )
        )
    key = ["start_ns", "stream"]
    called = described_calls.select(*key, "collective").unique(key, keep="first", maintain_order=True)
    named = pieces.join(called, on=key, how="left", nulls_equal=True, maintain_order="left")
    true_name = pl.when(pl.col("kind") == COMMUNICATION).then(pl.coalesce("collective", "by_name"))
    return named.with_columns(collective=true_name).select(*DERIVED.get("origins").table.columns)
