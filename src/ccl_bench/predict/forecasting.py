"""Forecasts from trials: what is refused, what is assumed, and the answers that commands print."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import UsageError
from ccl_bench.base.lazy_imports import np, pl
from ccl_bench.predict.calibration import Calibration
from ccl_bench.predict.memory import MemoryModel
from ccl_bench.predict.trials import columns, configurations, shown_configuration
from ccl_bench.result.forecast import (
    EvaluatedRow,
    EvaluationAnswer,
    Forecast,
    Percentiles,
    Ranking,
)

if TYPE_CHECKING:
    from ccl_bench.predict.evaluation import Evaluation
    from ccl_bench.predict.trials import Trials

_NEEDS_TRIALS = {"tp": "tensor", "ep": "expert", "cp": "context"}
"""Degrees whose cost no other degree shows."""

_SAME = {"gpu": "device", "model": "model", "framework": "framework", "gpus_per_node": "devices of a node"}
"""What trials cannot show of another one."""

_RANGES = ("tp", "dp", "pp", "micro_batch", "gpus")
_WORK = {"global_batch": "a global batch", "seq_len": "a sequence length"}


class Forecaster:
    """Trials, calibrated once, that answer for any number of configurations."""

    def __init__(self, trials: Trials) -> None:
        self._trials = trials
        measured = trials.measured
        if not measured.height:
            raise UsageError(
                f"{trials.source} has no measured step", fix="give a table whose column step_s has values"
            )
        names = (*_SAME, *_NEEDS_TRIALS, *_RANGES, *_WORK)
        self._values = {
            name: measured[name].drop_nulls().unique(maintain_order=True).to_list() for name in names
        }
        self._calibration = Calibration(columns(measured), measured["step_s"].to_numpy())
        self._memory = MemoryModel(trials.rows)
        distinct = len(set(configurations(measured)))
        self._calibrated_on = (
            f"{measured.height} measured steps of {distinct} configurations ({trials.source})"
        )

    def forecasts(self, rows: pl.DataFrame) -> list[Forecast]:
        """Return the forecast of each configuration; what trials cannot show is refused with the reason."""
        tokens = (rows["global_batch"] * rows["seq_len"] / rows["gpus"]).to_numpy()
        return [
            Forecast(
                shown_configuration(row),
                None if refused else interval,
                None
                if refused
                else Percentiles(*(work / each for each in (interval.p90, interval.p50, interval.p10))),
                memory,
                self._calibrated_on,
                refused,
                [*self._trials.remarks, *self._remarks(row)],
            )
            for row, interval, memory, work, refused in zip(
                rows.iter_rows(named=True),
                self._calibration.intervals(columns(rows)),
                self._memory.judge(rows),
                tokens.tolist(),
                map(self._refusal, rows.iter_rows(named=True)),
                strict=True,
            )
        ]

    def bounds(self, rows: pl.DataFrame) -> list[dict[str, float]]:
        """Return for each configuration the shares of its step by what bounds it."""
        return self._calibration.grouped_bounds(columns(rows))

    def ranking(self, rows: pl.DataFrame, count: int) -> Ranking:
        """Return the best of some configurations that fit, by the median of tokens per second and device."""
        answers = [each for each in self.forecasts(rows) if each.refused is None]
        if not answers and rows.height:
            raise UsageError(
                "no configuration can be ranked", fix=str(self._refusal(rows.row(0, named=True)))
            )
        fitting = [each for each in answers if each.memory.fits is not False]
        fitting.sort(key=lambda each: -each.tokens_per_s_per_gpu.p50 if each.tokens_per_s_per_gpu else 0.0)
        return Ranking(fitting[:count], len(answers), len(answers) - len(fitting))

    def _refusal(self, row: dict[str, Any]) -> str | None:
        for name, words in _SAME.items():
            seen = self._values[name]
            if seen and row[name] is not None and row[name] not in seen:
                return (
                    f"the trials are of the {words} {', '.join(map(str, seen))}, "
                    f"and cannot show what another one does: {row[name]!s}"
                )
        for name, words in _NEEDS_TRIALS.items():
            seen = self._values[name]
            if len(seen) == 1 and row[name] != seen[0]:
                return (
                    f"all trials have {name} {seen[0]:g}: what {words} parallelism costs shows only in "
                    f"trials that vary it. Measure one with {name} {row[name]:g}"
                )
        return None

    def _remarks(self, row: dict[str, Any]) -> list[str]:
        remarks = []
        for name in _RANGES:
            low, high = min(self._values[name]), max(self._values[name])
            if not low <= row[name] <= high:
                remarks.append(f"{name} {row[name]:g} is outside of the measured {low:g} to {high:g}")
        for name, words in _WORK.items():
            if row[name] not in self._values[name]:
                remarks.append(f"no trial has {words} of {row[name]:g}: another batch is another question")
        return remarks


def evaluation_answer(evaluation: Evaluation, trials: Trials) -> EvaluationAnswer:
    """Return an evaluation as the command prints it."""
    errors = evaluation.errors
    return EvaluationAnswer(
        len(errors),
        float(np.mean(errors)),
        float(np.median(errors)),
        evaluation.within_interval_ratio,
        evaluation.regret_ratio,
        evaluation.calibrated_on,
        [
            EvaluatedRow(shown_configuration(row), row["step_s"], each.p10, each.p50, each.p90)
            for row, each in zip(evaluation.rows.iter_rows(named=True), evaluation.intervals, strict=True)
        ],
        list(trials.remarks),
    )
