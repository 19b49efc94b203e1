"""Answers of `predict --from` and `search --replay`: predicted steps, and how good they are."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

from ccl_bench.base.text import encode_json
from ccl_bench.result import KIND

if TYPE_CHECKING:
    from ccl_bench.result.prediction import Memory


@dataclass(frozen=True, slots=True)
class Percentiles:
    """A predicted quantity: in eight of ten cases it is between p10 and p90."""

    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True)
class Forecast:
    """The predicted step of one configuration."""

    configuration: dict[str, object]
    step_s: Percentiles | None
    """None where the prediction is refused."""
    tokens_per_s_per_gpu: Percentiles | None
    memory: Memory
    calibrated_on: str
    refused: str | None = None
    remarks: list[str] = field(default_factory=list)
    """What was assumed, and what differs from the trials."""
    kind: str = KIND


@dataclass(frozen=True, slots=True)
class Ranking:
    """Configurations by predicted tokens per second and device, the best first."""

    rows: list[Forecast]
    considered: int
    """Configurations that were predicted."""
    without_memory: int
    """Configurations that do not fit, and are left out."""
    kind: str = KIND


@dataclass(frozen=True, slots=True)
class EvaluatedRow:
    """A measured step beside its prediction."""

    configuration: dict[str, object]
    measured_s: float
    p10: float
    p50: float
    p90: float


@dataclass(frozen=True, slots=True)
class EvaluationAnswer:
    """How good predictions are on steps that did not calibrate them."""

    n: int
    mean_error_ratio: float
    median_error_ratio: float
    within_interval_ratio: float
    """Share of measured steps between p10 and p90; 0.8 is what the interval promises."""
    mean_regret_ratio: float | None
    """How much longer the step of the best predicted configuration is than the best."""
    calibrated_on: str
    rows: list[EvaluatedRow]
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class AskedTrial:
    """A configuration that a search asked for; times in seconds."""

    configuration: dict[str, object]
    predicted: Percentiles | None
    """None for the first one, before anything was measured."""
    measured: float | None
    """None where it failed."""


@dataclass(frozen=True, slots=True)
class ReplayAnswer:
    """A search that was played on a table of trials."""

    trials: list[AskedTrial]
    best: dict[str, object] | None
    best_tokens_per_s_per_gpu: float | None
    table_best_tokens_per_s_per_gpu: float
    remarks: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class TrialAnswer:
    """A trial of a search: its configuration, what was predicted, and what was measured."""

    number: int
    configuration: dict[str, object]
    predicted: Percentiles | None
    """None for the first one, before anything was measured."""
    measured: float | None
    """Seconds of a step; None where it failed."""
    status: str
    """`measured`, `failed` or `oom`."""
    reason: str | None
    """Why there is no step time."""
    folder: str
    """Folder of the trial."""


@dataclass(frozen=True, slots=True)
class SearchAnswer:
    """A search that measured."""

    trials: list[TrialAnswer]
    best: dict[str, object] | None
    best_tokens_per_s_per_gpu: float | None
    history: str
    """Table of the trials."""
    page: str
    """Page of the search, HTML."""


def to_json(answer: Forecast | Ranking | EvaluationAnswer | ReplayAnswer | SearchAnswer) -> bytes:
    """Return the answer as JSON, with the keys of `docs/search.md`."""
    body = asdict(answer)
    if isinstance(answer, ReplayAnswer):
        body = {"asked": body.pop("trials"), **body}
    return encode_json(body)
