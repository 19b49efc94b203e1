"""How evenly tokens spread over the devices that hold experts."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.report.charts.bars import bars
from ccl_bench.report.numbers import amount
from ccl_bench.report.parts import Chart, Quantity, Section
from ccl_bench.report.sections.seen import absent, table, tile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.report.parts import Table
    from ccl_bench.report.sections.seen import Seen

KEY, TITLE = "experts", "Balance of experts"

_GROUPS = 4
_BARS = 256


def experts(looked: Seen) -> Section:
    """Return the section."""
    result = looked.valued("token_to_expert_assignment")
    if result is None:
        return absent(KEY, TITLE, looked.why("token_to_expert_assignment"))
    details: dict[str, Any] = result.details
    return Section(
        KEY,
        TITLE,
        f"Tokens that each device received for its experts, from {details['source']}. 1 is even.",
        (
            *tile(looked, "token_to_expert_assignment", "Busiest device over mean"),
            *tile(looked, "moe_fraction", "Kernel time in experts"),
        ),
        tuple(_charts(details)),
        tuple(_layers(details)),
    )


def _charts(details: dict[str, Any]) -> Iterator[Chart]:
    if "tokens_per_device" in details:
        yield _tokens("experts-devices", "Tokens of each device", "device", details["tokens_per_device"])
    if "tokens_per_expert" in details:
        yield _tokens("experts", "Tokens of each expert", "expert", details["tokens_per_expert"])
    for place, (name, group) in enumerate([*details.get("per_group", {}).items()][:_GROUPS]):
        title = f"Tokens of each rank in {name}"
        yield _tokens(f"experts-group-{place}", title, "rank", group["tokens_per_device"])


def _tokens(key: str, title: str, what: str, tokens: dict[str, int]) -> Chart:
    most, least = (pick(tokens, key=lambda name: tokens[name]) for pick in (max, min))
    shown = dict(sorted(tokens.items(), key=lambda item: -item[1])[:_BARS]) if len(tokens) > _BARS else tokens
    note = f"The {_BARS} of {len(tokens):,} with most tokens." if len(shown) < len(tokens) else ""
    spec = bars([(name, float(count)) for name, count in shown.items()], title="tokens", unit="tokens")
    spec["encoding"]["y"]["title"] = what
    summary = f"Most tokens, {tokens[most]:,}, went to {what} {most}, least, {tokens[least]:,}, to {least}."
    rows = [(name, Quantity(count, f"{count:,}")) for name, count in shown.items()]
    return Chart(key, title, spec, summary, table((what, "tokens"), rows), note)


def _layers(details: dict[str, Any]) -> Iterator[Table]:
    layers: dict[str, float] = details.get("per_layer", {})
    if layers:
        rows = [(name, Quantity(value, amount(value))) for name, value in layers.items()]
        yield table(("layer", "busiest device over mean"), rows, caption="By layer")
