"""What a search shows: its trials beside their predictions, what may be faster, and what bounds each."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.base.text import encode_json
from ccl_bench.result import KIND

if TYPE_CHECKING:
    from ccl_bench.result.forecast import Percentiles
    from ccl_bench.result.prediction import Memory


@dataclass(frozen=True, slots=True)
class ReportedTrial:
    """One trial: what was predicted before it ran, what it measured, and what bounds it."""

    number: int
    configuration: dict[str, object]
    status: str
    """`measured`, `running`, `failed`, or `oom` for a failure of memory."""
    reason: str | None
    """Why it has no step time."""
    measured_s: float | None
    tokens_per_s_per_gpu: float | None
    tokens_per_dollar: float | None
    predicted_s: Percentiles | None
    """None for the first one, before anything was measured."""
    within_interval: bool | None
    """Whether the measured step is between p10 and p90; None without both."""
    memory: Memory
    bounds: dict[str, float]
    """Shares of the step by what bounds it; empty before a trial was measured."""
    folder: str


@dataclass(frozen=True, slots=True)
class UnmeasuredConfiguration:
    """A configuration that no trial measured, with what is predicted of it."""

    configuration: dict[str, object]
    step_s: Percentiles
    tokens_per_s_per_gpu: Percentiles
    tokens_per_dollar: Percentiles | None
    memory: Memory
    bounds: dict[str, float]
    kind: str = KIND


@dataclass(frozen=True, slots=True)
class SearchReport:
    """A search as far as it is."""

    name: str
    """Name of its folder."""
    model: str | None
    gpu: str | None
    gpus: int
    global_batch: int
    seq_len: int
    objective: str
    """What the search maximises: `tokens` per second and device, or tokens per `dollar`."""
    price_per_device_hour: float | None
    """US dollars."""
    trials: list[ReportedTrial]
    best: int | None
    """Number of the best measured trial."""
    first: int | None
    """Number of the first measured trial."""
    gain_ratio: float | None
    """Tokens per second and device of the best, divided by those of the first."""
    predicted: list[UnmeasuredConfiguration] = field(default_factory=list)
    """The best of the configurations that were not tried, by the median; they are no measurements."""
    untried: int = 0
    """Configurations that were not tried and may fit into memory."""
    predictable: int = 0
    """Those of them that the trials can predict: what a degree costs shows only in trials that vary it."""
    without_memory: int = 0
    """Configurations that were not tried and do not fit."""
    predictions: int = 0
    """Trials that have a prediction and a measured step."""
    mean_error_ratio: float | None = None
    """Mean difference of median and measured step, as a share of the measured step."""
    within_interval_ratio: float | None = None
    """Share of measured steps between p10 and p90; 0.8 is what the interval promises."""
    kind: str = "search"


def to_json(report: SearchReport) -> bytes:
    """Return the report as indented JSON."""
    return encode_json(report)
