"""Pictures for other pages: the badge of a run, and the drawing of a workload, as SVG that stands alone.

Colours are attributes: the policy of the server allows no style inside a picture.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.pages.render import BADGES, render_xml
from ccl_bench.leaderboard.pages.titles import metric_title
from ccl_bench.leaderboard.pages.workload import choose_drawing
from ccl_bench.leaderboard.store.query import default_columns
from ccl_bench.report.formatting import amount, with_unit
from ccl_bench.report.theme import LIGHT

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ccl_bench.leaderboard.store.query_result import ListedRun

_LETTER = 6.6
"""Width of a letter of the badge, in pixels; the picture stretches the text to it, whatever the font."""
_MARGIN = 8
_MOST_LETTERS = 110
"""Letters of a line of the picture that fit its width."""
_PER_DEVICE = ("training_throughput_per_device", "output_throughput_per_device")
"""What the board derives for a training, and for a server."""
_STATE_COLOURS = {"verified": LIGHT["good"], "withdrawn": LIGHT["error"], "superseded": LIGHT["warning"]}
"""Background of the badge's second part; grey for any other state."""


def run_badge(listed: ListedRun) -> str:
    """Return the badge of a run: its headline number and its state."""
    badge = BADGES[listed.run["state"]]
    texts = (headline_text(listed), f"{badge.glyph} {badge.word}")
    widths = [round(_LETTER * len(text) + 2 * _MARGIN) for text in texts]
    return render_xml(
        "badge.svg",
        parts=list(
            zip(
                (LIGHT["text"], _STATE_COLOURS.get(listed.run["state"], LIGHT["quiet"])),
                (0, widths[0]),
                widths,
                texts,
                strict=True,
            )
        ),
        width=sum(widths),
        margin=_MARGIN,
        label=f"{texts[0]}, {badge.word}",
    )


def headline_text(listed: ListedRun) -> str:
    """Return the tokens per second per device of a run in words, else its first default metric."""
    run = listed.run
    usual = default_columns().get(run["phase"] or "any", default_columns()["any"])
    name = next((name for name in (*_PER_DEVICE, *usual) if name in listed.numbers), None)
    if name is None:
        return "ccl-bench"
    number = listed.numbers[name]
    if name in _PER_DEVICE:
        device = "TPU" if "TPU" in (run["hardware"] or "").upper() else "GPU"
        return f"tokens/s per {device} {amount(number.value)}"
    return f"{metric_title(name)} {with_unit(number.value, number.unit)}"


def workload_picture(
    workload: dict[str, Any], runs: Sequence[ListedRun], *, metric: str = "", by: str = ""
) -> str | None:
    """Return the drawing of a metric of a workload; None if no run has a value to draw."""
    trend = choose_drawing(workload, runs, metric=metric, by=by).trend
    if trend is None:
        return None
    return render_xml("picture.svg", trend=trend, label=workload["label"], most_letters=_MOST_LETTERS)
