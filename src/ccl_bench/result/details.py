"""The details of results that sections, comparison and tools read: which keys there are, and what they hold.

Each class names the details of one metric as plain JSON. The metric builds it, and a reader casts
`Result.details` to it, so that mypy checks every key on both sides.
"""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict


class Cause(TypedDict, total=False):
    """Why a rank is late; empty where it has no peers."""

    kind: str
    """`compute`, `host`, `copies`, or `unknown` where no part explains half of the lag."""
    explained_ratio: float
    """Share of the lag that the largest excess makes up."""
    excess_s: dict[str, float]
    """What the rank spends in each part of a step beyond its peers, s."""


class GroupWait(TypedDict):
    """Who waits least in a process group."""

    dimension: str | None
    waits_least: str
    """Rank, or `none` where two wait equally little."""
    lag_s: float


class StragglerDetails(TypedDict):
    """Details of `straggler`."""

    slowest_rank: str
    """Rank, or `none`."""
    late_ranks: list[str]
    straggler_lag_s: float
    per_step_ratio: dict[str, float]
    step_s: float
    noise_floor_ratio: float
    wait_s_per_step: dict[str, float]
    arrived_last_count: dict[str, float]
    caused_wait_s_per_step: dict[str, float]
    persistence_ratio: float
    per_group: dict[str, GroupWait]
    cause: Cause
    members_complete: bool


class Theory(TypedDict):
    """The bubble of an even pipeline with free messages."""

    fraction_ratio: float
    formula: str


class BubbleDetails(TypedDict):
    """Details of `bubble_size_pipeline`."""

    fraction_ratio: float
    per_stage: dict[str, dict[str, float]]
    per_step_s: dict[str, float]
    stage_imbalance_ratio: float
    """Compute time of the busiest stage over that of the mean one."""
    unmatched_messages_count: int
    stages_count: int | None
    parts_missing: NotRequired[str]
    """Why the bubble is not divided into warm-up, steady state and cool-down."""
    theory: NotRequired[Theory]


class DimensionTraffic(TypedDict):
    """Traffic of one parallelism dimension; None where no size is known."""

    share_pct: float | None
    bytes_per_gpu_and_step: float | None
    calls_per_gpu_and_step: float
    time_s_per_gpu_and_step: float
    exposed_s_per_gpu_and_step: float
    unattributed_calls_count: int


class TrafficDetails(TypedDict):
    """Details of `traffic_distribution`."""

    busiest: str
    per_dimension: dict[str, DimensionTraffic]


class ThroughputDetails(TypedDict):
    """Details of `throughput_tokens_sec`."""

    tokens_per_step: int
    tokens_per_step_source: str
    iteration_wall_clock_time_s: float
    per_step_tokens_per_s: dict[str, float]
    tokens_per_s_per_gpu: NotRequired[float]
    gpus: NotRequired[int]


class FragmentationDetails(TypedDict):
    """Details of `memory_fragmentation`."""

    basis: str
    """`peaks` or `state when written`."""
    highest_device: str
    per_device_ratio: dict[str, float]
    per_device_reserved_bytes: dict[str, int]
    per_device_efficiency_ratio: NotRequired[dict[str, float]]
    per_device_inactive_split_ratio: NotRequired[dict[str, float]]
    per_device_scattered_ratio: NotRequired[dict[str, float]]
    snapshots: NotRequired[list[dict[str, Any]]]
