"""Trials from recorded runs: the configuration of the plan, the step time of its timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.predict.recorded_trials import gathered_trials
from ccl_bench.testing import Plan, values, write_run

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_is_a_trial_with_its_own_configuration_and_step(tmp_path: Path) -> None:
    plan = Plan(dp_shard=2, tp=2, microbatches=4, microbatch_size=2, seq_len=512, steps=2)
    expected = write_run(plan, tmp_path / "run")
    card = tmp_path / "run" / "workload_card.yaml"
    sizes = "      num_layers: 2\n      num_heads: 8\n      hidden_size: 640\n      vocab_size: 1000\n"
    card.write_text(card.read_text().replace("      num_layers: 2\n", sizes))
    table = tmp_path / "more.csv"
    table.write_text("tp,dp,micro_batch,global_batch,seq_len,layers,hidden,step_s\n4,1,2,16,512,2,640,0.25\n")
    trials = gathered_trials([str(tmp_path / "run"), str(table)])
    row = trials.rows.row(0, named=True)
    degrees = [row[name] for name in ("tp", "dp", "pp", "gpus")]
    assert degrees == [2, 2, 1, 4]
    assert [row[name] for name in ("micro_batch", "global_batch", "seq_len")] == [2, 16, 512]
    assert (row["layers"], row["hidden"], row["heads"]) == (2, 640, 8)
    assert row["step_s"] == pytest.approx(values(expected)["iteration_wall_clock_time"])
    assert trials.rows["step_s"][1] == 0.25


def test_a_run_that_states_no_batch_or_shows_no_step_is_refused(tmp_path: Path) -> None:
    write_run(Plan(dp_shard=2, steps=2), tmp_path / "run")
    (tmp_path / "run" / "workload_card.yaml").unlink()
    for side_file in (tmp_path / "run").glob("run_metadata.json"):
        side_file.unlink()
    with pytest.raises(UsageError, match="is stated"):
        gathered_trials([str(tmp_path / "run")])
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(InputError):
        gathered_trials([str(empty)])
