"""The strip of a step: the work of each stream or thread of each rank, in a bounded number of pieces."""

from __future__ import annotations

from ccl_bench.analysis.communication.calls import TRANSFER, WAITING
from ccl_bench.analysis.communication.clocks import clocks_of
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.analysis.device.short_names import short_name
from ccl_bench.analysis.device.work import COMMUNICATION, COMPUTING, MEMORY
from ccl_bench.analysis.intervals import clip, device_windows
from ccl_bench.base.lazy_imports import pl

MOST_PIECES = 2_000
"""Pieces of one trace at most, except where it has more streams: a page of many ranks holds them all."""

_OF_PARTS = {WAITING: WAITING, TRANSFER: TRANSFER}
"""Part of a call → kind of its piece, where it is known what the part is."""

_SPAN = ("start_ns", "end_ns")


@derived(
    reads={"cpu_ops": ("start_ns", "end_ns", "name", "thread")},
    step=("Int64", "number of the step, the middle one of those recorded"),
    lane=("Int64", "stream of the device, or thread of the CPU"),
    on_device=("Boolean", "whether it is a stream of a device"),
    kind=("String", "`compute`, `communication`, `fused` or `memory`; of several the one that took longest"),
    name=("String", "short name of the kernel, operator, collective or copy; of several the longest one's"),
    call=("Int64", "number of the call in this trace; null for other work, and for several pieces in one"),
    size_bytes=("Int64", "message, bytes; null as for `call`, and if unknown"),
    start_ns=("Int64", "start, not before the step's device window, ns"),
    end_ns=("Int64", "end, not after it, ns"),
    count=("Int64", "number of pieces of work that it summarises"),
    busy_ns=("Int64", "sum of their durations, ns"),
    longest_ns=("Int64", "duration of the longest of them, ns"),
)
def step_pieces(
    steps: pl.DataFrame,
    device_work: pl.DataFrame,
    memcpy: pl.DataFrame,
    work: pl.DataFrame,
    calls: pl.DataFrame,
    cpu_ops: pl.DataFrame,
) -> pl.DataFrame:
    """One piece of work in the middle step of one trace; short neighbours of one stream are put together."""
    ordered = steps.sort("device_start_ns")
    middle = ordered.slice(ordered.height // 2, 1)
    of_calls = {name: pl.col(name) for name in ("call", "size_bytes")}
    parts = [
        _piece(
            calls, lane=pl.col("stream"), kind=pl.lit(COMMUNICATION), name=pl.col("collective"), **of_calls
        )
    ]
    name = pl.col("name").cast(pl.String)
    if device_work.height:
        computing = device_work.filter("is_kernel", pl.col("kind").is_in(COMPUTING))
        names = {each: short_name(each) for each in computing["name"].cast(pl.String).unique().drop_nulls()}
        short = name.replace_strict(names, default=None, return_dtype=pl.String)
        # Copies that carry out communication are pieces of their call.
        place = ["start_ns", "end_ns", "stream", "correlation"]
        copied = device_work.filter(pl.col("kind") == MEMORY).select(place).unique()
        copies = memcpy.join(copied, on=place, how="semi", nulls_equal=True, maintain_order="left")
        parts += [
            _piece(computing, lane=pl.col("stream"), kind=pl.col("kind"), name=short),
            _piece(copies, lane=pl.col("stream"), kind=pl.lit(MEMORY), name=pl.col("kind")),
        ]
    else:
        place = ["start_ns", "end_ns", "stream"]
        operators = cpu_ops.select("name", *_SPAN, stream="thread")
        last = operators.unique(place, keep="last", maintain_order=True)
        computed = work.filter(pl.col("kind").is_in(COMPUTING)).select(*place, "kind")
        named = computed.join(last, on=place, how="left", nulls_equal=True, maintain_order="left")
        parts.append(_piece(named, lane=pl.col("stream"), kind=pl.col("kind"), name=name))
    inside = clip(pl.concat(parts), device_windows(middle)).drop("window")
    length = pl.col("end_ns") - pl.col("start_ns")
    pieces = inside.with_columns(
        step=pl.lit(middle["step"].item() if middle.height else None, dtype=pl.Int64),
        on_device=pl.lit(value=device_work.height > 0),
        count=pl.lit(1, dtype=pl.Int64),
        busy_ns=length,
        longest_ns=length,
    )
    window_ns = int((middle["device_end_ns"] - middle["device_start_ns"]).sum())
    return fewer(pieces, window_ns, MOST_PIECES).select(*DERIVED.get("step_pieces").table.columns)


def _piece(table: pl.DataFrame, **columns: pl.Expr) -> pl.DataFrame:
    """Return intervals as pieces; a number that is not given is unknown."""
    unknown = pl.lit(None, dtype=pl.Int64)
    columns_or_null = {"call": unknown, "size_bytes": unknown, **columns}
    return table.select(
        *_SPAN, *(expression.alias(name) for name, expression in sorted(columns_or_null.items()))
    )


_MOST_BINS = 1 << 16
"""Bins of the first try, far more than a screen has points across."""

_ROW = ("trace", "rank", "iteration", "step", "lane", "on_device")
"""Columns that say whose work a piece is, where a table has them."""

_OF_ONE = ("call", "size_bytes", "awaits")
"""What several pieces together do not have."""


def fewer(pieces: pl.DataFrame, window_ns: int, most: int) -> pl.DataFrame:
    """Return at most `most` pieces of one trace where that is possible, in order of lane and start.

    The window is cut into bins, as fine as possible. What is shorter than a bin becomes one piece with
    what starts in the same bin of its lane: it has the kind that took longest, and the name of the
    longest piece of that kind.
    """
    merged, bins = pieces, _MOST_BINS
    place = [*(key for key in _ROW if key in pieces.columns), "bin"]
    while merged.height > most and bins:
        width_ns = max(window_ns // bins, 1)
        is_short = pl.col("end_ns") - pl.col("start_ns") < width_ns
        short = pieces.filter(is_short).with_columns(bin=pl.col("start_ns") // width_ns)
        by_kind = _together(short.sort("longest_ns", descending=True, maintain_order=True), [*place, "kind"])
        mixed = _together(by_kind.sort("busy_ns", descending=True, maintain_order=True), place)
        merged = pl.concat([pieces.filter(~is_short), mixed.select(pieces.columns)])
        bins //= 2
    return merged.sort("lane", "start_ns", "end_ns", maintain_order=True)


def _together(ordered: pl.DataFrame, keys: list[str]) -> pl.DataFrame:
    """Return one piece for all with the same keys; the first of them gives it kind and name."""
    alone = pl.col("count").sum() == 1
    first = [name for name in ("kind", "name", "longest_ns") if name not in keys]
    return ordered.group_by(keys, maintain_order=True).agg(
        pl.col(first).first(),
        *(pl.when(alone).then(pl.col(name).first()).alias(name) for name in _OF_ONE if name in ordered),
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("count", "busy_ns").sum(),
    )


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    trace=("Int64", "trace"),
    rank=("Int64", "rank"),
    step=("Int64", "number of the step, the middle one of those recorded"),
    lane=("Int64", "stream of the device, or thread of the CPU"),
    on_device=("Boolean", "whether it is a stream of a device"),
    kind=("String", "as in `step_pieces`, or `waiting` and `transfer` if they can be distinguished"),
    name=("String", "as of `step_pieces`"),
    awaits=("Int64", "of `waiting`, the rank that arrived last; else null"),
    size_bytes=("Int64", "message, bytes; null for several pieces in one, and if unknown"),
    start_ns=("Int64", "start on the clock of all ranks, ns"),
    end_ns=("Int64", "end on the clock of all ranks, ns"),
    count=("Int64", "number of pieces of work that it summarises"),
    busy_ns=("Int64", "sum of their durations, ns"),
    longest_ns=("Int64", "duration of the longest of them, ns"),
)
def strip_pieces(
    step_pieces: pl.DataFrame,
    call_parts: pl.DataFrame,
    matched: pl.DataFrame,
    contents: pl.DataFrame,
    clock_offsets: pl.DataFrame,
) -> pl.DataFrame:
    """One piece of work in the middle step of one rank, on the clock of all ranks; waits are pieces too."""
    key, call = ["iteration", "group", "number"], ["trace", "call"]
    last = matched.drop_nulls("wait_ns").select(
        *call, awaits=pl.col("rank").sort_by("wait_ns").first().over(key)
    )
    parts = call_parts.select(*call, "part", from_ns="start_ns", until_ns="end_ns")
    split = (
        step_pieces.join(parts, on=call, maintain_order="left")
        .join(last, on=call, how="left", maintain_order="left")
        .with_columns(
            start_ns=pl.max_horizontal("start_ns", "from_ns"), end_ns=pl.min_horizontal("end_ns", "until_ns")
        )
        .filter(pl.col("start_ns") < pl.col("end_ns"))
    )
    length = pl.col("end_ns") - pl.col("start_ns")
    apart = split.with_columns(
        kind=pl.col("part").replace_strict(_OF_PARTS, default=COMMUNICATION),
        awaits=pl.when(pl.col("part") == WAITING).then("awaits"),
        busy_ns=length,
        longest_ns=length,
    )
    whole = step_pieces.join(split.select(call).unique(), on=call, how="anti", maintain_order="left")
    columns = list(DERIVED.get("strip_pieces").table.columns)
    rest = whole.with_columns(awaits=pl.lit(None, dtype=pl.Int64))
    together = pl.concat([rest.select(columns), apart.select(columns)])
    clocks = clocks_of(contents, clock_offsets)
    timed = together.with_columns(clocks.applied(together.select("trace", *_SPAN)).select(_SPAN))
    return timed.sort("trace", "lane", "start_ns", maintain_order=True)
