"""Hardware samples of SM Active become the measured `sm`."""

import polars as pl

from ccl_bench.analysis.device.sampled import sm_samples
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.metrics.sm import sm
from ccl_bench.run import open_run

STEPS = pl.DataFrame(
    {
        "step": [0, 1],
        "start_ns": [0, 100],
        "end_ns": [100, 400],
        "device_start_ns": [0, 100],
        "device_end_ns": [100, 400],
        "source": ["numbered range"] * 2,
    }
)


def counters(*samples):
    times, names, values = zip(*samples, strict=True)
    return pl.DataFrame({"time_ns": times, "device": [0] * len(times), "name": names, "value": values})


SAMPLES = counters(
    (10, "SM Active", 20.0),
    (90, "SM Active", 40.0),
    (90, "Tensor Active", 99.0),
    (200, "SM Active", 80.0),
    (400, "SM Active", 1.0),
)


def test_samples_belong_to_the_step_they_fall_in():
    found = sm_samples(STEPS, SAMPLES)
    assert found["samples"].to_list() == [2, 1]
    assert found["sm_active_pct"].to_list() == [(20 + 40) / 2, 80]


def test_measured_sm_weighs_steps_by_their_length():
    found = sm_samples(STEPS, SAMPLES).with_columns(rank=pl.lit(0), iteration=pl.lit(None, pl.Int64))
    answer = sm(pl.DataFrame(), found, STEPS, pl.DataFrame())
    assert answer.value == (30 * 100 + 80 * 300) / 400
    assert answer.details["kind"] == "measured"
    assert answer.details["samples_count"] == 3


def test_numbers_that_hidden_kernels_make_wrong_are_refused(corpus):
    names = ["gpu_busy", "sm", "iteration_wall_clock_time"]
    busy, use, length = evaluate(open_run(corpus / "nsys" / "cuda-graphs"), names, use_cache=False)
    assert {busy.status, use.status} == {"not_measurable"}
    assert "without the kernels" in busy.reason
    assert length.status == "ok"
