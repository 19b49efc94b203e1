"""Predictions from one recorded run: it comes out again, and what it does not show is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from made_pipelines import made_pipeline

from ccl_bench.analysis.facts import Fact, Facts
from ccl_bench.cli import bench
from ccl_bench.predict.prediction import Asked, predict_pipeline, predict_run
from ccl_bench.result.step_choice import step_choice
from ccl_bench.run import open_run
from ccl_bench.whatif.pipeline_orders import BACKWARD, FORWARD

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.result.prediction import Prediction


def predicted(asked: Asked, recorded_s: float = 33.0, facts: Facts | None = None) -> Prediction:
    """Return the prediction of 4 stages, 2 replicas and 8 microbatches of 1 s and 2 s: 11 · 3 s."""
    recorded = made_pipeline(4, 2, 8, computing={FORWARD: 1.0, BACKWARD: 2.0})
    recorded.recorded_s[:] = recorded_s
    return predict_pipeline("made", recorded, facts or Facts(), asked)


def middle(answer: Prediction) -> float:
    assert answer.step_s is not None
    return answer.step_s["p50"]


def test_equal_work_is_compared_and_other_work_is_not() -> None:
    facts = Facts(global_batch_size=Fact(32, "card"), seq_len=Fact(100, "card"))
    same = predicted(Asked(dp=4), facts=facts)
    assert same.configuration == {
        "dp": 4, "pp": 4, "microbatches": 4, "micro_batch": 2, "global_batch": 32,
        "schedule": "1f1b", "gpus": 16,
    }  # fmt: skip
    # 4 + 3 slots of 3 s; 3,200 tokens over 16 GPUs.
    assert middle(same) == pytest.approx(21, rel=0.02)
    assert same.tokens_per_s_per_gpu is not None
    assert same.tokens_per_s_per_gpu["p50"] == pytest.approx(3200 / 21 / 16, rel=0.02)
    assert same.gain_s == pytest.approx(12, abs=0.5)
    other = predicted(Asked(microbatches=16, allow_other_batch=True), facts=facts)
    assert middle(other) == pytest.approx(57, rel=0.02)
    assert (other.tokens_per_s_per_gpu, other.gain_s) == (None, None)


def test_the_interval_holds_the_error_of_the_method() -> None:
    """Of a normal distribution with a deviation of 5 %, the tenth percentile is 6.4 % below the median."""
    step = predicted(Asked(dp=4)).step_s
    assert step is not None
    assert step["p10"] / step["p50"] == pytest.approx(np.exp(-0.064), abs=0.002)
    assert step["p90"] / step["p50"] == pytest.approx(np.exp(0.064), abs=0.002)
    as_recorded = predicted(Asked()).step_s
    assert as_recorded == {"p10": 33, "p50": 33, "p90": 33}


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        (Asked(microbatches=16), "another global batch"),
        (Asked(dp=4, microbatches=8), "another global batch"),
        (Asked(dp=3), "16 microbatches do not divide over dp 3"),
        (Asked(dp=32), "do not divide"),
        (Asked(others={"tp": 2}), "another tp"),
        (Asked(others={"ep": 8}), "another ep"),
        (Asked(pp=3, layers=8), "8 layers do not divide into 3"),
        (Asked(pp=2, layers=6), "6 layers do not divide into 4"),
    ],
)
def test_what_one_run_does_not_show_is_refused(asked: Asked, reason: str) -> None:
    answer = predicted(asked)
    assert answer.step_s is None
    assert answer.refused is not None
    assert reason in answer.refused
    assert answer.fix


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        (Facts(world_size=Fact(16, "card")), "8 of 16 ranks have a trace"),
        (Facts(dp=Fact(4, "card")), "a stage has 2 ranks"),
        (Facts(microbatches=Fact(4, "card")), "the traces show 8 microbatches"),
    ],
)
def test_facts_that_contradict_the_traces_are_refused(facts: Facts, reason: str) -> None:
    answer = predicted(Asked(), facts=facts)
    assert answer.refused is not None
    assert reason in answer.refused


def test_degrees_as_recorded_are_no_change() -> None:
    assert predicted(Asked(others={"tp": 1, "cp": 1})).refused is None


def test_a_method_that_misses_the_recorded_step_predicts_no_other() -> None:
    assert predicted(Asked(dp=4), recorded_s=33 / 1.045).refused is None
    refused = predicted(Asked(dp=4), recorded_s=33 / 1.06).refused
    assert refused is not None
    assert "+6 % off, more than 5 %" in refused


def test_a_model_of_another_size_is_not_compared() -> None:
    """Without the number of layers a stage keeps its work; with it, the layers of the model are regrouped."""
    kept = predicted(Asked(pp=8))
    assert middle(kept) == pytest.approx((8 + 7) * 3, rel=0.02)
    assert kept.gain_s is None
    assert "stage-work-kept" in [finding.code for finding in kept.findings]
    divided = predicted(Asked(pp=8, layers=16))
    assert middle(divided) == pytest.approx((8 + 7) * 1.5, rel=0.02)
    assert divided.gain_s == pytest.approx(33 - 22.5, abs=0.5)
    assert divided.stage_work == "regrouped"


def test_one_replica_shows_no_reduction() -> None:
    recorded = made_pipeline(4, 1, 8, computing={FORWARD: 1.0, BACKWARD: 2.0})
    recorded.recorded_s[:] = 33
    refused = predict_pipeline("made", recorded, Facts(), Asked(dp=2)).refused
    assert refused is not None
    assert "no reduction of gradients" in refused


def recording(corpus: Path) -> Any:
    return open_run(corpus / "injected-pp/train-pp4-dp2", choice=step_choice(marker="scenario clean"))


def test_a_recorded_pipeline_comes_out_again(corpus: Path) -> None:
    """Six clean steps after warm-up: 227 to 305 ms by the program's own clock."""
    answer = predict_run(recording(corpus), Asked())
    assert answer.refused is None
    assert answer.configuration["dp"] == 2
    assert answer.configuration["microbatches"] == 8
    assert middle(answer) == pytest.approx(0.2347, rel=0.05)
    assert answer.error_ratio is not None
    assert abs(answer.error_ratio) < 0.05
    assert "warmup-left-out" in [finding.code for finding in answer.findings]


