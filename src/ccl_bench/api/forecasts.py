"""Forecasts from trials: the step of a configuration that none of them measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.predict.forecasting import Forecaster
from ccl_bench.predict.recorded_trials import gathered_trials
from ccl_bench.predict.trials import complete_trials, devices_of, parsed_configuration

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ccl_bench.result.forecast import Forecast


def forecast(
    trials: str | Path | pl.DataFrame,
    configuration: str | Mapping[str, object],
    *,
    study: str | None = None,
) -> Forecast:
    """Return the predicted step of a configuration, from measured steps of others.

    `trials` is a frame with the columns of a table of trials, a file, a set of the catalog, or the folder of
    a recorded run; `study` chooses its rows, by default the only study with as many devices.
    The configuration is a mapping such as `{"tp": 4, "pp": 2}`, or
    text as the command takes it; what it leaves out is that of the trials. Times are in seconds; `refused` of
    the answer states why there is no prediction, `remarks` what was assumed. Raises UsageError for a
    configuration that does not divide, and InputError for a table with a mistake.
    """
    if isinstance(trials, pl.DataFrame):
        table = complete_trials(trials, "the frame")
        table = table if study is None else table.of_study(study)
    else:
        table = gathered_trials([str(trials)], study)
    text = configuration
    if not isinstance(text, str):
        text = ",".join(f"{name}={value}" for name, value in text.items())
    table = table.of_devices(devices_of(text))
    return Forecaster(table).forecasts(parsed_configuration(text, table.rows))[0]
