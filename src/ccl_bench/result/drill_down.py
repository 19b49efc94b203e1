"""Drill-down data of a report: the strip of a step, and lists of the consumers of time."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Lane:
    """One stream of a device, or thread of a CPU."""

    name: str
    """Such as `stream 7`."""
    pieces: str
    """Pieces in order of start, apart by blanks.

    A piece is `DELTA,LENGTH,KIND NAME` without the blank, in units of the strip: its start after that of the
    piece before it (of the first, after the start of the strip), its length, the letter of its kind, and
    the number of its name. `,@RANK` follows where it waits for that rank, `,COUNT,BUSY` where it stands
    for so many pieces that take so long together: `120,35,c4 80,900,w7,@6 950,12,c4,9,8`.
    """


@dataclass(frozen=True, slots=True)
class StripRank:
    """The row of one rank."""

    rank: str
    start: int
    """Start of its step, in units of the strip after the start of the strip."""
    length: int
    """Length of its step, in units of the strip."""
    lanes: list[Lane]
    parts_s: dict[str, float]
    """Part of the step → its time, s; together they are the step."""
    node: int | None = None
    """Number of the node; None if the ranks of a node are unknown."""
    waited_s: float | None = None
    """Time that it waited in collectives of the step, s; None if unknown."""
    late_s: float | None = None
    """Difference to the waiting of the rank that waited most, s."""


@dataclass(frozen=True, slots=True)
class StripName:
    """The name of a piece."""

    text: str
    size_bytes: int | None = None
    """Message of a call, bytes."""


KINDS = {
    "c": "compute",
    "f": "fused",
    "t": "transfer",
    "n": "communication",
    "w": "waiting",
    "m": "memory",
}
"""Letter of a kind → its name: `communication` if waiting and transfer cannot be separated."""


@dataclass(frozen=True, slots=True)
class Strip:
    """All ranks in one step, on one clock."""

    step: str
    unit_ns: int
    """Unit of all its times, ns."""
    length: int
    """From the first rank's start to the last rank's end, in units."""
    clocks: str
    """How the ranks' clocks were aligned."""
    names: list[StripName]
    ranks: list[StripRank] = field(default_factory=list)
    """With many ranks: nodes with late ranks first, and late ranks first on a node; else by number."""
    pieces: int = 0
    """Pieces of work in the step."""
    drawn: int = 0
    """Number of drawn pieces, each for one or several."""
    others: int = 0
    """Traces without that step."""


@dataclass(frozen=True, slots=True)
class OperatorTime:
    """One operator in a mean step of a rank."""

    name: str
    calls: float
    host_s: float
    """Its time on the CPU, s."""
    own_s: float
    """Of this, time in no operator that it calls, s."""
    launched: float
    """Kernels, copies and sets that it launched itself."""
    device_s: float
    """Sum of their durations, s."""


@dataclass(frozen=True, slots=True)
class KernelTime:
    """Kernels of one name in a mean step of a rank."""

    name: str
    short: str
    """The name without template arguments."""
    type: str
    calls: float
    time_s: float
    """Sum of their durations, s."""
    pct: float
    """Share of the time of all kernels, %."""


@dataclass(frozen=True, slots=True)
class ProductShape:
    """Matrix products of one shape in a mean step of a rank."""

    name: str
    batch: int
    rows: int
    inner: int
    columns: int
    dtype: str
    is_tf32: bool
    """Whether its kernels worked in TF32."""
    calls: float
    flops: float
    """Operations of one product."""
    time_s: float
    """Time of its kernels, or without a device of its operators, s."""
    on_device: bool
    flops_per_s: float | None
    """Operations of the products that are timed over that time; None without any."""


@dataclass(frozen=True, slots=True)
class RangeTime:
    """One named range in a mean step of a rank."""

    path: list[str]
    """Names of the ranges around it, the outermost first, and its own."""
    calls: float
    host_s: float
    launched: float
    """Kernels, copies and sets launched in it and in no range inside it."""
    device_s: float
    """Sum of their durations, s."""


@dataclass(frozen=True, slots=True)
class CallKind:
    """Calls of one collective, element type, size and kind of group in a mean step of a rank."""

    collective: str
    dtype: str
    size_bytes: int | None
    dimension: str
    size: int | None
    """Members of the group."""
    calls: float
    time_s: float
    waiting_s: float
    transfer_s: float
    unknown_s: float
    """Time that is waiting or transfer; the three add up to `time_s`."""
    skew_s: float | None
    """Median time from the first to the last arrival, s."""
    bus_gb_per_s: float | None
    """Median bus bandwidth, 10^9 bytes/s."""
    is_wait_free: bool
    """Whether that is on the transfer of every call; else on whole durations."""


@dataclass(frozen=True, slots=True)
class PairTraffic:
    """Traffic from one rank to another in the whole recording."""

    source: int
    target: int
    calls: int
    """Messages and all-to-alls."""
    bytes: float


@dataclass(frozen=True, slots=True)
class CallSite:
    """Memory of one call stack at the peak."""

    frames: list[str]
    """The outermost first; empty if no stack was recorded."""
    bytes: int
    blocks: int
    category: str
    is_before_history: bool


@dataclass(frozen=True, slots=True)
class MemoryAtPeak:
    """Holders of the memory of one device at its peak."""

    device: str
    allocated_bytes: int
    sites: list[CallSite]
    """The largest first."""


@dataclass(frozen=True, slots=True)
class CategoryCurves:
    """Memory of one device by purpose, over time."""

    device: str
    is_timed: bool
    """Whether `at` is in s since the first event; else it counts events."""
    at: list[float]
    allocated_bytes: dict[str, list[int]]
    """Category → bytes at each of these moments."""


@dataclass(frozen=True, slots=True)
class DrillDown:
    """Lists of the consumers of time and memory, the largest first."""

    operators: list[OperatorTime] = field(default_factory=list)
    kernels: list[KernelTime] = field(default_factory=list)
    products: list[ProductShape] = field(default_factory=list)
    ranges: list[RangeTime] = field(default_factory=list)
    calls: list[CallKind] = field(default_factory=list)
    pairs: list[PairTraffic] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    """Name of a list → number of its smallest entries that are left out."""
    memory: MemoryAtPeak | None = None
    categories: CategoryCurves | None = None
