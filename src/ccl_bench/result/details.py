"""Types of the details of results, for sections, comparison and tools.

Each class names the details of one metric as plain JSON. The metric builds it, and a reader casts
`Result.details` to it, so that mypy checks every key on both sides.
"""

from __future__ import annotations

from typing import Any, NotRequired, Required, TypedDict


class LatenessCause(TypedDict, total=False):
    """Why a rank is late; empty if it has no peers."""

    kind: str
    """`compute`, `host`, `copies`, or `unknown` if no part explains half of the lag."""
    explained_ratio: float
    """The largest excess as a share of the lag."""
    excess_s: dict[str, float]
    """Excess of the rank over its peers in each part of a step, s."""


class GroupWait(TypedDict):
    """The rank that waits least in a process group."""

    dimension: str | None
    waits_least: str
    """Rank, or `none` if two wait equally little."""
    lag_s: float


class StragglerDetails(TypedDict):
    """Details of `straggler`: of waiting in traces, or, with a `source`, of step times or recorded calls."""

    slowest_rank: str
    """Rank, or `none`."""
    late_ranks: list[str]
    straggler_lag_s: float
    noise_floor_ratio: float
    step_s: NotRequired[float]
    source: NotRequired[str]
    recorded_s: NotRequired[float]
    """From the first to the last call that the Flight Recorder kept."""
    wait_s: NotRequired[dict[str, float]]
    mean_lateness_s: NotRequired[dict[str, float]]
    calls_count: NotRequired[int]
    clock_error_s: NotRequired[float]
    per_rank_s: NotRequired[dict[str, float]]
    per_step_ratio: NotRequired[dict[str, float]]
    wait_s_per_step: NotRequired[dict[str, float]]
    arrived_last_count: NotRequired[dict[str, float]]
    caused_wait_s_per_step: NotRequired[dict[str, float]]
    persistence_ratio: NotRequired[float]
    per_group: NotRequired[dict[str, GroupWait]]
    cause: NotRequired[LatenessCause]
    members_complete: NotRequired[bool]
    waiting_elsewhere_s: NotRequired[dict[str, float]]
    """Collective → exposed waiting in a step that the lag leaves out, mean over ranks."""


class LagDetails(TypedDict, total=False):
    """Details of `straggler_lag_16` where it is of waiting."""

    wait_s_per_step: dict[str, float]


class Theory(TypedDict):
    """The bubble of a balanced pipeline with messages without cost."""

    fraction_ratio: float
    formula: str


class BubbleDetails(TypedDict):
    """Details of `bubble_size_pipeline`."""

    fraction_ratio: float
    efficiency_ratio: float
    """The share of a step that is no bubble: 1 - `fraction_ratio`."""
    per_stage: dict[str, dict[str, float]]
    per_step_s: dict[str, float]
    stage_imbalance_ratio: float
    """Compute time of the busiest stage over that of the mean one."""
    unmatched_messages_count: int
    stages_count: int | None
    parts_missing: NotRequired[str]
    """Why the parts warm-up, steady state and cool-down are unknown."""
    theory: NotRequired[Theory]


class DimensionTraffic(TypedDict):
    """Traffic of one parallelism dimension; None if no size is known."""

    share_pct: float | None
    bytes_per_gpu_and_step: float | None
    calls_per_gpu_and_step: float
    time_s_per_gpu_and_step: NotRequired[float]
    exposed_s_per_gpu_and_step: NotRequired[float]
    parts_s_per_gpu_and_step: NotRequired[dict[str, float]]
    """`waiting`, `transfer` and `unknown`, together the time."""
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


class PeakMemoryDetails(TypedDict, total=False):
    """Details of `peak_memory_allocated`."""

    highest_device: str
    imbalance_ratio: float
    per_device_peak_allocated_bytes: dict[str, int]
    holders: list[Holder]


class Holder(TypedDict):
    """The part of the peak that one call stack allocated."""

    bytes: int
    blocks_count: int
    frames: list[str]
    is_before_history: bool


