"""Answers of `predict` as text: the predicted step with its interval, beside the recorded one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ccl_bench.base.findings import issue_of
from ccl_bench.base.text import counted, plain
from ccl_bench.report.console import Group, Text, aligned, heading, indented
from ccl_bench.report.inspection import issues
from ccl_bench.result.prediction import REACHES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.console import RenderableType

    from ccl_bench.result.prediction import Prediction

_SHOWN = (
    "dp",
    "pp",
    "tp",
    "cp",
    "ep",
    "microbatches",
    "micro_batch",
    "global_batch",
    "schedule",
    "gpus",
    "network",
)


def prediction_page(answer: Prediction) -> Group:
    """Return the whole page of a prediction that was not refused."""
    recorded: Any = answer.recorded
    rows = [
        (name, _value(recorded.get(name)), _value(answer.configuration.get(name)))
        for name in _SHOWN
        if recorded.get(name) is not None or answer.configuration.get(name) is not None
    ]
    for name in ("p50", "p10", "p90") if answer.step_s else ():
        predicted = _milliseconds(answer.step_s[name]) if answer.step_s else ""
        rows.append((f"step, {name}", _milliseconds(recorded["step_s"][name]), predicted))
    if answer.tokens_per_s_per_gpu:
        rows.append(("tokens/s per GPU, p50", "", f"{answer.tokens_per_s_per_gpu['p50']:,.0f}"))
    parts: list[RenderableType] = [
        heading(f"{plain(answer.run)}: prediction, not a measurement"),
        indented(aligned(("", "recorded", "predicted"), rows, right=(1, 2), wide=(0,))),
    ]
    lines = []
    if answer.gain_s is not None:
        lines.append(f"gain: {1000 * answer.gain_s:+,.1f} ms of the median step")
    if answer.stage_work == "regrouped":
        lines.append("the layers of the model are divided anew over the stages")
    if answer.error_ratio is not None:
        error = f"{100 * answer.error_ratio:+.1f} %"
        lines.append(f"the recorded steps, regenerated from their own durations: {error}")
    if answer.draws:
        lines.append(f"{counted(answer.draws, 'draw')} of the recorded durations, seed {answer.seed}")
    if answer.unexplained is not None:
        lines.append(f"unexplained: {100 * answer.unexplained:.2f} % of the recorded step")
    parts += [indented(Text(plain(line))) for line in lines]
    for title, table in _network_tables(answer):
        parts += [Text(), heading(title), indented(table)]
    if answer.findings:
        parts += [Text(), heading("Findings"), indented(issues(map(issue_of, answer.findings)))]
    return Group(*parts)


def _network_tables(answer: Prediction) -> Iterator[tuple[str, RenderableType]]:
    """Yield title and table of the run's links, of calls on another network, and of twice the bandwidth."""
    if answer.links:
        links = [
            (
                link.collective,
                str(link.members),
                REACHES[link.spans_nodes],
                f"{1e6 * link.alpha_s:,.1f} µs",
                f"{link.bus_bandwidth / 1e9:,.1f} GB/s",
                str(link.calls),
                "" if math.isnan(link.error_ratio) else f"{100 * link.error_ratio:.1f} %",
            )
            for link in answer.links
        ]
        head = ("collective", "members", "", "latency", "bus bandwidth", "calls", "error of unseen sizes")
        yield "Links of the run", aligned(head, links, right=(1, 3, 4, 5, 6), wide=(0,))
    if answer.calls:
        calls = [
            (
                call.collective,
                _value(call.members),
                REACHES[call.spans_nodes],
                call.dimension,
                str(call.calls),
                _milliseconds(call.recorded_s),
                _milliseconds(call.predicted_s),
            )
            for call in answer.calls
        ]
        head = ("collective", "members", "", "dimension", "calls", "recorded", "predicted")
        yield "Transfers", aligned(head, calls, right=(1, 4, 5, 6), wide=(0,))
    if answer.doubling:
        doubled = [
            (each.link, _milliseconds(each.gain_s), f"{100 * each.share:.1f} %") for each in answer.doubling
        ]
        yield (
            "Twice the bandwidth",
            aligned(("link", "gain", "of the step"), doubled, right=(1, 2), wide=(0,)),
        )


def _milliseconds(seconds: float) -> str:
    return f"{1000 * seconds:,.1f} ms"


def _value(value: object) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