def test_a_schedule_is_predicted_from_sleeps(corpus: Path) -> None:
    """Slots of 6 and 12 ms that sleep: a step is at least (m + p - 1) · 18 ms, and little longer."""
    for asked, slots in (
        (Asked(microbatches=4, allow_other_batch=True), 7),
        (Asked(microbatches=16, allow_other_batch=True), 19),
        (Asked(pp=2, dp=4, microbatches=8, allow_other_batch=True), 9),
        (Asked(pp=8, dp=1, microbatches=8, allow_other_batch=True), 15),
        (Asked(schedule="gpipe"), 11),
    ):
        answer = predict_run(recording(corpus), asked)
        assert answer.step_s is not None
        assert 1 < middle(answer) / (slots * 0.018) < 1.5
        assert answer.step_s["p10"] < middle(answer) < answer.step_s["p90"]


def test_other_schedules_shorten_the_bubble(corpus: Path) -> None:
    run = recording(corpus)
    names = ("1f1b", "zb", "interleaved:2")
    steps = [middle(predict_run(run, Asked(schedule=name))) for name in names]
    assert steps[1] < steps[0]
    assert steps[2] < steps[0]


def test_a_run_without_a_pipeline_is_refused(corpus: Path) -> None:
    answer = predict_run(open_run(corpus / "kineto/megatron-tp8"), Asked(pp=2))
    assert answer.refused is not None
    assert "no pipeline" in answer.refused


def test_a_refusal_is_an_answer_with_a_status(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = str(corpus / "injected-pp/train-pp4-dp2")
    assert bench.main(["predict", place, "--microbatches", "4", "--format", "json"]) == 3
    answer = json.loads(capsys.readouterr().out)
    assert answer["step_s"] is None
    assert "another global batch" in answer["refused"]
    assert bench.main(["predict", place, "--microbatches", "4"]) == 3
    shown = capsys.readouterr()
    assert not shown.out
    assert "--allow-other-batch" in shown.err


def test_the_command_answers_as_text_and_json(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["predict", str(corpus / "injected-pp/train-pp4-dp2"), "--marker", "scenario clean", "--dp", "4"]
    assert bench.main(words) == 0
    shown = capsys.readouterr().out
    assert "prediction, not a measurement" in shown
    assert bench.main([*words, "--format", "json", "--seed", "3"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert {
        "step_s",
        "configuration",
        "tokens_per_s_per_gpu",
        "memory",
        "refused",
        "unexplained",
        "findings",
    } <= {*answer}
    assert answer["step_s"]["p10"] < answer["step_s"]["p50"] < answer["step_s"]["p90"]
    assert answer["memory"] == {"fits": None, "needed_bytes": None}
    assert answer["configuration"]["microbatches"] == 4


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--dp", "4"], "nothing to predict from"),
        (["run", "--from", "trials.csv"], "two questions"),
        (["run", "--config", "tp=4"], "belong to trials"),
        (["--from", "trials.csv", "--network", "alpha=1,B=2"], "belong to a run"),
        (["run", "--seed", "-1"], "0 or more"),
    ],
)
def test_options_of_another_question_are_wrong(
    words: list[str], reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert bench.main(["predict", *words]) == 2
    assert reason in capsys.readouterr().err
