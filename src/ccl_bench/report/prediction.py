"""Answers of `predict` as text: the predicted step with its interval, beside the recorded one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.base.findings import issue_of
from ccl_bench.base.text import counted, plain
from ccl_bench.report.console import Group, Text, aligned, heading, indented
from ccl_bench.report.inspection import issues

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ccl_bench.result.prediction import Prediction

_SHOWN = ("dp", "pp", "tp", "cp", "ep", "microbatches", "micro_batch", "global_batch", "schedule", "gpus")


def prediction_page(answer: Prediction) -> Group:
    """Return the whole page of a prediction that was not refused."""
    recorded: Any = answer.recorded
    rows = [
        (name, _value(recorded.get(name)), _value(answer.configuration.get(name)))
        for name in _SHOWN
        if recorded.get(name) is not None or answer.configuration.get(name) is not None
    ]
    for name in ("p50", "p10", "p90"):
        predicted = f"{1000 * answer.step_s[name]:,.1f} ms" if answer.step_s else ""
        rows.append((f"step, {name}", f"{1000 * recorded['step_s'][name]:,.1f} ms", predicted))
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
        lines.append(f"the same method predicts the recorded median step with an error of {error}")
    if answer.draws:
        lines.append(f"{counted(answer.draws, 'draw')} of the recorded durations, seed {answer.seed}")
    if answer.unexplained is not None:
        lines.append(f"unexplained: {100 * answer.unexplained:.2f} % of the recorded step")
    parts += [indented(Text(plain(line))) for line in lines]
    if answer.findings:
        parts += [Text(), heading("Findings"), indented(issues(map(issue_of, answer.findings)))]
    return Group(*parts)


def _value(value: object) -> str:
    if value is None:
        return ""
    return f"{value:g}" if isinstance(value, float) else str(value)
