"""What each scenario is worth: slowdown by rank, stage and operation, and what the worst of them explain.

S, M_W and M_S: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25).
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.whatif.graph import replay
from ccl_bench.whatif.scenarios import KINDS, Scenario, labels

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from ccl_bench.base.findings import Finding
    from ccl_bench.whatif.graph import Times
    from ccl_bench.whatif.operation_table import OperationTable

IDEALISATION = (
    "computing takes the mean of its type over ranks, stages and steps, communication the median transfer"
)

MOST_UNEXPLAINED = 0.05
"""Share of the step that may stay unexplained before there is no answer."""

WORST_WORKERS = 0.03
"""Share of workers that M_W asks about."""

_BYTES = 1 << 28
"""Of one array of times; more scenarios are replayed one after the other."""


@dataclass(frozen=True, slots=True)
class ScenarioAnswer:
    """How long steps take in one scenario."""

    name: str
    t_s: float
    """Mean over steps, s."""
    step_s: list[float]
    gain_s: float
    """Time of a step that the scenario saves, s; negative where it takes longer."""


@dataclass(frozen=True, slots=True)
class Explained:
    """How much of the slowdown some operations explain, as shares of it."""

    rem: float
    """By how much of the slowdown the step gets shorter when they alone are ideal."""
    add: float
    """How much of the slowdown comes back when they alone are not ideal."""
    workers: list[tuple[int, int]] = field(default_factory=list)
    """Rank and stage of each, the worst first."""


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The answer for one run; times are means over steps, s."""

    run: str
    t_recorded_s: float
    t_original_s: float
    """Replayed with the recorded durations, and no time between an operation and what it waits for."""
    t_ideal_s: float
    slowdown: float
    """S: original over ideal."""
    launch_slowdown: float
    """Recorded over original: what the time between operations costs."""
    idealisation: str
    replay_error: float
    """Original over recorded, less 1."""
    unexplained: float
    """Share of the recorded step that the replay does not explain."""
    m_w: Explained | None
    """What the worst workers explain; None where there is one, or nothing is slow."""
    m_s: Explained | None
    """What the last pipeline stage explains; None where there is one, or nothing is slow."""
    by: dict[str, dict[str, float]]
    """Kind → name → slowdown where all but this takes its ideal time."""
    scenarios: list[ScenarioAnswer]
    steps: list[int]
    findings: list[Finding] = field(default_factory=list)


