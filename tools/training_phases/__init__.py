"""Which part of a training step the device works for: forward, backward, optimizer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tools.answers import Answers, answer, answers_of, origin, renamed

if TYPE_CHECKING:
    from pathlib import Path

METRICS = ("forward_time", "backward_time", "optimizer_time")

_BACKWARD = {
    "recomputed_s": "backward_recomputed_s",
    "gradient_accumulation_s": "gradient_accumulation_s",
    "gradient_communication_s": "gradient_communication_s",
}
_OUTSIDE = {"other": "other_s", "unattributed": "unattributed_s"}


def metric_cal(
    trace_dir: str | Path, workload_card_path: str | Path | None = None, profile_mode: str = "auto"
) -> dict[str, Any]:
    """Return the time of each phase in a step and its share; gradient accumulation is apart.

    Work belongs to the phase that launched it. Times are of computing and copying; the
    communication that a phase launched has keys of its own.
    """
    return described(answers_of(METRICS, trace_dir, workload_card_path, profile_mode))


def described(answers: Answers) -> dict[str, Any]:
    """Return the dict of `metric_cal` from what was measured of the run."""
    fields: dict[str, Any] = {}
    for result in answers.of(*METRICS):
        phase = result.metric.removesuffix("_time")
        names = {
            "pct_of_step": f"{phase}_pct",
            "communication_s": f"{phase}_communication_s",
            "per_rank_s": f"per_rank_{phase}_s",
        }
        fields |= {**answer(f"{phase}_s", result), **renamed(result.details, names)}
        fields |= renamed(result.details, _BACKWARD)
        fields |= renamed(result.details.get("per_phase_s", {}), _OUTSIDE)
    return {**fields, **origin(answers.of(*METRICS))}
