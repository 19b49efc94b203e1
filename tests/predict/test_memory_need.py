"""Memory by hand, and what trials teach about it."""

from __future__ import annotations

import polars as pl
import pytest
from tables import rows

from ccl_bench.predict.memory import EXCEEDING, FITTING, MemoryModel, needed_bytes
from ccl_bench.predict.trials import columns

WEIGHTS = 8 * 12 * 1024**2
TABLE = 32_000 * 1024
RUNTIME = 2 * 2**30


def test_replicated_state_is_eighteen_bytes_a_weight() -> None:
    table = rows(
        {"recompute": True}, {"tp": 2, "recompute": True}, {"pp": 2, "recompute": True}, global_batch=2
    )
    tokens = 1024
    logits = 10 * tokens * 32_000
    layer = tokens * 1024 * 34
    assert needed_bytes(columns(table)).tolist() == pytest.approx(
        [
            18 * (WEIGHTS + 2 * TABLE) + 2 * tokens * 1024 * 8 + layer + logits + RUNTIME,
            9 * (WEIGHTS + 2 * TABLE)
            + 2 * tokens * 1024 * 8
            + tokens * 1024 * (10 + 12)
            + logits / 2
            + RUNTIME,
            # Two microbatches are in flight on the first of two stages.
            18 * (WEIGHTS / 2 + TABLE) + 2 * (2 * tokens * 1024 * 4) + layer + logits + RUNTIME,
        ]
    )


def test_fsdp_shards_the_state_and_gathers_a_layer() -> None:
    table = rows({"dp": 4, "framework": "torchtitan"}, global_batch=4)
    weights = WEIGHTS + 2 * TABLE
    assert needed_bytes(columns(table)).tolist() == pytest.approx(
        [16 * weights / 4 + 2 * weights / 8 * 2 + 8 * 1024 * 1024 * 34 + 10 * 1024 * 32_000 + RUNTIME]
    )


@pytest.mark.parametrize(
    ("share", "fits"),
    [(FITTING - 0.01, True), (FITTING + 0.01, None), (EXCEEDING - 0.01, None), (EXCEEDING + 0.01, False)],
)
def test_between_two_shares_of_the_device_it_is_open(share: float, fits: bool | None) -> None:
    none = rows({}, global_batch=1).clear()
    table = rows({}, global_batch=1, micro_batch=1)
    fixed = needed_bytes(columns(table))[0] - 18 * WEIGHTS
    size = 80 * 2**30
    wanted = (share * size - fixed) / 18 / 8
    table = table.with_columns(layer_parameters=pl.lit(wanted))
    memory = MemoryModel(none).judge(table)[0]
    assert memory.needed_bytes == pytest.approx(share * size, rel=1e-6)
    assert memory.fits is fits
    unknown = table.with_columns(gpu=pl.lit(None, pl.String))
    assert MemoryModel(none).judge(unknown)[0].fits is None


def test_what_ran_fits_and_what_needs_more_than_a_failure_does_not() -> None:
    sizes = rows(*({"micro_batch": size} for size in (1, 8, 16, 32)), global_batch=32, gpu=None)
    tried = sizes.with_columns(
        step_s=pl.Series([1.0, 1.0, None, None]), status=pl.Series([None, None, "oom", "failed"])
    )
    assert [each.fits for each in MemoryModel(tried[:1]).judge(sizes)] == [True, None, None, None]
    assert [each.fits for each in MemoryModel(tried[1:3]).judge(sizes)] == [True, True, False, False]


def test_a_failure_without_a_reason_counts_only_where_memory_is_short() -> None:
    small = rows({"step_s": None, "status": "failed"}, global_batch=1)
    assert MemoryModel(small).judge(small)[0].fits is True
    large = rows({"step_s": None, "status": "failed", "micro_batch": 256}, global_batch=256)
    larger = rows({"micro_batch": 512}, global_batch=512)
    assert MemoryModel(large).judge(larger)[0].fits is False


def test_trials_of_perlmutter_ran_where_they_fit_and_failed_where_they_do_not() -> None:
    from ccl_bench.predict.trials import read_trials

    trials = read_trials("perlmutter-search").of_study("megatron-llama8b-8gpu")
    answers = [each.fits for each in MemoryModel(trials.rows.clear()).judge(trials.rows)]
    ran = trials.rows["step_s"].is_not_null().to_list()
    assert not [1 for fits, did in zip(answers, ran, strict=True) if did and fits is False]
    assert not [1 for fits, did in zip(answers, ran, strict=True) if not did and fits is True]