def to_json(found: WhatIf) -> bytes:
    """Return an answer as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(asdict(found)), indent=2)


def answer_what_if(
    table: OperationTable,
    scenarios: Sequence[Scenario] = (),
    progress: Callable[[int, int], None] | None = None,
) -> WhatIf:
    """Return what scenarios are worth; raise NotMeasurable where too little of a step is explained."""
    ask = _Replays(table)
    original, ideal = ask.steps_s([table.duration, ask.ideal])
    t_recorded, t_original, t_ideal = (float(each.mean()) for each in (table.recorded_s, original, ideal))
    replay_error = t_original / t_recorded - 1
    if abs(replay_error) > MOST_UNEXPLAINED:
        message = (
            f"the replayed step differs from the recorded one by {replay_error:+.1%}: operations are missing"
        )
        fix = "record every operation of a step, also those of the host"
        raise NotMeasurable(message, where=table.name, fix=fix)
    named = {kind: labels(table, kind) for kind in KINDS}
    asked = [(kind, str(name)) for kind in KINDS for name in _in_order(named[kind])]
    alone = ask.steps_s((ask.ideal_but(named[kind] == name) for kind, name in asked), progress, len(asked))
    by: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for (kind, name), found in zip(asked, alone, strict=True):
        by[kind][name] = float(found.mean()) / t_ideal
    changed = ask.steps_s(each.durations(table.duration, ask.ideal) for each in scenarios)
    slow = (t_original, t_ideal)
    return WhatIf(
        run=table.name,
        t_recorded_s=t_recorded,
        t_original_s=t_original,
        t_ideal_s=t_ideal,
        slowdown=t_original / t_ideal,
        launch_slowdown=t_recorded / t_original,
        idealisation=IDEALISATION,
        replay_error=replay_error,
        unexplained=abs(replay_error),
        m_w=_worst_workers(ask, by, slow),
        m_s=_last_stage(ask, slow),
        by=by,
        scenarios=[
            ScenarioAnswer(each.name, float(took.mean()), took.tolist(), t_original - float(took.mean()))
            for each, took in zip(scenarios, changed, strict=True)
        ],
        steps=table.steps,
        findings=table.findings,
    )


class _Replays:
    """Replays of one table, with its ideal durations."""

    def __init__(self, table: OperationTable) -> None:
        self.table = table
        self.ideal = _ideal(table)

    def ideal_but(self, mask: NDArray[np.bool_]) -> Times:
        """Return durations that are ideal except those of some operations."""
        return np.where(mask[:, None], self.table.duration, self.ideal)

    def but_ideal(self, mask: NDArray[np.bool_]) -> Times:
        """Return recorded durations, ideal ones for some operations."""
        return np.where(mask[:, None], self.ideal, self.table.duration)

    def steps_s(
        self,
        durations: Iterator[Times] | Sequence[Times],
        progress: Callable[[int, int], None] | None = None,
        total: int = 0,
    ) -> list[NDArray[np.float64]]:
        """Return the length of each step, s, for each of several durations; many are replayed in one pass."""
        width = len(self.table.steps)
        at_once = max(1, _BYTES // (8 * self.table.duration.size))
        found: list[NDArray[np.float64]] = []
        waiting: list[Times] = []
        every = iter(durations)
        while True:
            following = next(every, None)
            waiting += [] if following is None else [following]
            if waiting and (following is None or len(waiting) == at_once):
                steps = replay(self.table.graph, np.concatenate(waiting, axis=1)).step_s
                found += np.split(steps, range(width, len(steps), width))
                waiting = []
                if progress:
                    progress(len(found), total)
            if following is None:
                return found


def _ideal(table: OperationTable) -> Times:
    """Return the duration that each operation would have without stragglers, `[operation, step]`, s."""
    found = np.empty_like(table.duration)
    for name in np.unique(table.operation):
        mine = table.operation == name
        typical = np.mean if table.is_compute[mine][0] else np.median
        found[mine] = typical(table.duration[mine])
    return found


def _in_order(names: NDArray[np.str_]) -> list[str]:
    """Return distinct names, numbers by size."""
    return sorted(
        map(str, np.unique(names)), key=lambda name: [(len(part), part) for part in name.split("/")]
    )


def _explained(
    ask: _Replays, mask: NDArray[np.bool_], slow: tuple[float, float]
) -> tuple[float, float] | None:
    """Return how much of a slowdown some operations explain: made ideal alone, and alone not."""
    t_original, t_ideal = slow
    if t_original <= t_ideal or mask.all():
        return None
    without, alone = (each.mean() for each in ask.steps_s([ask.but_ideal(mask), ask.ideal_but(mask)]))
    lost = t_original - t_ideal
    return float((t_original - without) / lost), float((alone - t_ideal) / lost)


def _worst_workers(
    ask: _Replays, by: dict[str, dict[str, float]], slow: tuple[float, float]
) -> Explained | None:
    """Return what the worst workers explain: slow are those whose rank and stage both are."""
    workers = _in_order(labels(ask.table, "worker"))
    score = {name: min(by["rank"][(at := name.split("/"))[0]], by["stage"][at[1]]) for name in workers}
    worst = sorted(workers, key=lambda name: -score[name])[: math.ceil(WORST_WORKERS * len(workers))]
    found = _explained(ask, np.isin(labels(ask.table, "worker"), worst), slow)
    places = [(int(rank), int(stage)) for rank, stage in (name.split("/") for name in worst)]
    return Explained(*found, workers=places) if found else None


def _last_stage(ask: _Replays, slow: tuple[float, float]) -> Explained | None:
    """Return what the last pipeline stage explains."""
    stage = ask.table.stage
    found = _explained(ask, stage == stage.max(), slow)
    return Explained(*found) if found else None
