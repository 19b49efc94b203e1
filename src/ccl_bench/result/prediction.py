"""The answer of `ccl-bench predict` for one recorded run: a predicted step with its interval."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.base.text import encode_json
from ccl_bench.result import KIND, Displayed

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.base.findings import Finding

Quantiles = dict[str, float]
"""`p10`, `p50` and `p90`."""


REACHES = {True: "between nodes", False: "inside nodes", None: "nodes unknown"}
"""Whether calls cross nodes → the name of their links."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Whether the configuration fits into the memory of a device, on its fullest rank."""

    fits: bool | None = None
    """None where it is open or unknown."""
    needed_bytes: int | None = None
    """Counted from shapes; None if they are unknown."""


@dataclass(frozen=True, slots=True)
class CallChange:
    """How the transfer of one kind of call changes on another network."""

    collective: str
    members: int | None
    """Size of the group; None if unknown."""
    spans_nodes: bool | None
    """Whether the group crosses nodes; None if unknown."""
    dimension: str
    calls: int
    size_bytes: int
    """Median size of a call."""
    recorded_s: float
    """Sum of the transfers of all calls."""
    predicted_s: float


@dataclass(frozen=True, slots=True)
class FittedLink:
    """Latency and bandwidth of one kind of call, fitted on the run's calls without waiting."""

    collective: str
    members: int
    spans_nodes: bool | None
    alpha_s: float
    bus_bandwidth: float
    """byte/s"""
    calls: int
    error_ratio: float
    """Mean relative error of calls that the fit had not seen."""


@dataclass(frozen=True, slots=True)
class Doubling:
    """The gain if one kind of link moved twice as much in the same time."""

    link: str
    """`inside nodes`, `between nodes`, `nodes unknown`, or a parallelism dimension."""
    gain_s: float
    share: float
    """Of the replayed step."""


@dataclass(frozen=True, slots=True, repr=False)
class Prediction(Displayed):
    """The predicted step of one run in another configuration or on another network; never a measurement."""

    run: str
    configuration: Mapping[str, object]
    """What is predicted: `dp`, `pp`, `microbatches`, `schedule` and others, or `network`."""
    recorded: Mapping[str, object] = field(default_factory=dict)
    """The same of the recorded run, and its `step_s`."""
    step_s: Quantiles | None = None
    """Predicted length of a step, s; None if the prediction was refused."""
    tokens_per_s_per_gpu: Quantiles | None = None
    """None if the tokens of a step are unknown, or the configuration does other work."""
    memory: Memory = field(default_factory=Memory)
    gain_s: float | None = None
    """Recorded less predicted step, s; None if the configuration does other work."""
    stage_work: str = ""
    """What a stage computes: `recorded`, or `regrouped` if the layers of the model are divided anew."""
    error_ratio: float | None = None
    """Recorded steps as the schedule and their own durations give them, over the recorded ones, less 1."""
    unexplained: float | None = None
    """Share of the recorded step that its replay does not explain."""
    links: list[FittedLink] = field(default_factory=list)
    calls: list[CallChange] = field(default_factory=list)
    doubling: list[Doubling] = field(default_factory=list)
    draws: int = 0
    seed: int = 0
    refused: str | None = None
    """Why there is no prediction."""
    fix: str = ""
    """What to do about that."""
    findings: list[Finding] = field(default_factory=list)
    kind: str = KIND


def to_json(answer: Prediction) -> bytes:
    """Return an answer as indented JSON."""
    return encode_json(asdict(answer))
