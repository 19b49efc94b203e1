"""The search as a game on tables, and the candidates that it chooses from."""

from __future__ import annotations

import json
import math

import pytest
from tables import rows

from ccl_bench.base.errors import UsageError
from ccl_bench.predict.candidates import candidates
from ccl_bench.predict.forecasting import Forecaster
from ccl_bench.predict.search import propose, replay
from ccl_bench.predict.trials import Trials, read_trials, shown_configuration
from ccl_bench.result.forecast import to_json


@pytest.mark.parametrize("study", ["megatron-llama8b-8gpu", "torchtitan-llama8b-16gpu"])
def test_five_configurations_find_one_within_five_percent_of_the_best(study: str) -> None:
    trials = read_trials("perlmutter-search").of_study(study)
    wins = 0
    for seed in range(20):
        played = replay(trials, 5, seed)
        best = trials.measured.select(
            speed=(
                trials.measured["global_batch"] * 1024 / trials.measured["gpus"] / trials.measured["step_s"]
            )
        )
        assert played.table_best_tokens_per_s_per_gpu == pytest.approx(best["speed"].max())
        assert len({tuple(each.configuration.values()) for each in played.trials}) == len(played.trials) <= 5
        wins += (played.best_tokens_per_s_per_gpu or 0) >= 0.95 * played.table_best_tokens_per_s_per_gpu
    assert wins >= 16


def test_intervals_hold_also_after_few_trials() -> None:
    held = []
    for study in ("megatron-llama8b-8gpu", "torchtitan-llama8b-16gpu"):
        trials = read_trials("perlmutter-search").of_study(study)
        for seed in range(5):
            held += [
                each.predicted.p10 <= each.measured <= each.predicted.p90
                for each in replay(trials, 7, seed).trials
                if each.predicted and each.measured
            ]
    assert 0.7 <= sum(held) / len(held) <= 0.92


def test_a_replay_sees_only_what_it_asks_for() -> None:
    trials = read_trials("perlmutter-search").of_study("megatron-llama8b-8gpu")
    before = replay(trials, 3, 1)
    unseen = {tuple(each.configuration.values()) for each in before.trials}
    # What was not asked for becomes a thousand times faster: the same is asked for.
    keys = [tuple(shown_configuration(row).values()) for row in trials.rows.iter_rows(named=True)]
    changed = trials.rows.with_columns(
        step_s=trials.rows["step_s"].scatter(
            [i for i, key in enumerate(keys) if key not in unseen and trials.rows["step_s"][i]], 1e-3
        )
    )
    after = replay(Trials(changed, "table"), 3, 1)
    assert [each.configuration for each in after.trials] == [each.configuration for each in before.trials]


def test_a_budget_and_a_table_without_measurements_are_refused() -> None:
    trials = Trials(rows({"tp": 4}, global_batch=8, step_s=None), "table")
    with pytest.raises(UsageError, match="no measured"):
        replay(trials, 3, 0)
    with pytest.raises(UsageError, match="budget"):
        replay(trials, 0, 0)


def test_different_batches_are_said() -> None:
    trials = read_trials("perlmutter-search").of_study("megatron-llama8b-8gpu")
    body = json.loads(to_json(replay(trials, 2, 0)))
    assert {"asked", "best", "best_tokens_per_s_per_gpu", "table_best_tokens_per_s_per_gpu"} <= body.keys()
    assert [*body["asked"][1]] == ["configuration", "predicted", "measured"]
    assert "global batches of 1, 2, 4" in replay(trials, 2, 0).remarks[0]


