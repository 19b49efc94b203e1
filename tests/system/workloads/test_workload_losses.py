"""The losses of a run of torchtitan, from its own log."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ccl_bench.collect.describe.torchtitan import logged_losses, save_losses
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

LINE = (
    "[default{rank}]:[titan] 2026-01-01 - root - INFO - \x1b[31mstep: {step:2}  \x1b[32mloss: {loss:8.5f}  "
    "\x1b[33mgrad_norm: {norm:7.4f}  \x1b[36mmemory: 1.00GiB(2.50%)  \x1b[34mtps: 99  tflops: 0.10\n"
)
VALIDATION = "[default0]:[titan] 2026-01-01 - root - INFO - validate step:  2  loss:  9.0000  tps: 99\n"
NAN = float("nan")


def _log(folder: Path, *rows: tuple[int, int, float]) -> Path:
    """Write lines of (rank, step, loss), and one of a validation."""
    path = folder / "torch.log"
    lines = [LINE.format(rank=rank, step=step, loss=loss, norm=1 + rank) for rank, step, loss in rows]
    path.write_text("Training starts at step 1\n" + "".join(lines) + VALIDATION)
    return path


def test_every_step_with_a_line_has_a_loss_whatever_the_order(tmp_path: Path) -> None:
    log = _log(tmp_path, (0, 1, 8.5), (1, 2, 8.25), (1, 1, 8.5), (0, 2, 8.25), (0, 10, 7.0))
    assert logged_losses(log) == ({1: 8.5, 2: 8.25, 10: 7.0}, {1: 1.5, 2: 1.5, 10: 1.0})


def test_the_ranks_of_a_pipeline_without_a_loss_do_not_count(tmp_path: Path) -> None:
    # Ranks that compute no loss log -1, divided among tokens where data is parallel: as small as -0.00000.
    log = _log(tmp_path, (0, 1, -1.0), (1, 1, 8.5), (2, 1, -0.0))
    assert logged_losses(log)[0] == {1: 8.5}


def test_a_loss_that_is_no_number_leaves_no_final_loss(tmp_path: Path) -> None:
    save_losses(_log(tmp_path, (0, 1, 8.5), (0, 2, NAN)), tmp_path)
    assert json.loads((tmp_path / "training_metrics.json").read_text())["loss"] == [8.5, None]
    (found,) = evaluate(open_run(tmp_path), ["training_quality"])
    assert found.status == "not_measurable"


def test_a_file_that_the_program_wrote_stays(tmp_path: Path) -> None:
    (tmp_path / "training_metrics.json").write_text("{}")
    save_losses(_log(tmp_path, (0, 1, 8.5)), tmp_path)
    assert (tmp_path / "training_metrics.json").read_text() == "{}"


def test_without_a_log_or_a_loss_in_it_there_is_no_file(tmp_path: Path) -> None:
    save_losses(tmp_path / "torch.log", tmp_path)
    save_losses(_log(tmp_path), tmp_path)
    assert not (tmp_path / "training_metrics.json").exists()
