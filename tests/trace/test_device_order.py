"""Work that breaks the order of its stream has a damaged time; what a device may do stays without a word."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from writing import compact, event, finding_codes, kernel, names, read

from ccl_bench.base.errors import InputError
from ccl_bench.trace.device_order import _longest_in_order

SERIAL = [kernel(f"k{n}", 10 * n, 9, correlation=n + 1) for n in range(400)]


def test_a_kernel_that_ends_after_later_ones_of_its_stream_is_left_out():
    content = read(compact([*SERIAL, kernel("long", 3_970.5, 1_000, correlation=999)]))
    assert "long" not in names(content, "kernels")
    assert content.height("kernels") == 400
    (finding,) = content.findings
    assert (finding.code, finding.count, finding.touches) == ("impossible-time", 1, ("kernels", "memcpy"))


def test_a_copy_that_ends_after_later_kernels_of_its_stream_is_left_out():
    args = {"device": 0, "stream": 7, "correlation": 999}
    copy = event("gpu_memcpy", "Memcpy DtoH (Device -> Pinned)", 5, 1_600_000, **args)
    content = read(compact([*SERIAL, copy]))
    assert (content.height("kernels"), content.height("memcpy")) == (400, 0)
    assert finding_codes(content) == ["impossible-time"]


@pytest.mark.parametrize(("length", "kept"), [(9 + 1 + 9 + 2, 400), (9 + 1 + 9 + 3, 399)])
def test_an_end_may_be_later_by_two_roundings_to_whole_microseconds(length, kept):
    later = [kernel("k5", 50, length, correlation=6) if n == 5 else each for n, each in enumerate(SERIAL)]
    assert read(compact(later)).height("kernels") == kept


def test_a_long_kernel_of_another_stream_stays():
    content = read(compact([*SERIAL, kernel("nccl", 5, 3_000, stream=8, correlation=999)]))
    assert (content.height("kernels"), finding_codes(content)) == (401, [])


def graph(number, at, *lengths):
    """Return the kernels of one launch of a graph, side by side on one stream."""
    return [kernel(f"g{n}", at + n, length, correlation=number) for n, length in enumerate(lengths)]


def test_kernels_of_one_graph_may_run_beside_each_other():
    events = [each for n in range(50) for each in graph(n + 1, 100 * n, 80, 5, 30)]
    content = read(compact(events))
    assert (content.height("kernels"), finding_codes(content)) == (150, [])


def test_a_kernel_of_a_graph_that_goes_on_beside_later_graphs_is_left_out():
    replays = [graph(n + 1, 100 * n, 80, 5, 30) for n in range(50)]
    replays[20][1]["dur"] = 1_600_000
    content = read(compact([each for replay in replays for each in replay]))
    assert content.height("kernels") == 149
    assert names(content, "kernels").count("g1") == 49
    assert finding_codes(content) == ["impossible-time"]


def test_a_kernel_that_begins_before_the_one_before_it_ends_stays_with_a_finding():
    content = read(compact([kernel(f"k{n}", 10 * n, 14, correlation=n + 1) for n in range(400)]))
    assert content.height("kernels") == 400
    (finding,) = content.findings
    assert (finding.code, finding.count) == ("streams-overlap", 399)
    assert "28 % of its time" in finding.message  # 399 times 4 of 400 times 14 us


@pytest.mark.parametrize(("count", "severity"), [(13, "note"), (14, "warning")])
def test_a_hundredth_of_the_time_may_lie_beside_other_work(count, severity):
    # 400 kernels of 10 us with 3 us beside the next one: 13 are 39 us and 14 are 42 us of some 4,000 us.
    events = [kernel(f"k{n}", 20 * n, 10, correlation=n + 1) for n in range(400)]
    for n in range(count):
        events[2 * n + 1]["ts"] -= 13
    (finding,) = read(compact(events)).findings
    assert (finding.code, finding.severity, finding.count) == ("streams-overlap", severity, count)


@pytest.mark.parametrize("factor", [10, 1_000])
def test_a_trace_whose_work_is_too_long_is_refused(factor):
    events = [kernel(f"k{n}", 40 * n, factor * (5 + n * 7 % 31), correlation=n + 1) for n in range(400)]
    with pytest.raises(InputError, match=r"of 400 kernels and copies end after later ones") as error:
        read(compact(events))
    assert "unit" in error.value.fix


@pytest.mark.parametrize(("damaged", "is_refused"), [(4, False), (5, True)])
def test_up_to_a_hundredth_of_the_records_may_be_damaged(damaged, is_refused):
    events = [dict(each) for each in SERIAL]
    for n in range(damaged):
        events[80 * n + 10]["dur"] = 100
    if is_refused:
        with pytest.raises(InputError):
            read(compact(events))
    else:
        assert read(compact(events)).height("kernels") == 400 - damaged


def launch(number, ts, dur=2):
    return event("cuda_runtime", "cudaLaunchKernel", ts, dur, correlation=number)


def wait(ts, dur):
    return event("cuda_runtime", "cudaDeviceSynchronize", ts, dur, correlation=9_999)


@pytest.mark.parametrize(("end", "kept"), [(1_002, 1), (1_003, 0)])
def test_work_that_goes_on_after_a_wait_for_the_device_is_left_out(end, kept):
    content = read(compact([launch(1, 0), kernel("last", 10, end - 10), wait(20, 980)]))
    assert content.height("kernels") == kept
    assert finding_codes(content) == ["impossible-time"] * (1 - kept)


def test_work_that_is_launched_after_a_wait_began_may_go_on():
    content = read(compact([wait(0, 5), launch(1, 1), kernel("next", 10, 90)]))
    assert (content.height("kernels"), finding_codes(content)) == (1, [])


@pytest.mark.parametrize(("start", "codes"), [(98, []), (97, ["work-before-launch"])])
def test_work_begins_after_its_launch(start, codes):
    content = read(compact([launch(1, 100), kernel("early", start, 50)]))
    assert (content.height("kernels"), finding_codes(content)) == (1, codes)


def paused(pauses, delay, pause=101):
    """Return work that begins `delay` us after its launch and `pause` us after the work before it."""
    starts = [10_000 * (n + 1) for n in range(pauses + 1)]
    work = [kernel(f"k{n}", start, 10_000 - pause, correlation=n + 1) for n, start in enumerate(starts)]
    return [*(launch(n + 1, start - delay) for n, start in enumerate(starts)), *work]


@pytest.mark.parametrize(
    ("pauses", "delay", "pause", "codes"),
    [
        (10, 1_001, 101, ["device-clock-ahead"]),
        (9, 1_001, 101, []),  # too few pauses to tell
        (10, 1_000, 101, []),  # a millisecond is no clock yet
        (10, 1_001, 100, []),  # gaps between queued work are as long
    ],
)
def test_a_device_that_begins_everything_late_has_a_clock_ahead(pauses, delay, pause, codes):
    assert finding_codes(read(compact(paused(pauses, delay, pause)))) == codes


def test_one_prompt_start_after_a_pause_shows_that_the_clocks_agree():
    events = paused(30, 5_000)
    events[17]["ts"] += 4_990
    assert finding_codes(read(compact(events))) == []


def test_only_the_first_kernel_of_a_graph_begins_soon_after_its_launch():
    graphs = [
        [
            launch(n + 1, 10_000 * n),
            *(kernel(f"g{k}", 10_000 * n + 10 + 2_000 * k, 1_000, correlation=n + 1) for k in range(3)),
        ]
        for n in range(20)
    ]
    assert finding_codes(read(compact([each for graph in graphs for each in graph]))) == []


@pytest.mark.parametrize(("short", "is_refused"), [(79, False), (80, True)])
def test_times_that_no_device_reaches_are_of_another_unit(short, is_refused):
    events = [dict(each, dur=0.099 if n < short else 9) for n, each in enumerate(SERIAL)]
    if is_refused:
        with pytest.raises(InputError, match="another unit"):
            read(compact(events))
    else:
        assert finding_codes(read(compact(events))) == ["lengths-lost"]


def test_a_kernel_without_length_is_reported_where_its_like_take_microseconds():
    events = [dict(each, name="gemm", dur=0 if n in {5, 9} else 3) for n, each in enumerate(SERIAL)]
    (finding,) = read(compact(events)).findings
    assert (finding.code, finding.count, finding.touches) == ("lengths-lost", 2, ("kernels", "memcpy"))


def test_a_kernel_below_a_microsecond_may_be_rounded_to_nothing():
    events = [dict(each, name="add", dur=n % 3) for n, each in enumerate(SERIAL)]
    assert finding_codes(read(compact(events))) == []


def test_times_finer_than_microseconds_do_not_round_a_kernel_to_nothing():
    events = [dict(each, ts=each["ts"] + 0.5, name="add", dur=n % 3) for n, each in enumerate(SERIAL)]
    assert finding_codes(read(compact(events))) == ["lengths-lost"]


@given(st.lists(st.integers(0, 12), max_size=12))
def test_as_many_ends_as_possible_are_kept_in_order(ends):
    kept = [end for end, keep in zip(ends, _longest_in_order(ends), strict=True) if keep]
    assert all(one <= other for one, other in pairwise(kept))
    lengths = [0] * 13
    for end in ends:
        lengths[end] = 1 + max(lengths[: end + 1])
    assert len(kept) == max(lengths)