def test_candidates_are_all_even_shares_at_one_batch() -> None:
    base = rows({"tp": 4}, global_batch=8, heads=8, layers=6)
    table = candidates(base)
    brute = {
        (tp, dp, pp, size, again)
        for tp in range(1, 5)
        for dp in range(1, 5)
        for pp in range(1, 5)
        for size in range(1, 9)
        for again in (False, True)
        if tp * dp * pp == 4
        and 8 % tp == 0
        and 6 % pp == 0
        and 8 % (dp * size) == 0
        and 8 // (dp * size) >= pp
    }
    assert set(table.select("tp", "dp", "pp", "micro_batch", "recompute").rows()) == brute
    assert table["global_batch"].unique().to_list() == [8]
    kept = candidates(base, vary=("micro_batch",))
    assert kept.select("tp", "recompute").unique().rows() == [(4, False)]


def test_what_failed_for_memory_and_what_needs_more_is_not_proposed() -> None:
    sizes = [{"micro_batch": size} for size in (1, 2, 4, 8)]
    table = rows(*sizes, global_batch=8, gpu=None, dp=1)
    tried = table[[0, 2]].with_columns(
        step_s=table["step_s"][[0, 2]].scatter(0, 1.0), status=table["status"][[0, 2]].scatter(1, "oom")
    )
    proposal = propose(table, tried)
    assert proposal is not None
    assert table["micro_batch"][proposal.index] == 2
    tried = table[[0, 1, 2]].with_columns(
        step_s=table["step_s"][[0, 1, 2]].scatter([0, 1], [1.0, 1.0]),
        status=table["status"][[0, 1, 2]].scatter(2, "oom"),
    )
    assert propose(table, tried) is None


def test_expected_gain_is_the_mean_of_what_a_candidate_is_faster() -> None:
    # Drawn a million times from the prediction in place of the formula.
    import numpy as np

    from ccl_bench.predict.calibration import Calibration
    from ccl_bench.predict.trials import columns

    table = rows({"tp": 4}, {"dp": 4}, global_batch=8)
    tried = table[[0]].with_columns(step_s=table["step_s"][[0]].scatter(0, 0.2))
    proposal = propose(table, tried)
    assert proposal is not None
    mean, spread = Calibration(columns(tried), np.array([0.2])).predict(columns(table[[1]]))
    drawn = np.random.default_rng(0).normal(mean[0], spread[0], 1_000_000)
    assert proposal.expected_gain == pytest.approx(np.maximum(math.log(0.2) - drawn, 0).mean(), rel=0.02)


def test_a_forecast_refuses_what_the_trials_cannot_show() -> None:
    trials = Trials(
        rows({"dp": 4, "step_s": 1.0}, {"dp": 2, "pp": 2, "step_s": 2.0}, global_batch=8), "table"
    )
    forecaster = Forecaster(trials)
    tp, gpu, inside = forecaster.forecasts(
        rows({"tp": 4}, {"dp": 4, "gpu": "H100 SXM"}, {"dp": 1, "pp": 4}, global_batch=8)
    )
    assert "all trials have tp 1" in (tp.refused or "")
    assert "device" in (gpu.refused or "")
    assert tp.step_s is gpu.step_s is None
    assert inside.refused is None
    assert inside.step_s is not None
    assert inside.tokens_per_s_per_gpu is not None
    assert inside.tokens_per_s_per_gpu.p50 == pytest.approx(8 * 1024 / 4 / inside.step_s.p50)
    assert inside.tokens_per_s_per_gpu.p10 == pytest.approx(8 * 1024 / 4 / inside.step_s.p90)
    assert any("pp 4 is outside of the measured 1 to 2" in each for each in inside.remarks)
    with pytest.raises(UsageError, match="no measured step"):
        Forecaster(Trials(rows({"dp": 4}, global_batch=8, step_s=None), "table"))


def test_a_ranking_has_the_fastest_that_fit_first() -> None:
    trials = read_trials("perlmutter-search").of_study("torchtitan-llama8b-16gpu")
    ranking = Forecaster(trials).ranking(candidates(trials.rows[[1]]), 5)
    speeds = [each.tokens_per_s_per_gpu.p50 for each in ranking.rows if each.tokens_per_s_per_gpu]
    assert speeds == sorted(speeds, reverse=True)
    assert len(speeds) == 5
    assert ranking.considered == candidates(trials.rows[[1]]).height
