"""The stages of a pipeline and their bubbles."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from ccl_bench.base.text import counted
from ccl_bench.report.charts.bars import stacked
from ccl_bench.report.context import OF_STEP, absent, cell, table, tile
from ccl_bench.report.formatting import duration, percent, time_unit
from ccl_bench.report.page_model import PageChart, PageSection, Quantity
from ccl_bench.report.theme import COMMUNICATION_PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.report.context import Context
    from ccl_bench.result.details import BubbleDetails

KEY, TITLE = "pipeline", "Pipeline"

_WORK = {
    "compute": ("compute_s", "var(--compute)"),
    "exposed collectives": ("exposed_collectives_s", "var(--c7)"),
    "exposed transfer of messages": ("exposed_transfer_s", COMMUNICATION_PARTS["transfer"]),
}
_WHOLE_BUBBLE = {"bubble": ("bubble_s", "var(--bubble)")}
_BUBBLE_PARTS = {
    "bubble, warm-up": ("warm_up_s", "var(--bubble)"),
    "bubble, steady": ("steady_s", "var(--bubble-steady)"),
    "bubble, cool-down": ("cool_down_s", "var(--bubble-end)"),
}

_EVEN = 1.005
"""Ratio of the busiest stage to the mean below which the two decimals of the note would show 1.00."""


def pipeline(context: Context) -> PageSection:
    """Return the section."""
    result = context.valued("bubble_size_pipeline")
    if result is None:
        return absent(KEY, TITLE, context.why("bubble_size_pipeline"))
    details = cast("BubbleDetails", result.details)
    stages = details["per_stage"]
    divided = all({"warm_up_s", "steady_s", "cool_down_s"} <= stage.keys() for stage in stages.values())
    parts = _WORK | (_BUBBLE_PARTS if divided else _WHOLE_BUBBLE)
    times = {
        name: {part: stage.get(field, 0.0) for part, (field, _) in parts.items()}
        for name, stage in stages.items()
    }
    per, unit = time_unit(sum(each.values()) for each in times.values())
    spec = stacked(
        [(name, {part: value * per for part, value in each.items()}) for name, each in times.items()],
        [(part, colour) for part, (_, colour) in parts.items()],
        title=f"time in a mean step, {unit}",
        of="stage",
    )
    most = max(stages, key=lambda name: stages[name]["fraction"])
    share, length = percent(100 * stages[most]["fraction"]), duration(stages[most]["bubble_s"])
    summary = f"Stage {most} has the largest bubble: {length}, {share} of its traced step."
    rows = [
        (
            name,
            *(cell(value, duration) for value in (*times[name].values(), stage["bubble_s"])),
            Quantity(stage["fraction"], percent(100 * stage["fraction"])),
        )
        for name, stage in stages.items()
    ]
    data = table(("stage", *parts, "whole bubble", "share of the traced step"), rows)
    share_of_step = f"{percent(100 * details['fraction_ratio'])} {OF_STEP}"
    return PageSection(
        KEY,
        TITLE,
        "In the bubble a stage neither computes nor moves data. Warm-up lasts until its first backward work, "
        "cool-down begins after its last forward work.",
        tuple(tile(context, "bubble_size_pipeline", "Bubble in a mean step", note=share_of_step)),
        (PageChart("pipeline", "Time in a mean step of each stage", spec, summary, data),),
        notes=tuple(_notes(details)),
    )


def _notes(details: BubbleDetails) -> Iterator[str]:
    theory = details.get("theory")
    if theory:
        share = percent(100 * theory["fraction_ratio"])
        yield f"For balanced stages and messages without cost, {theory['formula']} gives {share} of the step."
    ratio = details["stage_imbalance_ratio"]
    if ratio < _EVEN:
        yield "All stages compute for about the same time."
    else:
        yield f"The busiest stage computes {ratio:.2f} times as long as the mean one."
    if details.get("unmatched_messages_count"):
        count = counted(details["unmatched_messages_count"], "message")
        yield f"The other side of {count} is unknown; its time counts as bubble, which is an upper bound."
    if "parts_missing" in details:
        yield f"The parts of the bubble are unknown: {details['parts_missing']}."
