"""The folder of a search: its history, its settings, and the report of how far it is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import msgspec

from ccl_bench.base.errors import InputError
from ccl_bench.base.lazy_imports import np, pl
from ccl_bench.base.text import encode_json, json_decoder
from ccl_bench.predict.candidates import VARY, candidates
from ccl_bench.predict.forecasting import Forecaster
from ccl_bench.predict.memory import MemoryModel
from ccl_bench.predict.search import tokens_per_s_per_gpu
from ccl_bench.predict.trials import (
    Trials,
    configurations,
    read_trials,
    shown_configuration,
    table_text,
)
from ccl_bench.result.forecast import Percentiles
from ccl_bench.result.search_report import ReportedTrial, SearchReport, UnmeasuredConfiguration
from ccl_bench.storage.files import replace_text

if TYPE_CHECKING:
    from pathlib import Path

HISTORY, SETTINGS, EARLIER = "history.csv", "search.json", "earlier.csv"
"""Files of the folder: its table of trials, its settings, and trials that calibrate too."""

PREDICTED = ("predicted_p10_s", "predicted_p50_s", "predicted_p90_s")
OF_SEARCH = ("number", "folder", *PREDICTED, "reason")
"""Columns of the history beside those of any table of trials."""

MOST_PREDICTED = 10
"""Configurations that were not tried, of which a report shows the best."""

HOUR_S = 3600

Objective = Literal["tokens", "dollar", "joule"]
"""What a search maximises; energy is refused with its reason."""


@dataclass(frozen=True)
class Settings:
    """What a search was asked for, besides its base."""

    vary: tuple[str, ...] = VARY
    objective: Objective = "tokens"
    price_per_device_hour: float | None = None
    """US dollars."""


_DECODER = json_decoder(Settings)


def is_search(folder: Path) -> bool:
    """Whether a folder has the history of a search."""
    path = folder / HISTORY
    if not path.is_file():
        return False
    with path.open("rb") as history:
        headings = history.readline(1 << 16).decode(errors="replace").strip().split(",")
    return {*OF_SEARCH} <= {*headings}


def read_history(folder: Path) -> pl.DataFrame | None:
    """Return the trials of a search, None before the first."""
    path = folder / HISTORY
    if not path.exists():
        return None
    rows = read_trials(path).rows
    try:
        return rows.with_columns(pl.col("number").cast(pl.Int64), pl.col(*PREDICTED).cast(pl.Float64))
    except pl.exceptions.PolarsError as error:
        message = f"this is no history of a search: {str(error).splitlines()[0]}"
        raise InputError(message, where=str(path), fix="restore it, or search into another folder") from None


def read_earlier(folder: Path) -> Trials | None:
    """Return the earlier trials that calibrate a search too."""
    path = folder / EARLIER
    return read_trials(path) if path.exists() else None


def write_settings(folder: Path, settings: Settings, earlier: Trials | None) -> None:
    """Write what a report of the search needs beside its history."""
    replace_text(folder / SETTINGS, encode_json(settings).decode() + "\n")
    if earlier is not None:
        replace_text(folder / EARLIER, table_text(earlier.rows))


def read_settings(folder: Path) -> Settings:
    """Return the settings of a search; the defaults if the folder has none."""
    path = folder / SETTINGS
    if not path.exists():
        return Settings()
    try:
        return _DECODER.decode(path.read_bytes())
    except msgspec.DecodeError as error:
        message = f"these are no settings of a search: {error}"
        raise InputError(message, where=str(path), fix="remove the file: the defaults are used") from None


def search_report(folder: Path) -> SearchReport:
    """Return the report of the search in a folder; InputError names a file that cannot be read."""
    history, settings, earlier = read_history(folder), read_settings(folder), read_earlier(folder)
    if history is None:
        raise InputError("the search has no trials", where=str(folder / HISTORY))
    like = history[[0]].drop(OF_SEARCH)
    possible = candidates(like, vary=settings.vary)
    ended = history.filter(pl.col("status") != "running").select(like.columns)
    before = [] if earlier is None else [earlier.rows.select(like.columns)]
    ended = pl.concat([ended, *before])
    calibrating = Trials(ended, str(folder / HISTORY))
    per_dollar = None
    if settings.price_per_device_hour:
        per_dollar = HOUR_S / settings.price_per_device_hour

    speeds = tokens_per_s_per_gpu(history, history["step_s"].to_numpy()).tolist()
    forecaster = Forecaster(calibrating) if calibrating.measured.height else None
    bounds = forecaster.bounds(history) if forecaster else [{}] * history.height
    memory = MemoryModel(ended)
    trials = []
    for row, speed, shares, need in zip(
        history.iter_rows(named=True), speeds, bounds, memory.judge(history), strict=True
    ):
        seconds, predicted = row["step_s"], None
        if row[PREDICTED[1]] is not None:
            predicted = Percentiles(*(row[name] for name in PREDICTED))
        trials.append(
            ReportedTrial(
                row["number"],
                shown_configuration(row),
                row["status"] or ("failed" if seconds is None else "measured"),
                row["reason"],
                seconds,
                None if seconds is None else speed,
                None if seconds is None or per_dollar is None else speed * per_dollar,
                predicted,
                predicted.p10 <= seconds <= predicted.p90 if predicted and seconds else None,
                need,
                shares,
                row["folder"],
            )
        )
    ran = [(each.tokens_per_s_per_gpu, each) for each in trials if each.tokens_per_s_per_gpu]
    best = max(ran, key=lambda each: each[0]) if ran else None

    tried = {*configurations(history)}
    is_open = [each not in tried for each in configurations(possible)]
    untried = possible.filter(is_open)
    fits = [each.fits is not False for each in memory.judge(untried)] if untried.height else []
    fitting = untried.filter(fits)
    predicted_rows = _predicted(forecaster, fitting, per_dollar) if forecaster and fitting.height else []
    judged = [each for each in trials if each.within_interval is not None]
    errors = [
        abs(each.predicted_s.p50 / each.measured_s - 1)
        for each in judged
        if each.predicted_s and each.measured_s
    ]
    first = history.row(0, named=True)
    return SearchReport(
        folder.resolve().name,
        first["model"],
        first["gpu"],
        int(first["gpus"]),
        int(first["global_batch"]),
        int(first["seq_len"]),
        settings.objective,
        settings.price_per_device_hour,
        trials,
        best[1].number if best else None,
        ran[0][1].number if ran else None,
        best[0] / ran[0][0] if best else None,
        predicted_rows[:MOST_PREDICTED],
        fitting.height,
        len(predicted_rows),
        untried.height - fitting.height,
        len(judged),
        float(np.mean(errors)) if errors else None,
        sum(bool(each.within_interval) for each in judged) / len(judged) if judged else None,
    )


def _predicted(
    forecaster: Forecaster, rows: pl.DataFrame, per_dollar: float | None
) -> list[UnmeasuredConfiguration]:
    """Return configurations by the median, the best first, without those whose prediction is refused."""
    ranked = []
    for forecast, shares in zip(forecaster.forecasts(rows), forecaster.bounds(rows), strict=True):
        step, speed = forecast.step_s, forecast.tokens_per_s_per_gpu
        if step is None or speed is None:
            continue
        dollars = None
        if per_dollar is not None:
            dollars = Percentiles(*(per_dollar * each for each in (speed.p10, speed.p50, speed.p90)))
        ranked.append(
            UnmeasuredConfiguration(forecast.configuration, step, speed, dollars, forecast.memory, shares)
        )
    return sorted(ranked, key=lambda each: -each.tokens_per_s_per_gpu.p50)
