"""`training_quality`: the loss at the last step, or what follows from perplexity where there is no loss."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING, Any

import pytest
from commands import invoke

from ccl_bench.evaluate.compute import evaluate
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result import Result


def _measured(folder: Path, data: Any) -> Result:
    (folder / "training_metrics.json").write_text(json.dumps(data))
    return evaluate(open_run(folder), ["training_quality"])[0]


def test_of_perplexity_alone_the_loss_is_its_logarithm_and_the_result_says_so(tmp_path: Path) -> None:
    found = _measured(tmp_path, {"step": [1, 2], "perplexity": [40.0, 20.0]})
    assert (found.value, found.details["perplexity"]) == (pytest.approx(2.995732), 20.0)  # ln 20
    assert [finding.code for finding in found.findings] == ["loss-from-perplexity"]
    shown = invoke(f"ccl-metrics --trace {tmp_path} --metric training_quality_16")
    assert "ln(perplexity), of 20 at the last step" in shown.stderr


def test_a_loss_comes_before_a_perplexity(tmp_path: Path) -> None:
    found = _measured(tmp_path, [{"step": 1, "loss": 2.0, "perplexity": 20.0}])
    assert (found.value, found.details["perplexity"], found.findings) == (2.0, math.exp(2.0), [])


@pytest.mark.parametrize("data", [{"loss": [2.0, "x"], "perplexity": [40.0, 20.0]}, {"accuracy": [0.5]}])
def test_a_damaged_loss_is_not_replaced(tmp_path: Path, data: Any) -> None:
    found = _measured(tmp_path, data)
    assert (found.status, "no training_metrics.json with a loss" in found.reason) == ("not_measurable", True)


@pytest.mark.parametrize(
    ("loss", "codes"), [(19.9, []), (20.0, []), (20.1, ["loss-above-chance"]), (5e5, ["loss-above-chance"])]
)
def test_a_loss_worse_than_chance_is_doubted(tmp_path: Path, loss: float, codes: list[str]) -> None:
    found = _measured(tmp_path, {"loss": [loss]})
    assert (found.value, [finding.code for finding in found.findings]) == (loss, codes)


@pytest.mark.parametrize(("loss", "is_stated"), [(699.9, True), (700.0, False), (710.0, False)])
def test_a_perplexity_that_a_double_cannot_hold_is_left_out(
    tmp_path: Path, loss: float, is_stated: bool
) -> None:
    found = _measured(tmp_path, {"loss": [loss]})
    assert (found.value, "perplexity" in found.details) == (loss, is_stated)
    if is_stated:
        assert math.log(found.details["perplexity"]) == pytest.approx(loss)
