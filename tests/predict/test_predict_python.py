"""Predictions and searches in Python."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest
from commands import invoke
from tables import DENSE
from test_search_runs import CARD

import ccl_bench
from ccl_bench.result.forecast import to_json

COMMAND = f"{sys.executable} {Path(__file__).with_name('trial_program.py')}"
STUDY = "megatron-llama8b-8gpu"


def test_a_forecast_is_that_of_the_command() -> None:
    text = "tp=4,pp=2,micro_batch=2,global_batch=2"
    arguments = ["ccl-bench", "predict", "--from", "perlmutter-search", "--study", STUDY, "--config", text]
    printed = invoke([*arguments, "--format", "json"]).stdout
    configuration = {"tp": 4, "pp": 2, "micro_batch": 2, "global_batch": 2}
    for given in (text, configuration):
        answer = ccl_bench.forecast("perlmutter-search", given, study=STUDY)
        assert to_json(answer).decode().strip() == printed.strip()


def test_a_forecast_reads_a_frame() -> None:
    shared = {**DENSE, "global_batch": 8, "micro_batch": 1, "seq_len": 1024}
    table = pl.DataFrame(
        [{**shared, "tp": 4, "dp": 1, "step_s": 0.4}, {**shared, "tp": 2, "dp": 2, "step_s": 0.2}]
    )
    measured = ccl_bench.forecast(table, {"tp": 2, "dp": 2})
    assert measured.step_s is not None
    assert measured.step_s.p10 < 0.2 < measured.step_s.p90
    refused = ccl_bench.forecast(table, {"tp": 4, "gpu": "H100"})
    assert (refused.step_s, refused.kind) == (None, "predicted")
    assert "cannot show what another one does" in str(refused.refused)
    with pytest.raises(ccl_bench.UsageError, match="no setting"):
        ccl_bench.forecast(table, {"tpp": 2})


def test_a_search_yields_trials_and_goes_on(tmp_path: Path) -> None:
    card = tmp_path / "card.yaml"
    card.write_text(CARD.replace("  hardware:\n", "  hardware:\n    price_per_device_hour: 3.6\n"))
    place = {"run": COMMAND, "folder": tmp_path / "s", "vary": ["tp", "dp"], "objective": "dollar"}
    search = ccl_bench.search(card, **place, budget=1)
    assert (search.best, search.history) == (None, None)
    assert [trial.status for trial in search] == ["measured"]
    assert [trial.number for trial in ccl_bench.search(card, **place, budget=2)] == [2]
    assert search.history.height == 2
    seconds = search.history["step_s"].min()
    assert search.best_tokens_per_s_per_gpu == pytest.approx(8 * 1024 / 4 / seconds)
    # 3.6 dollars an hour and device are one dollar in 1,000 seconds.
    assert f"{1000 * 8 * 1024 / 4 / seconds:,.0f} tokens per dollar" in search.page.read_text()


@pytest.mark.parametrize(
    ("objective", "fix"), [("dollar", "price_per_device_hour"), ("joule", "energy_per_token")]
)
def test_an_objective_without_its_data_is_refused(tmp_path: Path, objective: str, fix: str) -> None:
    card = tmp_path / "card.yaml"
    card.write_text(CARD)
    done = invoke(
        [
            "ccl-bench",
            "search",
            str(card),
            "--run",
            "true",
            "--objective",
            objective,
            "-o",
            str(tmp_path / "s"),
        ]
    )
    assert done.returncode == 2
    assert fix in done.stderr
    assert not (tmp_path / "s").exists()