class StepTimeDetails(TypedDict):
    """Details of `iteration_wall_clock_time`."""

    per_step_s: dict[str, float]
    per_rank_s: dict[str, float]
    slowest_rank: list[int | None]
    spread_s: dict[str, float]
    """Statistic → the time of a step, s; `count` is the number of steps, `cv` has no unit."""
    host_range_s: NotRequired[float]
    """Mean over steps of the longest range on the host that marks the step, s; in traces."""


class LoadImbalanceDetails(TypedDict):
    """Details of `load_imbalance_ratio`."""

    busiest_rank: str
    max_s: float
    mean_s: float
    min_s: float
    per_rank_s: dict[str, float]
    per_step_ratio: dict[str, float]


class BusyDetails(TypedDict):
    """Details of `gpu_busy` that are its own."""

    step_s: float
    """Mean over steps of the slowest rank's step in the traces."""
    longest_s_by_step: dict[str, float]
    """Step → its length on the slowest rank."""
    per_rank_parts_s_per_step: dict[str, dict[str, float]]
    per_step_parts_s: dict[str, dict[str, float]]
    waiting_pct: NotRequired[float]
    """Share of the step in which nothing computed and communication only waited."""
    busy_without_waiting_pct: NotRequired[float]
    per_rank_waiting_pct: NotRequired[dict[str, float]]


class ExposedDetails(TypedDict):
    """Details of `exposed_communication_time` that are its own; its parts have the first two too."""

    pct_of_step: float
    per_collective_s: NotRequired[dict[str, float]]
    parts_s: NotRequired[dict[str, float]]
    """`waiting`, `transfer` and `unknown` → time in a step, mean over ranks."""
    per_rank_parts_s: NotRequired[dict[str, dict[str, float]]]
    per_step_parts_s: NotRequired[dict[str, dict[str, float]]]


class IdleDetails(TypedDict):
    """Details of `idle_breakdown`: what the device waited for."""

    per_rank_pct: dict[str, float]
    per_step_pct: dict[str, float]
    per_cause_pct: dict[str, float]
    idle_s: float
    host_wait_s: float
    kernel_wait_s: float
    other_wait_s: float
    idle_pct_of_step: float
    streams_s: dict[str, dict[str, float]]
    cuda_graph_launches: int


class PhaseDetails(TypedDict):
    """Details of `forward_time`, `backward_time` and `optimizer_time` that all have."""

    per_phase_s: dict[str, float]


class KernelTimeDetails(TypedDict):
    """Details of `total_kernel_time`."""

    per_type_s: dict[str, float]
    per_type_pct: dict[str, float]
    kernels_per_step: float
    types_unknown: NotRequired[str]
    """Time in kernels of unknown type, if it is large."""


class KernelShare(TypedDict):
    """One of the kernels with most time."""

    name: str
    type: str
    pct: float
    count: int
    s_per_step: float


class KernelSharesDetails(TypedDict):
    """Details of `dominant_kernel_concentration`."""

    per_rank_pct: dict[str, float]
    per_rank_name: dict[str, str]
    compute_only_pct: float | None
    first: list[KernelShare]


class CollectiveBytesDetails(TypedDict):
    """Details of `traffic_distribution_16`."""

    per_collective_gb: dict[str, float]
    per_collective_calls: dict[str, float]
    per_collective_mean_message_bytes: dict[str, float]
    per_rank_gb: dict[str, float]
    unattributed_calls_count: int


class CommunicationTimeDetails(TypedDict):
    """Details of `total_communication_time` that are its own."""

    summed_s: float
    per_collective_s: dict[str, float]
    per_collective_summed_s: dict[str, float]
    parts_s: NotRequired[dict[str, float]]
    per_collective_parts_s: NotRequired[dict[str, dict[str, float]]]


class CallCountDetails(TypedDict):
    """Details of `coll_call_num`."""

    rank: str
    per_rank: dict[str, float]
    per_step: dict[str, float]
    per_collective: dict[str, float]


class BandwidthDetails(TypedDict):
    """Details of `bandwidth_utilization_*` that every result has, and the share of a known link."""

    basis: str
    reach: str
    algorithm_bandwidth_gb_per_s: float
    calls_count: int
    total_bytes: int
    time_parts_s: NotRequired[dict[str, float]]
    """`waiting`, `transfer` and `unknown` → time of such calls in a step, mean over ranks."""
    share_of_link_pct: NotRequired[float]
    nccl_tests_efficiency_ratio: NotRequired[float]
    """Speed over that of nccl-tests at the same sizes."""


