"""Bandwidth of communication by kind of call, as in nccl-tests, and the Hockney model.

The Hockney model of communication time is t = alpha + beta * S, fitted by least squares.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.communication.arguments import UNEVEN
from ccl_bench.analysis.communication.calls import PARTS, TRANSFER
from ccl_bench.analysis.communication.matching import MESSAGES, symmetric_collectives
from ccl_bench.analysis.derived import DERIVED, derived
from ccl_bench.base.errors import NoValue
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.collectives import bus_factor, collectives

if TYPE_CHECKING:
    from collections.abc import Sequence

LEAST_R_SQUARED = 0.5
"""Share of the variance that a line must explain to be a model: with less, something else explains most."""


@dataclass(frozen=True, slots=True)
class HockneyFit:
    """A fitted line of time over message size."""

    alpha_s: float
    """Time of an empty message, s."""
    beta_s_per_byte: float
    """Time of one more byte, s."""
    r_squared: float
    """Share of the variance of time that the line explains, 0 to 1."""
    points: int
    """Calls that were fitted."""
    sizes: int
    """Different message sizes among them."""

    @property
    def doubt(self) -> str:
        """Why the line is no model of these times; empty if it is one."""
        fit = f"(R squared {self.r_squared:.2f})"
        if self.beta_s_per_byte <= 0:
            return f"larger messages did not take longer {fit}"
        if self.r_squared < LEAST_R_SQUARED:
            return f"message size explains less than half of the differences in time {fit}"
        if self.alpha_s < 0:
            return f"the fit gives a negative latency of {self.alpha_s:.3g} s {fit}; record smaller messages"
        return ""


def fit_hockney(size_bytes: Sequence[int], time_s: Sequence[float]) -> HockneyFit | None:
    """Return the least-squares line through times over sizes, or None for fewer than two sizes.

    Sums are taken around the means, so that large sizes cost no digits.
    """
    count, sizes = len(size_bytes), len(set(size_bytes))
    if sizes < 2:
        return None
    mean_size, mean_time = sum(size_bytes) / count, sum(time_s) / count
    covariance = sum((s - mean_size) * (t - mean_time) for s, t in zip(size_bytes, time_s, strict=True))
    variance = sum((s - mean_size) ** 2 for s in size_bytes)
    beta = covariance / variance
    alpha = mean_time - beta * mean_size
    residual = sum((t - alpha - beta * s) ** 2 for s, t in zip(size_bytes, time_s, strict=True))
    total = sum((t - mean_time) ** 2 for t in time_s)
    return HockneyFit(alpha, beta, 1 - residual / total if total else 1.0, count, sizes)


WAIT_FREE, SHORTER_SIDE, UPPER_BOUND, RAW = "wait-free", "shorter side", "upper bound", "raw"
BASES = (WAIT_FREE, SHORTER_SIDE, UPPER_BOUND, RAW)
"""Sources of a transfer time, the best first."""


@derived(
    across_ranks=True,
    iteration=("Int64", "recording window"),
    step=("Int64", "step in which it started"),
    collective=("String", "canonical collective"),
    dimension=("String", "parallelism dimension"),
    size=("Int64", "ranks that took part; null if unknown"),
    spans_nodes=("Boolean", "whether it crossed nodes; null if unknown"),
    size_bytes=("Int64", "message, bytes"),
    time_ns=("Int64", "time it took, ns"),
    basis=(
        "String",
        "`wait-free` of all members, `shorter side` of a message, `upper bound` of some, `raw` with waiting",
    ),
    bus_factor=("Float64", "bus bandwidth over algorithm bandwidth; null if it has none"),
)
def transfers(
    matched: pl.DataFrame, messages: pl.DataFrame, traffic: pl.DataFrame, groups: pl.DataFrame
) -> pl.DataFrame:
    """One collective or message that started in a step and moved a known number of bytes.

    Outside steps the profiler starts and stops, and what runs then says nothing of the links.
    A matched collective is one row, however many ranks took part; what could not be matched is one
    row for each rank that recorded it, with its raw duration.
    """
    collective = _matched_transfers(matched, groups)
    sent = traffic.select("step", send_trace="trace", send_call="call")
    paired = (
        messages.join(sent, on=["send_trace", "send_call"], how="left", maintain_order="left")
        .with_columns(
            collective=pl.lit("send_recv"), size=pl.lit(2, dtype=pl.Int64), own_sizes=pl.lit(value=False)
        )
        .select(*_COMMON, time_ns="transfer_ns", basis=pl.lit(SHORTER_SIDE))
    )
    timed = pl.concat(
        [
            matched.drop_nulls("transfer_ns").select("trace", "call"),
            *(messages.select(trace=f"{side}_trace", call=f"{side}_call") for side in MESSAGES),
        ]
    )
    # Messages that one kernel carries share its time, and have no bandwidth of their own.
    single = traffic.filter(pl.col("collective") != "send_recv")
    rest = single.join(timed, on=["trace", "call"], how="anti").select(
        *_COMMON, time_ns=pl.col("end_ns") - pl.col("start_ns"), basis=pl.lit(RAW)
    )
    in_steps = pl.concat([collective, paired, rest]).drop_nulls("step").filter(_moved_some())
    return in_steps.with_columns(factors(in_steps)).select(*DERIVED.get("transfers").table.columns)


_COMMON = ("iteration", "step", "collective", "dimension", "size", "spans_nodes", "size_bytes", "own_sizes")


def collective_transfers(matched: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `transfers` of matched collectives, also of those that belong to no step."""
    moved = _matched_transfers(matched, groups).filter(_moved_some())
    return moved.with_columns(factors(moved))


