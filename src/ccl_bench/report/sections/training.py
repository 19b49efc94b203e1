"""Quality of the training: loss, and the balance of experts."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, cast

from ccl_bench.report.charts.bars import bars
from ccl_bench.report.charts.lines import curves
from ccl_bench.report.context import absent, cell, table, tile
from ccl_bench.report.formatting import amount
from ccl_bench.report.page_model import PageChart, PageSection, Quantity

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.report.context import Context
    from ccl_bench.result.details import ExpertsDetails, TrainingDetails, TrainingPoint

KEY, TITLE = "training", "Training quality"

_POINTS = 500
_CHARTS = 4


def training(context: Context) -> PageSection:
    """Return the section."""
    result = context.valued("training_quality")
    if result is None:
        return absent(KEY, TITLE, context.why("training_quality"))
    details = cast("TrainingDetails", result.details)
    perplexity = details.get("perplexity")
    note = f"perplexity {amount(perplexity)}" if perplexity else ""
    return PageSection(
        KEY,
        TITLE,
        "As the training run recorded it. Compare speed only between runs that train equally well.",
        tuple(tile(context, "training_quality", "Loss at the last step", note=note)),
        tuple(_charts(details["series"])),
    )


def _charts(series: dict[str, list[TrainingPoint]]) -> Iterator[PageChart]:
    for name, points in [*series.items()][:_CHARTS]:
        if len(points) < 2:
            continue
        each = ceil(len(points) / _POINTS)
        numbered = [float(step) for step in (point["step"] for point in points) if step is not None]
        is_numbered = len(numbered) == len(points)
        at = "step" if is_numbered else "record"
        places = numbered if is_numbered else [float(place) for place in range(1, len(points) + 1)]
        every = [(place, point["value"]) for place, point in zip(places, points, strict=True)]
        pairs = [*every[::each], *([every[-1]] if (len(every) - 1) % each else [])]
        title = name.replace("_", " ")
        spec = curves({title: pairs}, x=at, y=title, of="value", zero=False)
        first, last = pairs[0], pairs[-1]
        summary = (
            f"From {amount(first[1])} at {at} {first[0]:,.0f} to {amount(last[1])} at {at} {last[0]:,.0f}."
        )
        rows = [(f"{step:,.0f}", cell(value, amount)) for step, value in pairs]
        note = f"One of every {each:,} of {len(points):,} values, and the last." if each > 1 else ""
        key = f"training-{name.replace('_', '-').lower()}"
        yield PageChart(key, title.capitalize(), spec, summary, table((at, title), rows, left=()), note)


EXPERTS_KEY, EXPERTS_TITLE = "experts", "Balance of experts"

_GROUPS = 4
_BARS = 256


def experts(context: Context) -> PageSection:
    """Return the section."""
    result = context.valued("token_to_expert_assignment")
    if result is None:
        return absent(EXPERTS_KEY, EXPERTS_TITLE, context.why("token_to_expert_assignment"))
    details = cast("ExpertsDetails", result.details)
    owner = "device" if {"tokens_per_device", "per_group"} & details.keys() else "expert"
    charts = []
    if "tokens_per_device" in details:
        tokens = details["tokens_per_device"]
        charts.append(_tokens("experts-devices", "Tokens of each device", "device", tokens))
    if "tokens_per_expert" in details:
        charts.append(_tokens("experts", "Tokens of each expert", "expert", details["tokens_per_expert"]))
    for place, (name, group) in enumerate([*details.get("per_group", {}).items()][:_GROUPS]):
        title = f"Tokens of each rank in {name}"
        charts.append(_tokens(f"experts-group-{place}", title, "rank", group["tokens_per_device"]))
    tables = []
    if layers := details.get("per_layer"):
        rows = [(name, cell(value, amount)) for name, value in layers.items()]
        tables.append(table(("layer", f"busiest {owner} over mean"), rows, caption="By layer"))
    return PageSection(
        EXPERTS_KEY,
        EXPERTS_TITLE,
        f"Tokens that each {owner} received, from {details['source']}. An imbalance of 1 is balanced.",
        (
            *tile(context, "token_to_expert_assignment", f"Busiest {owner} over mean"),
            *tile(context, "moe_fraction", "Kernel time in experts"),
        ),
        tuple(charts),
        tuple(tables),
    )


def _tokens(key: str, title: str, what: str, tokens: dict[str, int]) -> PageChart:
    most, least = (pick(tokens, key=lambda name: tokens[name]) for pick in (max, min))
    counts = (
        dict(sorted(tokens.items(), key=lambda item: -item[1])[:_BARS]) if len(tokens) > _BARS else tokens
    )
    note = f"The {_BARS} of {len(tokens):,} with most tokens." if len(counts) < len(tokens) else ""
    spec = bars([(name, float(count)) for name, count in counts.items()], title="tokens", unit="tokens")
    spec["encoding"]["y"]["title"] = what
    summary = f"Most tokens, {tokens[most]:,}, went to {what} {most}, fewest, {tokens[least]:,}, to {least}."
    rows = [(name, Quantity(count, f"{count:,}")) for name, count in counts.items()]
    return PageChart(key, title, spec, summary, table((what, "tokens"), rows), note)
