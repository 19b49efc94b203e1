"""Answers: gain of each scenario, slowdown by rank, stage and operation, and the share of the worst.

S, M_W and M_S: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.result.what_if import Explained, ScenarioAnswer, WhatIf
from ccl_bench.whatif.critical_path import find_critical_path
from ccl_bench.whatif.event_graph import CyclicGraphError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ccl_bench.whatif.event_graph import Mask, Times
    from ccl_bench.whatif.replays import Replays
    from ccl_bench.whatif.scenarios import Scenario

MOST_UNEXPLAINED = 0.05
"""Largest unexplained share of the step; beyond it there is no answer: gains are about as small."""

_ROUNDING = 1e-9
"""Relative difference of two sums of the same times."""

WORST_WORKERS = 0.03
"""Share of workers in M_W, as the study has it."""


def answer_what_if(
    replays: Replays,
    scenarios: Sequence[Scenario] = (),
    progress: Callable[[int, int], None] | None = None,
) -> WhatIf:
    """Return the gains of scenarios.

    Raises NotMeasurable if the replay explains too little of a step, or if ideal times lengthen it.
    """
    original, unexplained = replay_recorded(replays)
    (ideal,) = replays.steps_s([replays.ideal])
    t_recorded, t_original, t_ideal = (float(each.mean()) for each in (replays.recorded_s, original, ideal))
    if t_ideal > (1 + _ROUNDING) * t_original:
        message = (
            f"the step with ideal times is {t_ideal / t_original - 1:.1%} longer than the recorded one: the "
            "ranks differ less than their noise, so no rank's times are an ideal of the others"
        )
        raise NotMeasurable(message, where=replays.name, fix="record more steps")
    names_of_kind = {kind: replays.names(kind) for kind in replays.answered}
    parts = [
        (kind, name) for kind in replays.answered for name in _in_order(names_of_kind[kind].unique_names)
    ]
    alone = replays.steps_s(
        (replays.ideal_but(names_of_kind[kind].mask([name])) for kind, name in parts), progress, len(parts)
    )
    by: dict[str, dict[str, float]] = {kind: {} for kind in replays.answered}
    for (kind, name), lengths in zip(parts, alone, strict=True):
        by[kind][name] = float(lengths.mean()) / t_ideal
    changed = [
        np.maximum(steps, each.at_least_s)
        for steps, each in zip(replays.steps_s(each.variant() for each in scenarios), scenarios, strict=True)
    ]
    slow = (t_original, t_ideal)
    stages = replays.names("stage")
    stage_names = _in_order(stages.unique_names)
    last = _explained(replays, stages.mask(stage_names[-1:]), slow) if len(stage_names) > 1 else None
    return WhatIf(
        run=replays.name,
        t_recorded_s=t_recorded,
        t_original_s=t_original,
        t_ideal_s=t_ideal,
        slowdown=t_original / t_ideal,
        launch_slowdown=t_recorded / t_original,
        idealisation=replays.idealisation,
        replay_error=t_original / t_recorded - 1,
        unexplained=unexplained,
        m_w=_worst_workers(replays, by, slow),
        m_s=Explained(*last) if last else None,
        by={kind: names for kind, names in by.items() if names},
        step_s=original.tolist(),
        critical_path=find_critical_path(replays),
        scenarios=[
            ScenarioAnswer(each.name, float(took.mean()), took.tolist(), t_original - float(took.mean()))
            for each, took in zip(scenarios, changed, strict=True)
        ],
        steps=list(replays.steps),
        findings=list(replays.findings),
    )


def replay_recorded(replays: Replays) -> tuple[Times, float]:
    """Return the replayed length of each step, s, and the unexplained share of a step.

    Raises NotMeasurable if that is too much, or if the partners of communication are unknown.
    """
    if replays.unmet > MOST_UNEXPLAINED:
        message = f"{replays.unmet:.0%} of a step is communication whose partners the traces do not show"
        fix = "record every rank, with groups and peers: NCCL with torch 2.5 or later, or Execution Traces"
        raise NotMeasurable(message, where=replays.name, fix=fix)
    try:
        (original,) = replays.steps_s([replays.recorded])
    except CyclicGraphError as cycle:
        fix = "record again: the times of calls and kernels contradict each other"
        raise NotMeasurable(str(cycle), where=replays.name, fix=fix) from cycle
    if not len(original):
        fix = "record whole steps, and mark them"
        raise NotMeasurable("no complete step was recorded", where=replays.name, fix=fix)
    if empty := int((replays.recorded_s <= 0).sum()):
        message = (
            f"{empty} of {len(original)} steps replay without any work: they began before it was launched"
        )
        fix = "wait for the device in every step while you record, so that each step launches its own work"
        raise NotMeasurable(message, where=replays.name, fix=fix)
    unexplained = float(np.abs(original / replays.recorded_s - 1).mean())
    if unexplained > MOST_UNEXPLAINED:
        error = original.mean() / replays.recorded_s.mean() - 1
        message = f"the replayed step differs from the recorded one by {error:+.1%}: operations are missing"
        fix = "record every operation of a step, also those of the host, and begin to record before it"
        raise NotMeasurable(message, where=replays.name, fix=fix)
    return original, unexplained


def _in_order(names: Iterable[str]) -> list[str]:
    """Return names, numbers by size."""
    return sorted(filter(None, names), key=lambda name: [(len(part), part) for part in name.split("/")])


def _explained(replays: Replays, mask: Mask, slow: tuple[float, float]) -> tuple[float, float] | None:
    """Return the share of a slowdown that some operations explain: if only they are ideal, or all others."""
    t_original, t_ideal = slow
    if t_original <= t_ideal or mask.all() or not mask.any():
        return None
    without, alone = (
        each.mean() for each in replays.steps_s([replays.ideal_but(~mask), replays.ideal_but(mask)])
    )
    lost = t_original - t_ideal
    return float((t_original - without) / lost), float((alone - t_ideal) / lost)


def _worst_workers(
    replays: Replays, by: dict[str, dict[str, float]], slow: tuple[float, float]
) -> Explained | None:
    """Return the share that the slowest workers explain: those of a slow rank and a slow stage."""
    workers = replays.workers
    score = {}
    for name in _in_order(workers):
        rank, stage = name.split("/")
        score[name] = min(by["rank"].get(rank, 0.0), by["stage"].get(stage, math.inf))
    worst = sorted(score, key=lambda name: -score[name])[: math.ceil(WORST_WORKERS * len(score))]
    if not worst:
        return None
    explained = _explained(replays, np.logical_or.reduce([workers[name] for name in worst]), slow)
    places = [(int(rank), int(stage or 0)) for rank, stage in (name.split("/") for name in worst)]
    return Explained(*explained, workers=places) if explained else None