def _moved_some() -> pl.Expr:
    """Whether a call of several ranks moved bytes in some time."""
    return (pl.col("size_bytes") > 0) & (pl.col("time_ns") > 0) & (pl.col("size").fill_null(2) > 1)


def _matched_transfers(matched: pl.DataFrame, groups: pl.DataFrame) -> pl.DataFrame:
    is_whole = pl.col("present") >= pl.col("size")
    return (
        matched.drop_nulls("transfer_ns")
        .unique(["iteration", "group", "number"], keep="first", maintain_order=True)
        .join(groups.select("group", "spans_nodes"), on="group", how="left", maintain_order="left")
        .select(
            *_COMMON,
            time_ns="transfer_ns",
            basis=pl.when(is_whole).then(pl.lit(WAIT_FREE)).otherwise(pl.lit(UPPER_BOUND)),
        )
    )


_TRANSFERS = DERIVED.get("transfers").table.columns


_COLUMNS: dict[str, Any] = {name: (column.dtype, column.doc) for name, column in _TRANSFERS.items()}


@derived(across_ranks=True, **_COLUMNS)
def recorded_transfers(nccl_records: pl.DataFrame) -> pl.DataFrame:
    """One collective or message that the NCCL Inspector timed; of no step.

    Where all ranks of the communicator recorded a symmetric collective, the shortest time is free of waiting.
    """
    on_device = nccl_records.filter(pl.col("time_from") != "collective_cpu")
    is_whole = pl.col("collective").is_in(symmetric_collectives())
    keys = ["communicator", "collective", "sequence", "ranks"]
    together = on_device.filter(is_whole).group_by(keys, maintain_order=True)
    matched = together.agg(
        pl.col("nodes").max(),
        pl.col("size_bytes").max(),
        pl.col("time_ns").min(),
        pl.col("communicator_name").drop_nulls().first(),
        present=pl.col("communicator_rank").n_unique(),
    )
    basis = (
        pl.when(pl.col("present") >= pl.col("ranks"))
        .then(pl.lit(WAIT_FREE))
        .when(pl.col("present") > 1)
        .then(pl.lit(UPPER_BOUND))
        .otherwise(pl.lit(RAW))
    )
    alone = on_device.filter(~is_whole).with_columns(pl.lit(RAW).alias("basis"))
    timed = pl.concat([matched.with_columns(basis.alias("basis")), alone], how="diagonal")
    between_two = pl.col("collective").is_in(["send", "recv"])
    named = timed.with_columns(
        iteration=pl.lit(None, dtype=pl.Int64),
        step=pl.lit(None, dtype=pl.Int64),
        dimension=pl.coalesce("communicator_name", pl.lit("unknown")),
        size=pl.when(between_two).then(pl.lit(2, dtype=pl.Int64)).otherwise("ranks"),
        spans_nodes=pl.when(~between_two | (pl.col("nodes") == 1)).then(pl.col("nodes") > 1),
        own_sizes=pl.lit(value=False),
    )
    moved = named.filter((pl.col("size_bytes") > 0) & (pl.col("time_ns") > 0) & (pl.col("size") > 1))
    return moved.with_columns(factors(moved)).select(*_TRANSFERS)


