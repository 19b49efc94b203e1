"""The simulator of training jobs, against small programs computed by hand."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random

import pytest
from drawn_runs import CAUSES, draw_job
from job_author import build
from simulate import (
    DEVICE_GAP_NS,
    LATENCY_NS,
    WAKE_NS,
    Busy,
    Call,
    Close,
    Launch,
    Mark,
    Open,
    Record,
    Synchronise,
    Thread,
    Wait,
    Work,
    simulate,
)
from simulated_kineto import BASE_NS, ORIGIN_NS, RECORD, STOP, Form, write_ranks
from training_job import Job, period_ns, step_lengths

KERNEL = Work("kernel", 7, 100_000)
ONE = Launch(KERNEL, 6_000, "cudaLaunchKernel")


def test_work_starts_a_latency_after_its_launch_and_a_gap_after_the_work_before() -> None:
    """The first launch is at 10 µs; the second, at 16 µs, waits for the first kernel."""
    (rank,) = simulate([[Busy(10_000), ONE, ONE]])
    first, second = rank.device
    assert (first.start_ns, first.end_ns) == (10_000 + LATENCY_NS, 110_000 + LATENCY_NS)
    assert second.start_ns == first.end_ns + DEVICE_GAP_NS
    assert [(each.start_ns, each.end_ns) for each in rank.host] == [(10_000, 16_000), (16_000, 22_000)]


def test_a_call_that_waits_returns_when_the_device_is_done() -> None:
    (rank,) = simulate([[ONE, Synchronise(2_000, "cudaDeviceSynchronize"), Busy(5_000), Mark("end")]])
    assert rank.host[-1].end_ns == LATENCY_NS + 100_000 + WAKE_NS
    assert rank.marks["end"] == LATENCY_NS + 100_000 + WAKE_NS + 5_000


def test_a_call_whose_wait_is_taken_away_takes_its_own_time() -> None:
    wait = Synchronise(2_000, "cudaStreamSynchronize", 7, waits=False)
    (rank,) = simulate([[ONE, wait, Mark("end")]])
    assert rank.marks["end"] == 6_000 + 2_000


def test_a_copy_to_pageable_memory_blocks_its_host() -> None:
    copy = Launch(Work("Memcpy DtoH", 7, 1_000, "gpu_memcpy"), 7_000, "cudaMemcpyAsync", blocks=True)
    (rank,) = simulate([[ONE, copy, Mark("end")]])
    done = LATENCY_NS + 100_000 + DEVICE_GAP_NS + 1_000
    assert rank.marks["end"] == done + WAKE_NS
    assert (rank.host[-1].start_ns, rank.host[-1].end_ns) == (6_000, done + WAKE_NS)


def test_a_full_queue_blocks_the_next_launch_until_the_oldest_work_is_done() -> None:
    (rank,) = simulate([[ONE, ONE, ONE, Mark("end")]], queue=2)
    first_end = LATENCY_NS + 100_000
    assert rank.device[2].launched_ns == first_end
    assert rank.marks["end"] == first_end + 6_000


def test_loading_a_module_delays_the_launch_within_its_call() -> None:
    (rank,) = simulate([[ONE._replace(loads_ns=300_000)]])
    assert rank.device[0].start_ns == 300_000 + LATENCY_NS
    assert (rank.host[0].start_ns, rank.host[0].end_ns) == (0, 306_000)


def test_a_collective_moves_when_its_last_member_has_started() -> None:
    call = Call("allreduce", (0, 1), "default_pg", 1, 10)
    launch = Launch(Work("nccl", 20, 30_000, call=call), 8_000, "cudaLaunchKernelExC")
    early, late = simulate([[launch], [Busy(50_000), launch]])
    assert early.device[0].start_ns == LATENCY_NS
    assert late.device[0].start_ns == 50_000 + LATENCY_NS
    assert early.device[0].end_ns == late.device[0].end_ns == 80_000 + LATENCY_NS


def test_a_message_meets_its_peer_alone() -> None:
    ranks = (0, 1, 2)
    send, receive = Call("send", ranks, "pp", 1, 10, peer=2), Call("recv", ranks, "pp", 1, 10, peer=0)
    way = [Work("nccl", 28, 9_000, call=call) for call in (send, receive)]
    first, _, last = simulate([[Launch(way[0], 1_000, "f")], [], [Busy(20_000), Launch(way[1], 1_000, "f")]])
    assert first.device[0].end_ns == last.device[0].end_ns == 20_000 + LATENCY_NS + 9_000


def test_the_next_work_of_a_stream_waits_for_an_event_of_another() -> None:
    other = Launch(Work("reduction", 20, 1_000), 6_000, "cudaLaunchKernel")
    record, wait = Record(7, "e", 1_000, "cudaEventRecord"), Wait(20, "e", 1_000, "cudaStreamWaitEvent")
    (rank,) = simulate([[ONE, record, wait, other, other]])
    assert rank.device[1].start_ns == rank.device[0].end_ns
    assert rank.device[2].start_ns == rank.device[1].end_ns + DEVICE_GAP_NS


def test_ranges_are_of_their_thread_and_launches_of_the_innermost_operator() -> None:
    outer, middle, inner = Open("outer"), Open("range", "user_annotation"), Open("inner")
    (rank,) = simulate([[outer, middle, Thread(9), inner, ONE, Close(), Thread(0), Close(), Close()]])
    assert [(each.name, each.thread) for each in rank.host] == [
        ("cudaLaunchKernel", 9), ("inner", 9), ("range", 0), ("outer", 0),
    ]  # fmt: skip
    assert rank.device[0].operator == rank.host[1].number


def test_ranks_that_wait_for_ever_are_an_error() -> None:
    call = Call("allreduce", (0, 1), "default_pg", 1, 10)
    launch = Launch(Work("nccl", 20, 30_000, call=call), 8_000, "cudaLaunchKernelExC")
    with pytest.raises(RuntimeError, match=r"the ranks \[0\] wait for ever"):
        simulate([[launch, Synchronise(1_000, "")], []])
    with pytest.raises(RuntimeError, match="lacks a member"):
        simulate([[launch], []])


def test_a_step_is_as_long_as_the_distance_of_its_completion_from_the_one_before() -> None:
    """Without noise all steps of a job are alike, so that each takes the mean."""
    job = Job(ranks=2, layers=2, steps=3)
    lengths = step_lengths(job, build(job).run())
    assert lengths == [lengths[0]] * 3
    assert period_ns(job, build(job).run()) == lengths[0]


def test_a_device_bound_step_without_waits_takes_the_time_of_its_kernels() -> None:
    """Each layer has kernels of 5 and 10 mean kernels, the optimizer of 1.6 and the loss of 0.3."""
    job = Job(ranks=1, layers=2, steps=2, is_synchronous=False)
    program = build(job)
    count = sum(isinstance(each, Launch) for each in program.steps[0][0])
    kernels = (2 * (5 + 10) + 1.6 + 0.3) * job.kernel_ns + 9_000 + 2_000
    assert period_ns(job, program.run()) == pytest.approx(kernels + count * DEVICE_GAP_NS)


def test_noise_is_that_of_the_seed_and_at_most_three_standard_deviations() -> None:
    quiet, noisy = Job(seed=1, ranks=1), Job(seed=1, ranks=1, noise=0.02)
    assert build(noisy).steps == build(noisy).steps
    pairs = zip(build(quiet).steps[0][0], build(noisy).steps[0][0], strict=True)
    ratios = [
        new.work.ns / old.work.ns
        for old, new in pairs
        if isinstance(old, Launch) and isinstance(new, Launch) and old.work.ns > 10_000
    ]
    assert len(ratios) > 20
    assert 0.03 < max(ratios) - min(ratios) < 0.121


def test_what_the_profiler_records_begins_and_ends_with_its_marks(tmp_path: Path) -> None:
    """The first kernel began before. The second was launched before: its launch and arguments are missing."""
    calls = [Call("allreduce", (0,), "default_pg", number, 10) for number in (1, 2)]
    before, inside = (
        Launch(Work("nccl", 7, 100_000, call=call), 6_000, "cudaLaunchKernel") for call in calls
    )
    (record,) = simulate([[ONE, before, Mark(RECORD), Open("aten::mm"), inside, Close(),
                           Synchronise(1_000, "cudaDeviceSynchronize"), Mark(STOP)]])  # fmt: skip
    write_ranks([record], Form(skews_ns=(250,), has_arrows=False, groups=(("default_pg", (0,)),)), tmp_path)
    content = json.loads((tmp_path / "rank0_trace.json").read_text(encoding="utf-8"))
    assert content["baseTimeNanoseconds"] == BASE_NS
    events = [each for each in content["traceEvents"] if each["cat"] != "Trace"]
    assert [each["name"] for each in events if each["cat"] != "kernel"] == [
        "cudaLaunchKernel", "aten::mm", "cudaDeviceSynchronize",
    ]  # fmt: skip
    queued, launched = [each for each in events if each["cat"] == "kernel"]
    assert "Collective name" in launched["args"]
    assert "Collective name" not in queued["args"]
    first = min(each["args"]["correlation"] for each in events if each["cat"] == "cuda_runtime")
    assert queued["args"]["correlation"] < first == launched["args"]["correlation"]
    expected = ORIGIN_NS + 250 + record.device[1].start_ns
    assert round(queued["ts"] * 1_000) == expected


def test_a_loader_costs_a_synchronous_step_all_of_its_time() -> None:
    job = draw_job(Random(1), is_synchronous=True, noise=0.0, ranks=1, warm_up=2, steps=2)
    injection = CAUSES["data_loader"].make(Random(2), job, 0.3)
    before, after = (period_ns(job, each.run()) for each in (injection.without, injection.program))
    assert after - before == round(1.1 * 0.3 * before)


def test_a_slow_device_costs_the_share_by_which_its_kernels_are_slower() -> None:
    """All its kernels take 1.39 times as long; gaps, waits and host do not."""
    job = draw_job(
        Random(3), is_synchronous=False, starts_quiet=False, noise=0.0, ranks=2, steps=3, warm_up=3
    )
    injection = CAUSES["slow_device"].make(Random(4), job, 0.3)
    before, after = (period_ns(job, each.run()) for each in (injection.without, injection.program))
    assert after / before == pytest.approx(1.39, rel=0.01)


def test_the_simulator_shares_no_code_with_what_it_checks() -> None:
    for name in ("simulate", "simulated_kineto", "training_job", "program_changes", "causes", "drawn_runs"):
        text = (Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8")
        assert "ccl_bench" not in text
