"""Search: the next configuration to measure, by what it may gain over the best so far."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError
from ccl_bench.base.lazy_imports import np, pl
from ccl_bench.predict.calibration import Calibration
from ccl_bench.predict.memory import MemoryModel
from ccl_bench.predict.trials import CONFIGURATION, columns, configurations, shown_configuration
from ccl_bench.result.forecast import AskedTrial, ReplayAnswer

if TYPE_CHECKING:
    from ccl_bench.predict.step_model import Floats
    from ccl_bench.predict.trials import Trials
    from ccl_bench.result.forecast import Percentiles


def tokens_per_s_per_gpu(rows: pl.DataFrame, seconds: Floats) -> Floats:
    """Return tokens per second and device of steps of `seconds`."""
    work: Floats = (rows["global_batch"] * rows["seq_len"] / rows["gpus"]).to_numpy()
    return work / seconds


@dataclass(frozen=True)
class Proposal:
    """A configuration to measure, with what it is expected to take before it is measured."""

    index: int
    """Row of the candidates."""
    step_s: Percentiles
    expected_gain: float
    """Expected logarithm of how much faster than the best it is, 0 where it cannot be."""


def propose(candidates: pl.DataFrame, trials: pl.DataFrame) -> Proposal | None:
    """Return the candidate with the largest expected improvement, None where none is left.

    `trials` are the rows so far: those with a step time calibrate, those without it teach which memory is too
    much. Expected improvement is that of Jones, Schonlau and Welch (1998), on logarithms of tokens per second
    and device. What does not fit, and what was tried, is not proposed.
    """
    tried = set(configurations(trials))
    fits = [each.fits for each in MemoryModel(trials).judge(candidates)]
    open_rows = [
        index
        for index, key in enumerate(configurations(candidates))
        if key not in tried and fits[index] is not False
    ]
    if not open_rows:
        return None
    measured = trials.filter(pl.col("step_s").is_not_null())
    calibration = Calibration(columns(measured), measured["step_s"].to_numpy())
    rows = candidates[open_rows]
    mean, spread = calibration.predict(columns(rows))
    speeds = np.log(tokens_per_s_per_gpu(rows, np.exp(mean)))
    best = max(
        np.log(tokens_per_s_per_gpu(measured, measured["step_s"].to_numpy())).tolist(), default=-math.inf
    )
    if math.isinf(best):
        best = float(speeds.max())
    gains = [
        sigma * (z * (1 + math.erf(z / math.sqrt(2))) / 2 + math.exp(-z * z / 2) / math.sqrt(2 * math.pi))
        for sigma, z in ((s, (m - best) / s) for m, s in zip(speeds.tolist(), spread.tolist(), strict=True))
    ]
    # Where memory may be short, half of the tries are lost.
    gains = [gain * (1.0 if fits[index] else 0.5) for gain, index in zip(gains, open_rows, strict=True)]
    chosen = int(np.argmax(gains))
    interval = calibration.intervals(columns(rows[[chosen]]))[0]
    return Proposal(open_rows[chosen], interval, gains[chosen])


def replay(trials: Trials, budget: int, seed: int) -> ReplayAnswer:
    """Play the search on a table of trials: it sees only the `budget` configurations that it asks for.

    The first is drawn with `seed`. A repeated configuration has the median of its step times.
    """
    if budget < 1:
        raise UsageError(f"a budget of {budget} measures nothing", fix="choose at least 1")
    merged = (
        trials.rows.group_by(CONFIGURATION, maintain_order=True)
        .agg(pl.col("step_s").median(), pl.exclude("step_s").first())
        .select(trials.rows.columns)
    )
    measured = merged.filter(pl.col("step_s").is_not_null())
    if not measured.height:
        raise UsageError(f"{trials.source} has no measured configuration", fix="give a table with step_s")
    unseen = merged.with_columns(step_s=pl.lit(None, pl.Float64))
    seen = merged.clear()
    requests: list[AskedTrial] = []
    index = int(np.random.default_rng(seed).integers(merged.height))
    predicted: Percentiles | None = None
    while True:
        seen = pl.concat([seen, merged[[index]]])
        row = merged.row(index, named=True)
        requests.append(AskedTrial(shown_configuration(row), predicted, row["step_s"]))
        proposal = propose(unseen, seen) if len(requests) < budget else None
        if proposal is None:
            break
        index, predicted = proposal.index, proposal.step_s
    ran = seen.filter(pl.col("step_s").is_not_null())
    speeds = tokens_per_s_per_gpu(ran, ran["step_s"].to_numpy())
    table = tokens_per_s_per_gpu(measured, measured["step_s"].to_numpy())
    best = int(np.argmax(speeds)) if ran.height else None
    batches = sorted(measured["global_batch"].unique().to_list())
    remarks = []
    if len(batches) > 1:
        remarks.append(
            f"global batches of {', '.join(format(each, 'g') for each in batches)}: tokens per second and "
            "device are the same question only for equal batches"
        )
    return ReplayAnswer(
        requests,
        None if best is None else shown_configuration(ran.row(best, named=True)),
        None if best is None else float(speeds[best]),
        float(table.max()),
        remarks,
    )