def factors(calls: pl.DataFrame) -> pl.Series:
    """Return the bus-bandwidth factor of each call; each kind and size of group is looked up once."""
    kinds = calls.select("collective", "size", "own_sizes").unique(maintain_order=True)
    factors = [known_bus_factor(*row) for row in kinds.iter_rows()]
    looked_up = kinds.with_columns(pl.Series("bus_factor", factors, dtype=pl.Float64))
    on = ["collective", "size", "own_sizes"]
    return calls.join(looked_up, on=on, how="left", nulls_equal=True, maintain_order="left")["bus_factor"]


def known_bus_factor(collective: str, size: int | None, own_sizes: bool | None = None) -> float | None:
    """Return the bus-bandwidth factor of a collective over a group, None if it has none."""
    name = UNEVEN if own_sizes and collective == "all_to_all" else collective
    if size is None or name not in collectives():
        return None
    try:
        return bus_factor(name, size)
    except NoValue:
        return None


def rates(transfers: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return bandwidths over all transfers of each value of `by`: total bytes over total time.

    Columns: `calls`, `bytes`, `time_ns`, `algorithm_bandwidth` and `bus_bandwidth` in GB/s, which is null
    where the factor of some call is not known, and `median_bandwidth`, the median bus bandwidth of a call.
    """
    keys = list(by)
    each = pl.col("size_bytes") * pl.col("bus_factor") / pl.col("time_ns")
    bus_bytes = (pl.col("size_bytes") * pl.col("bus_factor")).sum()
    bus = pl.when(pl.col("bus_factor").is_not_null().all()).then(bus_bytes / pl.col("time_ns").sum())
    return (
        transfers.group_by(keys)
        .agg(
            pl.len().cast(pl.Int64).alias("calls"),
            pl.col("size_bytes").sum().alias("bytes"),
            (pl.col("size_bytes").sum() / pl.col("time_ns").sum()).alias("algorithm_bandwidth"),
            bus.alias("bus_bandwidth"),
            each.median().alias("median_bandwidth"),
            pl.col("time_ns").sum(),
        )
        .sort(keys, nulls_last=True)
    )


OUTLYING = 10
"""A call that takes this many times the median of similar calls is an outlier.

Messages of one kind differ by up to a factor of two in size, and contention adds a few times their time: ten
times is none of both, such as the set-up of a connection.
"""

_ALIKE_FROM = 3
"""Number of calls of about one size from which their median is used: of two it lies between them."""


def outlying(transfers: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that take far longer than calls like them, with the median `usual_ns` of those.

    Alike are calls of one collective and group size whose messages lie between two powers of two.
    """
    kind = ["collective", "dimension", "size", pl.col("size_bytes").log(2).floor()]
    median = transfers.with_columns(
        pl.col("time_ns").median().over(kind).alias("usual_ns"), pl.len().over(kind).alias("alike")
    )
    is_far = pl.col("time_ns") > OUTLYING * pl.col("usual_ns")
    return median.filter(is_far & (pl.col("alike") >= _ALIKE_FROM)).drop("alike")


_KIND = ("collective", "dtype", "size_bytes", "dimension", "size")


@derived(
    across_ranks=True,
    collective=("String", "canonical collective"),
    dtype=("String", "element type as recorded; null if unknown"),
    size_bytes=("Int64", "message as nccl-tests counts it, bytes; null if unknown"),
    dimension=("String", "parallelism dimension"),
    size=("Int64", "members of the group, 2 for a message between two ranks; null if unknown"),
    calls=("Int64", "calls in steps, all ranks"),
    duration_ns=("Int64", "sum of their durations, ns"),
    waiting_ns=("Int64", "of these, time known to be waiting, ns"),
    transfer_ns=("Int64", "of these, time known to be transfer, ns"),
    unknown_ns=("Int64", "of these, time that is either, ns"),
    collectives=("Int64", "collectives with comparable arrivals; a call of several ranks counts once"),
    skew_ns=(
        "Float64",
        "median over these of the time from the first to the last arrival, ns; null if there is none",
    ),
    bus_bandwidth=("Float64", "median bus bandwidth of a call, GB/s; null if it has none"),
    is_wait_free=("Boolean", "whether this uses the transfer time of every call; else whole durations"),
)
def call_kinds(
    traffic: pl.DataFrame,
    known_calls: pl.DataFrame,
    call_parts: pl.DataFrame,
    matched: pl.DataFrame,
    arrivals: pl.DataFrame,
) -> pl.DataFrame:
    """One kind of call in steps: a collective, an element type, a size and a group of one dimension."""
    place = ["trace", "call"]
    length = pl.col("end_ns") - pl.col("start_ns")
    lengths = call_parts.group_by(place).agg(
        length.filter(pl.col("part") == part).sum().alias(f"{part}_ns") for part in PARTS
    )
    number = ["iteration", "group", "number"]
    skews = matched.select(*place, *number).join(
        arrivals.select(*number, "skew_ns"), on=number, nulls_equal=True, maintain_order="left"
    )
    calls = traffic.drop_nulls("step")
    tables = (known_calls.select(*place, "dtype"), lengths, skews.drop("iteration", "group"))
    for table in tables:
        calls = calls.join(table, on=place, how="left", maintain_order="left")
    timed = calls.with_columns(duration_ns=length, bus_factor=factors(calls))
    free = (pl.col("transfer_ns") > 0) & (pl.col("unknown_ns") == 0)
    is_free = free.fill_null(value=False).all()
    moved = pl.col("bus_factor") * pl.col("size_bytes")
    sums = [pl.col(f"{part}_ns").sum() for part in PARTS]
    # A collective counts once, by its first member among the calls of a kind.
    is_first = pl.struct(number).is_first_distinct()
    of_collective = pl.col("skew_ns").filter(pl.col("skew_ns").is_not_null() & is_first)
    rows = timed.group_by(_KIND).agg(
        pl.len().cast(pl.Int64).alias("calls"),
        pl.col("duration_ns").sum(),
        *sums,
        of_collective.len().cast(pl.Int64).alias("collectives"),
        of_collective.median().alias("skew_ns"),
        pl.when(is_free)
        .then((moved / pl.col(f"{TRANSFER}_ns")).median())
        .otherwise((moved / pl.col("duration_ns")).filter(pl.col("duration_ns") > 0).median())
        .alias("bus_bandwidth"),
        is_free.alias("is_wait_free"),
    )
    ordered = rows.sort("duration_ns", *_KIND, descending=[True] + [False] * len(_KIND), nulls_last=True)
    return ordered.select(*DERIVED.get("call_kinds").table.columns)
