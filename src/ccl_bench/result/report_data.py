"""Data of the report of a run: inspection, every result, and series to draw.

Report data contain no raw trace and stay small for any length of run and number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from ccl_bench.base.errors import InputError
from ccl_bench.base.text import encode_json, json_decoder
from ccl_bench.result import Result  # noqa: TC001
from ccl_bench.result.diagnosis import Diagnosed  # noqa: TC001
from ccl_bench.result.drill_down import DrillDown, Strip
from ccl_bench.result.inspection import Inspection  # noqa: TC001 (msgspec reads the types of fields)
from ccl_bench.result.sweep import Sweep  # noqa: TC001

SCHEMA_VERSION = 1

_ROUNDING = 1e-12
"""Share of a step below which a difference is rounding."""


@dataclass(frozen=True, slots=True)
class Grid:
    """One number for each rank and step."""

    ranks: list[str]
    """Names of the rows: a rank, or several such as `0-7`."""
    steps: list[str]
    """Names of the columns, likewise."""
    values_s: list[list[float | None]]
    """One list per row, s; None for unknown values."""
    ranks_each: int = 1
    """Number of ranks averaged in a row."""
    steps_each: int = 1
    """Number of steps averaged in a column."""


@dataclass(frozen=True, slots=True)
class Spread:
    """The spread of values, s."""

    name: str
    """The step or rank that they belong to, or several such as `0-7`."""
    count: int
    min_s: float
    p50_s: float
    max_s: float


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Step times."""

    source: str
    """File, or how the steps were found in the traces."""
    by_step: list[Spread]
    """Over the ranks, or over those and neighbouring steps, in order."""
    by_rank: list[Spread]
    """Over the steps of a rank, or of neighbouring ranks."""
    grid: Grid | None = None
    """Each rank separately, if there are few."""
    steps_each: int = 1
    ranks_each: int = 1


@dataclass(frozen=True, slots=True)
class TimeParts:
    """The breakdown of a mean step of one rank; the parts add up to `window_s`."""

    rank: str
    """A rank, or several such as `0-7`, of which it is the mean."""
    window_s: float
    compute_s: float
    exposed_communication_s: float
    exposed_memory_s: float
    idle_s: float
    fused_s: float = 0.0
    """In kernels that compute and communicate in one, nothing else computing."""
    exposed_wait_s: float = 0.0
    """Of exposed communication, waiting for late ranks."""
    exposed_transfer_s: float = 0.0
    """Of exposed communication, transfer; the rest of it is unknown."""

    @property
    def exposed_unknown_s(self) -> float:
        """Of exposed communication, the unknown part, s."""
        rest = self.exposed_communication_s - self.exposed_wait_s - self.exposed_transfer_s
        return rest if rest > _ROUNDING * self.window_s else 0.0


@dataclass(frozen=True, slots=True)
class MessageSize:
    """Calls of one collective with messages of similar size, and their speed."""

    collective: str
    dimension: str
    """Parallelism dimension."""
    reach: str
    """`inside a node`, `between nodes` or `unknown`."""
    basis: str
    """Basis of the time, as in `bandwidth_utilization_*`."""
    min_bytes: int
    max_bytes: int
    calls: int
    p10_gb_per_s: float
    """10th percentile of bus bandwidth, 10^9 bytes/s."""
    p50_gb_per_s: float
    p90_gb_per_s: float
    nccl_tests_gb_per_s: float | None = None
    """Bus bandwidth of nccl-tests at these sizes; None if not measured."""
    reference_gb_per_s: float | None = None
    """Bus bandwidth of the catalog's measurement at these sizes; None if it has none of them all."""


@dataclass(frozen=True, slots=True)
class ReferenceLine:
    """What the catalog's measurement of one collective reaches over a group, over message size."""

    collective: str
    dimension: str
    """Parallelism dimension of the calls that are compared with it."""
    reaches: str
    """What was measured, such as `NCCL 2.27.3 reaches on 8 A100 SXM`."""
    size_bytes: list[int]
    gb_per_s: list[float]
    """Bus bandwidth, 10^9 bytes/s."""


@dataclass(frozen=True, slots=True)
class MemoryCurve:
    """The memory of one device over time; each point stands for several events of the allocator."""

    device: str
    """Rank, or rank and number of the device."""
    events_each: int
    """Largest number of events per point."""
    is_timed: bool
    """Whether `at` is in s since the first event; else it counts events."""
    at: list[float] = field(default_factory=list)
    lowest_allocated_bytes: list[int] = field(default_factory=list)
    highest_allocated_bytes: list[int] = field(default_factory=list)
    highest_reserved_bytes: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Series:
    """Series for charts, in addition to the details of results."""

    step_times: StepTimes | None = None
    time_parts: list[TimeParts] = field(default_factory=list)
    ranks_each: int = 1
    """Ranks behind each of `time_parts`."""
    waits: Grid | None = None
    """Time that ranks waited for others in collectives."""
    bus_bandwidth: list[MessageSize] = field(default_factory=list)
    references: list[ReferenceLine] = field(default_factory=list)
    """Measurements that `bus_bandwidth` is compared with."""
    memory: list[MemoryCurve] = field(default_factory=list)
    memory_devices: int = 0
    """Devices with a history, of which `memory` has those with the highest peaks."""
    strip: Strip | None = None
    """Activity of every rank in one step."""
    drill_down: DrillDown = field(default_factory=DrillDown)
    """Consumers of time and memory."""
    sweep: Sweep | None = None
    """Results of a serving benchmark under several loads."""
    why_no_sweep: str = ""
    """Why several results form no sweep; empty if there is at most one."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """All data of the report of one run."""

    inspection: Inspection
    results: list[Result]
    series: Series = field(default_factory=Series)
    diagnosed: Diagnosed | None = None
    """The verdict and the opportunities."""
    schema_version: int = SCHEMA_VERSION


def to_json(observed: ReportData) -> bytes:
    """Return an observation as indented JSON."""
    return encode_json(observed)


_DECODER = json_decoder(ReportData)


def from_json(text: bytes) -> ReportData:
    """Return the observation in `text`, or raise InputError if it is invalid or of a later schema."""
    try:
        observed = _DECODER.decode(text)
    except msgspec.DecodeError as error:
        raise InputError(
            f"this is not a report: {error}", fix="make it with ccl-bench report RUN --format json"
        ) from error
    if observed.schema_version > SCHEMA_VERSION:
        raise InputError(
            f"the report has schema {observed.schema_version}; this program supports {SCHEMA_VERSION}",
            fix="install a later ccl-bench",
        )
    return observed


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of an observation."""
    return msgspec.json.schema(ReportData)
