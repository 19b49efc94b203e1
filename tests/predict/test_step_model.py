"""The physical model against arithmetic by hand, one term at a time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from tables import rows

from ccl_bench.predict.step_model import constants, microbatches, step_s
from ccl_bench.predict.trials import columns

TINY, HUGE = 1e-15, 1e30
"""Values that make a term vanish: of what takes time, and of what is a rate."""

RATES = {"compute", "memory", "inside_bandwidth", "node_bandwidth", "tensor_parallel_outside"}


def _seconds(table: object, **values: float) -> list[float]:
    """Return the step times if only the terms of some constants take time."""
    logarithms = np.log([values.get(each.name, HUGE if each.name in RATES else TINY) for each in constants()])
    return step_s(logarithms, columns(table)).tolist()


def test_a_step_has_a_slot_for_each_microbatch_and_each_further_stage() -> None:
    table = rows({"dp": 4}, {"pp": 4}, {"pp": 2, "dp": 2, "micro_batch": 2}, global_batch=16)
    assert _seconds(table, slot_s=1.0) == pytest.approx([4, 16 + 3, 4 + 1])


def test_compute_is_six_operations_for_each_weight_and_token() -> None:
    # One microbatch of 2 x 1024 tokens a layer of 12 h^2 weights; half of them on each tensor-parallel rank.
    table = rows({"tp": 2, "micro_batch": 2}, global_batch=2)
    tokens, hidden = 2 * 1024, 1024
    layer = 6 * tokens * (12 * hidden**2 + 1024 * hidden) / 2
    head = 6 * tokens * hidden * 32_000 / 2
    assert _seconds(table, compute=1.0) == pytest.approx([(8 * layer + head) / 312e12], rel=1e-6)
    again = rows({"tp": 2, "micro_batch": 2, "recompute": True}, global_batch=2)
    assert _seconds(again, compute=1.0) == pytest.approx([(8 * layer * 4 / 3 + head) / 312e12], rel=1e-6)


def test_host_and_device_of_a_layer_overlap() -> None:
    table = rows({}, global_batch=1)
    assert _seconds(table, host_layer_s=1.0) == pytest.approx([8])
    compute = _seconds(table, compute=1.0)[0]
    layer = 6 * 1024 * (12 * 1024**2 + 1024**2) / 312e12
    both = _seconds(table, compute=1.0, host_layer_s=layer)[0]
    assert both - compute == pytest.approx(8 * layer * (2**0.25 - 1), rel=1e-6)


@pytest.mark.parametrize(("tp", "bandwidth"), [(4, 300e9), (8, 1e9 * 0.5)])
def test_tensor_parallel_reductions_use_the_node_or_the_network(tp: int, bandwidth: float) -> None:
    table = rows({"tp": tp}, global_batch=1)
    seconds = _seconds(table, inside_bandwidth=1.0, node_bandwidth=1e9, tensor_parallel_outside=0.5)
    message = 2 * 1024 * 1024
    assert seconds == pytest.approx([8 * 4 * 2 * (tp - 1) / tp * message / bandwidth], rel=1e-6)


def test_gradients_of_one_node_share_its_adapters() -> None:
    weights = 8 * 12 * 1024**2 + 1024 * 32_000
    inside, outside, sharing = rows(
        {"dp": 4}, {"dp": 8}, {"dp": 4, "tp": 2, "global_batch": 8}, global_batch=8
    ).iter_slices(1)
    ring = 2 * 4 * weights
    assert _seconds(inside, inside_bandwidth=1.0)[0] == pytest.approx(3 / 4 * ring / 300e9, rel=1e-6)
    assert _seconds(outside, node_bandwidth=1e9)[0] == pytest.approx(7 / 8 * ring / 1e9, rel=1e-6)
    # Two groups of a node, each of half of the weights.
    assert _seconds(sharing, node_bandwidth=1e9)[0] == pytest.approx(3 / 4 * ring / 1e9, rel=1e-6)


def test_fsdp_gathers_for_each_microbatch_in_a_pipeline() -> None:
    shared = {"framework": "torchtitan", "dp": 4, "micro_batch": 2, "global_batch": 16}
    flat, piped, accumulating = rows(
        shared, {**shared, "pp": 2, "gpus_per_node": 8}, {**shared, "accumulates": "true"}, accumulates=None
    ).iter_slices(1)
    weights = 8 * 12 * 1024**2 + 1024 * 32_000
    ring = 3 / 4 * weights / 300e9
    assert _seconds(flat, inside_bandwidth=1.0)[0] == pytest.approx(ring * (2 * 2 + 4), rel=1e-6)
    assert _seconds(accumulating, inside_bandwidth=1.0)[0] == pytest.approx(2 * ring * (2 * 2 + 4), rel=1e-6)
    stage = 3 / 4 * (4 * 12 * 1024**2 + 1024 * 32_000) / 300e9
    hops = (2 + 1) * 2 * 2 * 2 * 1024 * 1024 / 300e9
    assert _seconds(piped, inside_bandwidth=1.0)[0] == pytest.approx(stage * (2 * 2 + 4) + hops, rel=1e-6)


def test_ranks_of_a_node_share_what_messages_of_a_pipeline_leave_by() -> None:
    table = rows({"pp": 2, "dp": 4}, global_batch=8)
    message = 2 * 1024 * 1024
    assert _seconds(table, node_bandwidth=1e9)[0] == pytest.approx(
        (2 + 1) * 2 * message / (1e9 / 4), rel=1e-6
    )


def test_the_optimizer_is_sharded_with_the_weights() -> None:
    whole, shards = rows({"dp": 4}, {"dp": 4, "framework": "torchtitan"}, global_batch=4).iter_slices(1)
    figure = columns(whole)["memory_bandwidth"][0]
    weights = 8 * 12 * 1024**2 + 1024 * 32_000
    assert _seconds(whole, optimizer=50.0)[0] == pytest.approx(50 * weights / figure, rel=1e-6)
    assert _seconds(shards, optimizer=50.0)[0] == pytest.approx(50 * weights / figure / 4, rel=1e-6)


def test_a_micro_batch_that_only_divides_a_pipeline_is_the_whole_local_batch_without_one() -> None:
    table = rows({"framework": "torchtitan", "dp": 4}, {"dp": 4}, global_batch=32)
    count, size = microbatches(columns(table))
    assert (count.tolist(), size.tolist()) == ([1, 8], [8, 1])


def test_constants_have_reasons_and_spreads() -> None:
    assert all(each.median > 0 and each.spread > 0 for each in constants())
    assert math.isfinite(_seconds(rows({}, global_batch=1))[0])
