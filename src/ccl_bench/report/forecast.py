"""Forecasts, rankings and replayed searches as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.text import counted, plain
from ccl_bench.report.console import Group, Text, aligned, heading, indented

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import RenderableType

    from ccl_bench.result.forecast import (
        EvaluationAnswer,
        Forecast,
        Percentiles,
        Ranking,
        ReplayAnswer,
        SearchAnswer,
        TrialAnswer,
    )
    from ccl_bench.result.prediction import Memory

ROWS = 12
"""Rows of an evaluation that are shown: those with the largest errors."""

_DEGREES = {"tp": "tp", "dp": "dp", "pp": "pp", "ep": "ep", "cp": "cp", "micro_batch": "mb"}


def forecast_page(answer: Forecast) -> Group:
    """Return the page of one predicted configuration."""
    if answer.step_s is None or answer.tokens_per_s_per_gpu is None:
        lines = [f"refused: {answer.refused}"]
    else:
        speed = answer.tokens_per_s_per_gpu
        lines = [
            f"predicted step: {_interval(answer.step_s)} s (8 of 10 steps lie between the last two)",
            f"tokens per second and device: {speed.p50:,.0f} ({speed.p10:,.0f} to {speed.p90:,.0f})",
        ]
    lines += [f"memory: {_memory(answer.memory)}", f"calibrated on {answer.calibrated_on}", *answer.remarks]
    return Group(heading(short_configuration(answer.configuration)), *_lines(lines))


def ranking_page(answer: Ranking) -> Group:
    """Return the page of ranked configurations."""
    rows = [
        (
            short_configuration(each.configuration),
            _interval(each.step_s),
            f"{each.tokens_per_s_per_gpu.p50:,.0f}",
            _memory(each.memory),
        )
        for each in answer.rows
        if each.step_s and each.tokens_per_s_per_gpu
    ]
    title = f"{counted(answer.considered, 'configuration')}, predicted"
    parts: list[RenderableType] = [heading(title)]
    if answer.without_memory:
        parts += _lines([f"{answer.without_memory} of them do not fit into memory, and are left out"])
    table = aligned(("configuration", "step (s)", "tokens/s/GPU", "memory"), rows, right=(2,), wide=(0,))
    parts.append(indented(table))
    if answer.rows:
        parts += _lines([f"calibrated on {answer.rows[0].calibrated_on}", *answer.rows[0].remarks])
    return Group(*parts)


def evaluation_page(answer: EvaluationAnswer) -> Group:
    """Return the page of an evaluation: errors, the interval's share, and the rows that it misses most."""
    lines = [
        f"mean error {100 * answer.mean_error_ratio:.1f} %, median {100 * answer.median_error_ratio:.1f} %",
        f"80 % intervals hold {100 * answer.within_interval_ratio:.0f} % of the measured steps",
    ]
    if answer.mean_regret_ratio is not None:
        lines.append(
            f"the step of the best predicted configuration is {100 * answer.mean_regret_ratio:.1f} % longer "
            "than the best"
        )
    lines += [f"calibrated on {answer.calibrated_on}", *answer.remarks]
    worst = sorted(answer.rows, key=lambda each: -abs(each.p50 / each.measured_s - 1))[:ROWS]
    rows = [
        (
            short_configuration(each.configuration),
            f"{each.measured_s:.4g}",
            f"{each.p50:.4g} ({each.p10:.4g} to {each.p90:.4g})",
            f"{100 * (each.p50 / each.measured_s - 1):+.0f} %",
        )
        for each in worst
    ]
    table = aligned(
        ("largest errors", "measured (s)", "predicted (s)", "error"), rows, right=(1, 3), wide=(0,)
    )
    return Group(
        heading(f"{counted(answer.n, 'step')} predicted and measured"), *_lines(lines), indented(table)
    )


def replay_page(answer: ReplayAnswer) -> Group:
    """Return the page of a replayed search: what it asked for, in order, and the best of it."""
    rows = [
        (
            str(number),
            short_configuration(each.configuration),
            _interval(each.predicted) if each.predicted else "-",
            f"{each.measured:.4g}" if each.measured else "failed",
        )
        for number, each in enumerate(answer.trials, 1)
    ]
    lines = ["nothing that was asked for ran"]
    if answer.best is not None and answer.best_tokens_per_s_per_gpu is not None:
        share = answer.best_tokens_per_s_per_gpu / answer.table_best_tokens_per_s_per_gpu
        lines = [
            (
                f"best: {short_configuration(answer.best)}, "
                f"{answer.best_tokens_per_s_per_gpu:,.0f} tokens per second and device"
            ),
            f"{100 * share:.1f} % of the best of the table",
        ]
    table = aligned(("", "configuration", "predicted (s)", "measured (s)"), rows, right=(0, 3), wide=(1,))
    return Group(heading("Search"), indented(table), *_lines([*lines, *answer.remarks]))


def trial_line(trial: TrialAnswer) -> str:
    """Return one trial of a search in a line: what was measured, and how good the prediction was."""
    head = f"{trial.number}. {short_configuration(trial.configuration)}"
    if trial.measured is None:
        return plain(f"{head}: {trial.status}, {trial.reason} ({trial.folder})")
    measured = f"{head}: {trial.measured:.4g} s a step"
    if trial.predicted is None:
        return measured
    error = trial.measured / trial.predicted.p50 - 1
    held = trial.predicted.p10 <= trial.measured <= trial.predicted.p90
    return (
        f"{measured}, predicted {_interval(trial.predicted)} s: {100 * abs(error):.0f} % "
        f"{'longer' if error > 0 else 'shorter'}, {'inside' if held else 'outside'} the interval"
    )


def search_page(answer: SearchAnswer) -> Group:
    """Return the end of a search: the best configuration, and where the trials are."""
    lines = ["no trial was measured"]
    if answer.best is not None:
        speed = f"{answer.best_tokens_per_s_per_gpu:,.0f} tokens per second and device"
        lines = [f"best: {short_configuration(answer.best)}, {speed}"]
    return Group(heading("Search"), *_lines([*lines, f"trials: {answer.history}", f"page: {answer.page}"]))


def short_configuration(configuration: dict[str, object]) -> str:
    """Return a configuration in a line, such as `tp 4 · dp 1 · pp 2 · mb 4 · recompute`."""
    parts = [
        f"{short} {configuration[name]}"
        for name, short in _DEGREES.items()
        if name in configuration and (name in {"tp", "dp", "pp"} or configuration[name] != 1)
    ]
    if configuration.get("recompute"):
        parts.append("recompute")
    if configuration.get("compile") not in {None, "eager"}:
        parts.append(str(configuration["compile"]))
    return plain(" · ".join(parts))


def _interval(each: Percentiles | None) -> str:
    return "-" if each is None else f"{each.p50:.4g} ({each.p10:.4g} to {each.p90:.4g})"


def _memory(need: Memory) -> str:
    if need.needed_bytes is None:
        return "unknown"
    words = {True: "fits", False: "does not fit", None: "open whether it fits"}[need.fits]
    return f"{need.needed_bytes / 2**30:.1f} GiB, {words}"


def _lines(lines: Iterable[str]) -> list[RenderableType]:
    return [indented(Text(plain(line))) for line in lines]
