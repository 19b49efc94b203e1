"""The section on waiting: time that ranks spend in collectives before the last rank arrives."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.report.charts.bars import bars, heat_map
from ccl_bench.report.context import absent, cell, merged_note, table, tile
from ccl_bench.report.formatting import duration, percent, time_unit
from ccl_bench.report.page_model import PageChart, PageSection
from ccl_bench.report.sections.headline import share_of_step
from ccl_bench.report.theme import COMMUNICATION_PARTS
from ccl_bench.report.verdict import ALONE, who_waits

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.report.context import Context
    from ccl_bench.result.details import StragglerDetails
    from ccl_bench.result.report_data import Grid

KEY, TITLE = "waiting", "Waiting and stragglers"


def waiting(context: Context) -> PageSection:
    """Return the section."""
    grid, result = context.series.waits, context.valued("straggler")
    # What the replay shows stands in one paragraph, because it explains the lag or differs from it.
    replayed: list[str] = []
    if context.diagnosed is not None:
        if result is not None and any(finding.code == "waiting-elsewhere" for finding in result.findings):
            elsewhere = cast("StragglerDetails", result.details).get("waiting_elsewhere_s", {})
            listed = ", ".join(f"{name} {duration(wait)}" for name, wait in elsewhere.items())
            replayed.append(f"The lag leaves out waiting in other calls: {listed} a step, mean over ranks.")
        replayed += [*who_waits(context.diagnosed), *_beside_lag(context)]
    joined = [" ".join(replayed)] if replayed else []
    if grid is None and result is None:
        why = context.why("straggler")
        return PageSection(KEY, TITLE, why, notes=tuple(joined)) if joined else absent(KEY, TITLE, why)
    share = "Lag, share of the recorded time" if is_of_recorder(context) else "Lag, share of a step"
    lag = (
        *tile(context, "straggler_lag_16", "Lag of the slowest rank"),
        *tile(context, "straggler", share, formatter=lambda value: percent(100 * value)),
    )
    if grid is None:
        other_source = "The step times of each rank are known."
        if is_of_recorder(context):
            other_source = "Flight Recorder dumps show when each rank made its calls."
        about = f"The traces show no waiting. {other_source}"
        return PageSection(KEY, TITLE, about, lag, notes=(*_late(context), *joined))
    notes = []
    exposed = context.valued("exposed_wait_time")
    if exposed is not None and exposed.value is not None:
        of_step = share_of_step(context, "exposed_wait_time")
        notes.append(f"On average over ranks, {duration(exposed.value)} of waiting is exposed: {of_step}.")
    return PageSection(
        KEY,
        TITLE,
        "Waiting is the duration of a call beyond its duration on the last member to arrive. The "
        "rank that waits least is late; the one that waits most loses time.",
        lag,
        (_drawn(grid),),
        notes=(*notes, *_late(context), *joined),
    )


def is_of_recorder(context: Context) -> bool:
    """Whether stragglers are known from the Flight Recorder, which records no steps."""
    result = context.valued("straggler")
    return result is not None and "recorded_s" in result.details


def _unhidden(context: Context) -> Iterator[str]:
    """Yield how much of the waiting lengthens steps, as far as known."""
    result = context.valued("exposed_wait_time")
    if result is not None and result.value is not None:
        share = share_of_step(context, "exposed_wait_time")
        yield f"On average over ranks, {duration(result.value)} of waiting is exposed: {share}."


def _late(context: Context) -> Iterator[str]:
    result = context.valued("straggler")
    if result is None:
        return
    details = cast("StragglerDetails", result.details)
    late = details.get("late_ranks", [])
    if not late:
        yield "No rank is late by more than the noise."
        return
    worst = details["slowest_rank"]
    slowest = f"; the slowest is rank {worst}" if len(late) > 1 and worst != "none" else ""
    subject = f"Ranks {', '.join(late)} are" if len(late) > 1 else f"Rank {late[0]} is"
    yield f"{subject} late{slowest}."
    cause = details.get("cause", {})
    if cause.get("kind") in _CAUSES:
        who = f"Rank {worst}" if worst != "none" else "On average, each of them"
        yield f"{who} " + _CAUSES[cause["kind"]].format(duration(cause["excess_s"][cause["kind"]]))
    elif cause:
        yield "The cause is unknown: no single activity explains half of the lag."


def _beside_lag(context: Context) -> Iterator[str]:
    """Yield why the replay and the lag may name different ranks or times."""
    diagnosed, result = context.diagnosed, context.valued("straggler")
    waiting, verdict = (diagnosed.waiting, diagnosed.verdict) if diagnosed is not None else (None, None)
    if waiting is None or verdict is None or result is None:
        return
    details = cast("StragglerDetails", result.details)
    slowest, lag, latest = details["slowest_rank"], details["straggler_lag_s"], str(waiting.latest[0])
    if slowest == "none":
        if waiting.gain_of_latest_s >= details["noise_floor_ratio"] * verdict.step_s:
            yield "The lag names no rank: ranks do not differ enough in how long they wait in collectives."
    elif slowest != latest:
        yield (
            f"The lag names rank {slowest}, which waits least in collectives; over all calls and messages, "
            f"rank {latest} is late for more time."
        )
    elif waiting.gain_of_latest_s < ALONE * lag:
        yield (
            f"The lag of {duration(lag)} is how much less rank {slowest} waits than the rank that waits "
            "most; a step would not gain as much."
        )


_CAUSES = {
    "compute": "computes {} longer than its peers in a mean step.",
    "host": "leaves its device idle {} longer than its peers in a mean step: its host is slow.",
    "copies": "copies {} longer than its peers in a mean step.",
}


def _drawn(grid: Grid) -> PageChart:
    """Return the waiting of each rank in each step; of a single step as bars."""
    waits = {
        rank: [value for value in row if value is not None]
        for rank, row in zip(grid.ranks, grid.values_s, strict=True)
    }
    means = {rank: sum(values) / len(values) for rank, values in waits.items() if values}
    least, most = min(means, key=lambda rank: means[rank]), max(means, key=lambda rank: means[rank])
    summary = (
        f"Rank {most} waits most, {duration(means[most])} in a mean step, "
        f"rank {least} least, {duration(means[least])}."
    )
    rows = [
        (rank, *(cell(value, duration, "") for value in row))
        for rank, row in zip(grid.ranks, grid.values_s, strict=True)
    ]
    data = table(("rank", *(f"step {step}" for step in grid.steps)), rows)
    if len(grid.steps) == 1:
        per, unit = time_unit(means.values())
        spec = bars(
            [(rank, value * per) for rank, value in means.items()],
            title=f"waiting in step {grid.steps[0]}, {unit}",
            unit=unit,
            colour=COMMUNICATION_PARTS["waiting"],
        )
        return PageChart("waits", "Time that each rank waited", spec, summary, data)
    per, unit = time_unit(value for values in waits.values() for value in values)
    values = [[None if value is None else value * per for value in row] for row in grid.values_s]
    spec = heat_map(grid.ranks, grid.steps, values, of=("rank", "step", f"waiting, {unit}"))
    rows_note = merged_note(grid.ranks_each, "row", "neighbouring ranks")
    columns_note = merged_note(grid.steps_each, "column", "neighbouring steps")
    note = " ".join(filter(None, (rows_note, columns_note)))
    return PageChart("waits", "Time that each rank waited in each step", spec, summary, data, note)
