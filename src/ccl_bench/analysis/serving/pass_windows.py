"""Windows of forward passes, from the start of one to that of the next, and what the device did in them."""

from __future__ import annotations

from ccl_bench.analysis.communication.calls import communication_parts
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.breakdown import breakdown, idle
from ccl_bench.analysis.device.launches import GRAPH_LAUNCH
from ccl_bench.analysis.device.time_by_kind import call_stretches
from ccl_bench.analysis.intervals import device_windows, sum_per_window, window_at
from ccl_bench.analysis.names import is_one_of, matching
from ccl_bench.analysis.serving.forward_passes import BY_LAUNCHES, BY_TWIN, DECODE, DRAFT, MIXED
from ccl_bench.base.lazy_imports import pl

GIVES_TOKENS = (DECODE, MIXED)
"""Phases of passes in which the running requests get a token."""

STEADY, RAMP, BETWEEN = "steady", "ramp", "between answers"

STEADY_SHARE = 0.9
"""Share of the usual batch from which the batch is in steady state.

In a loop of N clients one request in N is replaced at a time, and arrivals at random change a batch of 100 by
10, their standard deviation.
"""


@derived(
    step=("Int64", "number of the pass in the trace, from 0"),
    start_ns=("Int64", "start of the pass on the device, ns"),
    end_ns=("Int64", "end of its work, at most the start of the next pass, ns"),
    device_start_ns=("Int64", "start of its window, that of the pass, ns"),
    device_end_ns=("Int64", "end of its window, the start of the next pass, ns"),
    length_ns=("Int64", "length of the window, ns"),
    phase=("String", "phase, as in `forward_passes`"),
    mode=("String", "the mode that a range of SGLang states"),
    requests=("Int64", "requests in the pass"),
    generated=("Int64", "tokens computed for the requests that decode; null if the range does not say"),
    prefilled=("Int64", "tokens computed for the requests that prefill; null if the range does not say"),
    state=(
        "String",
        "`steady`, `ramp` (the batch fills or drains) or `between answers` (no request decodes on)",
    ),
)
def pass_windows(forward_passes: pl.DataFrame) -> pl.DataFrame:
    """One forward pass of one trace until the next one starts, in order; the last pass has no window.

    Passes of a draft model belong to the pass that they follow. The columns of windows are those of `steps`.
    The usual batch is the median over tokens of the requests in their pass, so that a long drain of few
    requests counts little. Steady state lasts from the first to the last pass that decodes with 90 % of it.
    If a pass decodes no more requests than were prefilled since the one before, none needs to have decoded
    on: the server may have had no request in between.
    """
    table = DERIVED.get("pass_windows").table
    on_device = pl.col("timed_by").is_in([BY_LAUNCHES, BY_TWIN])
    passes = forward_passes.filter(on_device & (pl.col("phase") != DRAFT)).sort("start_ns")
    passes = passes.unique("start_ns", keep="last", maintain_order=True)
    gives = pl.col("phase").is_in(GIVES_TOKENS)
    if passes.height < 2 or not passes.select(gives.any()).item():
        return table.empty()
    giving = passes.filter(gives).sort("requests")
    half = giving["requests"].cum_sum() >= giving["requests"].sum() / 2
    usual = giving["requests"].filter(half)[0]
    is_full = gives & (pl.col("requests") >= STEADY_SHARE * usual)
    place = pl.int_range(pl.len())
    is_steady = place.is_between(place.filter(is_full).min(), place.filter(is_full).max())
    # Each pass that gives tokens, with those that only prefill after it, up to the next one that does.
    rows = passes.with_columns(is_steady=is_steady, gives=gives, run=gives.cast(pl.Int64).cum_sum())
    runs = rows.group_by("run", maintain_order=True).agg(
        pl.col("requests").filter(~pl.col("gives")).sum().alias("prefilled"),
        first=pl.col("requests").first(),
        of_phase=pl.col("phase").first(),
    )
    following = pl.col("first").shift(-1)
    decodes_on = (pl.col("of_phase").shift(-1) == MIXED) | (following > pl.col("prefilled"))
    ends = runs.select("run", ends=(pl.col("prefilled") > 0) & ~decodes_on.fill_null(value=False))
    state = (
        pl.when(~pl.col("is_steady"))
        .then(pl.lit(RAMP))
        .when("ends")
        .then(pl.lit(BETWEEN))
        .otherwise(pl.lit(STEADY))
    )
    following_ns = pl.col("start_ns").shift(-1)
    windows = rows.join(ends, on="run", how="left", maintain_order="left").with_columns(
        pl.min_horizontal("end_ns", following_ns).alias("end_ns"),
        step=place,
        device_start_ns="start_ns",
        device_end_ns=following_ns,
        length_ns=following_ns - pl.col("start_ns"),
        state=state,
    )
    return windows.drop_nulls("device_end_ns").select(*table.columns)