class ComparedCalls(TypedDict):
    """Calls of one kind that `collective_efficiency` compares."""

    collective: str
    dimension: str
    members: int
    reach: str
    size_bytes: int
    library: str
    """Library that was measured; `nccl-tests` for the user's own measurement."""
    library_version: str | None
    reference_s: float
    """Time of a call in the reference, s."""
    recorded_s: float
    """Mean transfer of a call, s."""
    efficiency_pct: float
    calls_count: int


class EfficiencyDetails(TypedDict):
    """Details of `collective_efficiency`."""

    calls: list[ComparedCalls]
    without_reference_s: float
    """Transfer of calls without a reference, s."""


class TrainingPoint(TypedDict):
    """One recorded value of a training."""

    step: int | None
    value: float


class TrainingDetails(TypedDict):
    """Details of `training_quality`."""

    series: dict[str, list[TrainingPoint]]
    perplexity: NotRequired[float]


class ExpertGroup(TypedDict):
    """Tokens in one expert-parallel group."""

    imbalance_ratio: float
    coefficient_of_variation_ratio: float
    tokens_per_device: dict[str, int]


class ExpertsDetails(TypedDict, total=False):
    """Details of `token_to_expert_assignment`."""

    source: Required[str]
    tokens_per_device: dict[str, int]
    tokens_per_expert: dict[str, int]
    per_rank_tokens: dict[str, int]
    """Tokens that each rank counted."""
    imbalance_over_experts_ratio: float
    """Tokens of the busiest expert over the mean of experts."""
    coefficient_of_variation_ratio: float
    per_layer: dict[str, float]
    per_group: dict[str, ExpertGroup]
    dropped_tokens_count: int
    from_splits_ratio: float


class ServingDetails(TypedDict, total=False):
    """Details of latencies and rates of serving."""

    tool: str
    requests: dict[str, int]
    """How requests ended → their number."""
    distribution_s: dict[str, float]
    as_stored_s: dict[str, float]
    percentiles_s: list[float]
    """Least time, every percentile, longest time."""


class ClientDetails(TypedDict, total=False):
    """The client's time per token beside the passes of a trace."""

    tpot_s: float
    tpot_meanwhile_s: float
    """Of the requests that were in progress while the trace was recorded."""
    requests_meanwhile: int
    trace_from_s: float
    """When the passes of the trace begin, since the first request was sent, s."""
    trace_until_s: float
    clocks: str
    divided_s: float
    """The time per token that the pieces and `outside_of_passes_s` add up to."""
    outside_of_passes_s: float
    not_compared: str
    """Why the time per token is not divided into pieces."""


class DecodePeriodDetails(TypedDict):
    """Details of `decode_period`."""

    sentence: str
    pieces_s: dict[str, float]
    """Piece → its part of the time between two tokens, mean over ranks, s."""
    pieces_pct: dict[str, float]
    decode_pass_s: float
    """From the start of a pass that only decodes to that of the next pass, mean over passes and ranks."""
    per_rank_s: dict[str, float]
    distribution_s: dict[str, float]
    requests_in_a_pass: dict[str, float]
    tokens_in_a_pass: NotRequired[dict[str, float]]
    passes: dict[str, int]
    """Phase → passes in steady state, all ranks."""
    passes_left_out: dict[str, int]
    passes_with_graphs: int
    """Passes that only decode in which a CUDA graph ran."""
    exposed_communication_s: dict[str, float]
    efficiency_pct: NotRequired[dict[str, float]]
    """Collective → time of the reference as a share of its transfer."""
    without_reference: NotRequired[str]
    client: NotRequired[ClientDetails]


class MfuDetails(TypedDict):
    """Details of `mfu`."""

    convention: str
    model_flops_per_token: float
    model_flops_per_token_source: str
    tokens_per_s: float
    per_step_pct: dict[str, float]
    gpus: Any
    gpu_peak_tflops: float
    gpu_peak_source: str
    device: str
    precision: str
    achieved_tflops_per_gpu: float
    other_conventions_pct: dict[str, float]
