"""Predictions where only measurements belong: comparisons, reports, and bundles refuse them by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from commands import EXAMPLE

import ccl_bench
from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.format import PROVENANCE, RESULTS, Bundle, Limits
from ccl_bench.leaderboard.bundle.validate import validate_bundle
from ccl_bench.predict.candidates import candidates
from ccl_bench.predict.forecasting import Forecaster
from ccl_bench.predict.trials import parsed_configuration, read_trials
from ccl_bench.result import Result, to_json
from ccl_bench.result.forecast import to_json as forecast_json
from ccl_bench.result.prediction import Memory, Prediction
from ccl_bench.result.prediction import to_json as prediction_json
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

RESULT = Result("iteration_wall_clock_time", "ok", "s", "lower", 0.1)


def _answers() -> dict[str, bytes]:
    """Return the JSON of every kind of prediction."""
    trials = read_trials("perlmutter-search").of_study("megatron-llama8b-8gpu")
    wanted = parsed_configuration("tp=4,pp=2,micro_batch=2,global_batch=2", trials.rows)
    forecaster = Forecaster(trials)
    quantiles = {"p10": 0.1, "p50": 0.2, "p90": 0.3}
    of_run = Prediction("a-run", {"pp": 2}, {"pp": 4}, quantiles, quantiles, Memory())
    return {
        "forecast": forecast_json(forecaster.forecasts(wanted)[0]),
        "ranking": forecast_json(forecaster.ranking(candidates(wanted), 2)),
        "prediction": prediction_json(of_run),
    }


@pytest.mark.parametrize("is_results", [True, False])
def test_the_answer_of_a_prediction_is_compared_with_nothing(tmp_path: Path, is_results: bool) -> None:
    for name, answer in _answers().items():
        assert json.loads(answer)["kind"] == "predicted"
        folder = tmp_path / name
        folder.mkdir()
        file = folder / (RESULTS if is_results else "answer.json")
        file.write_bytes(answer)
        for place in (file, folder):
            with pytest.raises(InputError, match="is a prediction") as refused:
                ccl_bench.compare(EXAMPLE, place, metric=["mfu"])
            assert refused.value.where == str(file)
        with pytest.raises(InputError, match="is a prediction"):
            open_run(folder)  # as publish and report open it


def test_results_that_are_marked_as_predicted_are_no_results(tmp_path: Path) -> None:
    file = tmp_path / RESULTS
    file.write_bytes(to_json([RESULT]))
    assert ccl_bench.compare(file, file, metric=[RESULT.metric]).changes()["verdict"].to_list() == [
        "no change"
    ]
    file.write_text(json.dumps([{**json.loads(to_json([RESULT]))[0], "kind": "predicted"}]))
    with pytest.raises(InputError, match="iteration_wall_clock_time is predicted"):
        ccl_bench.compare(file, file)


def test_a_bundle_with_a_predicted_result_is_refused(tmp_path: Path) -> None:
    (tmp_path / "workload_card.yaml").write_text("version: 1\n")
    (tmp_path / PROVENANCE).write_text("{}")
    marked = [{**json.loads(to_json([RESULT]))[0], "kind": "predicted"}]
    for content in (json.dumps(marked).encode(), *_answers().values()):
        (tmp_path / RESULTS).write_bytes(content)
        with pytest.raises(InputError):
            _ = Bundle(tmp_path).results
        with pytest.raises(InputError, match=r"results\.json: cannot be used"):
            validate_bundle(tmp_path, Limits())
    (tmp_path / RESULTS).write_text(json.dumps(marked))
    with pytest.raises(InputError, match="is predicted, and a result is measured"):
        validate_bundle(tmp_path, Limits())