@derived(
    step=("Int64", "number of the pass in the trace"),
    window_ns=("Int64", "length of its window, ns"),
    compute_ns=("Int64", "time in which something computed, ns"),
    exposed_communication_ns=("Int64", "time with communication alone, ns"),
    exposed_memory_ns=("Int64", "time with copies or sets alone, ns"),
    host_inside_ns=("Int64", "idle within the pass until work that was launched meanwhile, ns"),
    host_between_ns=("Int64", "idle after the pass until work that was launched meanwhile, ns"),
    queued_ns=("Int64", "idle in short gaps before work that was launched earlier, ns"),
    other_idle_ns=(
        "Int64",
        "idle in longer gaps before work that was launched earlier or by an unknown call, ns",
    ),
    graphs=("Int64", "CUDA graphs whose work started in the window"),
)
def pass_breakdown(
    pass_windows: pl.DataFrame,
    work: pl.DataFrame,
    origins: pl.DataFrame,
    launches: pl.DataFrame,
) -> pl.DataFrame:
    """One window of a forward pass of one trace: its parts add up to its length."""
    table = DERIVED.get("pass_breakdown").table
    if pass_windows.is_empty():
        return table.empty()
    parts = breakdown(pass_windows, work)
    spans = pass_windows.with_columns(device_end_ns="end_ns", length_ns=pl.col("end_ns") - pl.col("start_ns"))
    whole, inside = idle(pass_windows, origins), idle(spans, origins)
    of_graphs = launches.filter(matching(launches["name"], GRAPH_LAUNCH))["correlation"]
    replayed = origins.filter(is_one_of(origins["correlation"], of_graphs) & (origins["correlation"] > 0))
    placed = replayed.select("correlation", window_at(replayed["start_ns"], device_windows(pass_windows)))
    counts = placed.drop_nulls("window").group_by("window").agg(graphs=pl.col("correlation").n_unique())
    return parts.select(
        *("step", "window_ns", "exposed_communication_ns", "exposed_memory_ns"),
        compute_ns=pl.col("compute_ns") + pl.col("fused_ns"),
        host_inside_ns=inside["host_wait_ns"],
        host_between_ns=whole["host_wait_ns"] - inside["host_wait_ns"],
        queued_ns=whole["kernel_wait_ns"],
        other_idle_ns=whole["other_ns"],
        graphs=sum_per_window(pass_windows, counts)["graphs"].fill_null(0).cast(pl.Int64),
    ).select(*table.columns)


@derived(
    step=("Int64", "number of the pass in the trace"),
    call=("Int64", "number of the call in this trace"),
    start_ns=("Int64", "start of the stretch, ns"),
    end_ns=("Int64", "end of the stretch, ns"),
    is_exposed=("Boolean", "true for a stretch without compute; false for a stretch of the whole call"),
)
def pass_stretches(pass_windows: pl.DataFrame, work: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """One stretch of a call inside the window of a forward pass, and again each part that was exposed."""
    if pass_windows.is_empty():
        return DERIVED.get("pass_stretches").table.empty()
    return call_stretches(pass_windows, work, calls)


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    trace=("Int64", "trace"),
    rank=("Int64", "rank"),
    step=("Int64", "number of the pass in the trace"),
    collective=("String", "canonical collective"),
    dimension=("String", "parallelism dimension"),
    part=("String", "`waiting`, `transfer` or `unknown`"),
    reason=("String", "why it is unknown; null for the other parts"),
    time_ns=("Int64", "time in the window of the pass; over all rows of a pass each instant once, ns"),
    exposed_ns=("Int64", "the same without the time in which something computed, ns"),
)
def pass_communication(pass_stretches: pl.DataFrame, call_parts: pl.DataFrame) -> pl.DataFrame:
    """One part of the calls of one collective and dimension in the window of one pass of one trace."""
    return communication_parts(pass_stretches, call_parts)
