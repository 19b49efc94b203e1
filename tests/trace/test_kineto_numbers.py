"""Numbers and times that no profiler writes: each is a finding about the table that holds it."""

import pytest
from writing import LAYOUTS, Text, compact, event, finding_codes, kernel, many, names, op, read

layouts = pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())


def serial(count=100, **changes):
    """Return kernels one after the other, each with the correlation that `changes` gives for its place."""
    numbers = {n: n + 1 for n in range(count)} | changes.pop("correlations", {})
    return [kernel(f"k{n}", 10 * n, 9, correlation=numbers[n], **changes) for n in range(count)]


@layouts
@pytest.mark.parametrize(
    ("length", "code"),
    [
        (True, "events-lost"),
        (Text("5e-324"), "impossible-time"),
        (Text("0.0004"), "impossible-time"),
        ("x", "impossible-time"),
    ],
)
def test_an_event_whose_length_is_no_time_is_left_out_and_counted(write, length, code):
    content = read(write([op("a", 1), op("b", 2) | {"dur": length}, op("c", 3)]))
    assert names(content) == ["a", "c"]
    assert [(finding.code, finding.count) for finding in content.findings] == [(code, 1)]


@layouts
@pytest.mark.parametrize("length", [0, Text("0.0"), Text("0.0005"), Text("0.001"), "7"])
def test_the_shortest_lengths_and_numbers_as_text_are_times(write, length):
    content = read(write([op("a", 1), op("b", 2) | {"dur": length}, op("c", 3)]))
    assert names(content) == ["a", "b", "c"]
    assert finding_codes(content) == []


@pytest.mark.parametrize("number", [-1, -(2**40), 2**63, 2**64 + 5, Text("1.5"), "x", None])
def test_a_number_that_pairs_nothing_is_reported_where_the_others_have_one(number):
    content = read(compact(serial(correlations={3: number, 8: number})))
    assert content.height("kernels") == 100
    (finding,) = content.findings
    assert (finding.code, finding.count, finding.touches) == ("ids-damaged", 2, ("kernels",))


def test_a_profiler_that_numbers_few_of_its_kernels_is_not_damaged():
    content = read(compact(serial(correlations=dict.fromkeys(range(0, 100, 9)))))
    assert finding_codes(content) == []


@pytest.mark.parametrize(("alike", "codes"), [(60, ["times-equal"]), (50, [])])
def test_a_clock_that_stood_still_for_most_of_a_table_is_reported(alike, codes):
    events = [op(f"op{n}", 500 if n < alike else 1_000 + n) for n in range(100)]
    content = read(compact(events))
    assert finding_codes(content) == codes
    assert [finding.count for finding in content.findings] == [60] * len(codes)


@pytest.mark.parametrize(("copied", "kept"), [(100, 100), (20, 100), (19, 119)])
def test_many_events_alike_but_for_their_numbers_are_copies(copied, kept):
    copies = serial(correlations={n: 10_000 + n for n in range(100)})[:copied]
    content = read(compact([*serial(), *copies]))
    assert content.height("kernels") == kept
    assert finding_codes(content) == ["events-repeated" if kept == 100 else "streams-overlap"]


def test_events_without_length_may_lie_at_one_time():
    points = [event("gpu_memset", "set", 10 * (n // 2), 0, correlation=n) for n in range(100)]
    content = read(compact(points))
    assert (content.height("memcpy"), finding_codes(content)) == (100, [])


@pytest.mark.parametrize(
    ("stated", "codes"),
    [("allreduce", []), ("_allgather_base", ["names-contradict"]), ("barrier", []), ("broadcast", [])],
)
def test_a_kernel_named_after_another_collective_than_it_states_is_reported(stated, codes):
    name = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
    content = read(compact([kernel(name, **{"Collective name": stated})]))
    assert finding_codes(content) == codes


def test_sizes_below_zero_are_unknown_and_reported():
    args = {"device": 0, "stream": 7, "correlation": 1}
    copies = [
        event("gpu_memcpy", "Memcpy DtoD", 20 * n, **args, bytes=size) for n, size in enumerate([8, -8])
    ]
    content = read(compact(copies))
    assert content.table("memcpy")["bytes"].to_list() == [8, None]
    assert finding_codes(content) == ["sizes-impossible"]


@pytest.mark.parametrize(
    ("kind", "size", "codes"),
    [
        ("HtoD (Pinned -> Device)", 10_800_000, []),  # 10 us and two roundings at 900 GB/s
        ("HtoD (Pinned -> Device)", 10_900_000, ["sizes-impossible"]),
        ("DtoD (Device -> Device)", 90_000_000, []),  # at 8,000 GB/s
        ("DtoD (Device -> Device)", 97_000_000, ["sizes-impossible"]),
    ],
)
def test_no_copy_is_faster_than_the_fastest_device(kind, size, codes):
    args = {"device": 0, "stream": 7, "correlation": 1}
    assert (
        finding_codes(read(compact([event("gpu_memcpy", f"Memcpy {kind}", 0, **args, bytes=size)]))) == codes
    )


def test_copies_are_counted_by_their_own_numbers_too():
    content = read(compact([*serial(), *serial()[:3]]))
    assert content.height("kernels") == 100
    assert [(finding.code, finding.count) for finding in content.findings] == [("events-repeated", 3)]


@pytest.mark.parametrize(("gaps", "codes"), [(19, []), (20, ["operators-lost"])])
def test_operators_that_are_not_in_the_file_leave_gaps_in_their_numbers(gaps, codes):
    gone = {10 * n + 5 for n in range(gaps)}
    content = read(compact([event for n, event in enumerate(many(400)) if n not in gone]))
    assert finding_codes(content) == codes
    assert [(f.count, f.touches) for f in content.findings] == [(gaps, ("cpu_ops", "annotations"))] * len(
        codes
    )


def test_numbers_left_out_in_one_block_for_a_thread_are_no_loss():
    threads = [op(f"op{n}", n, **{"External id": n + 10_000 * (n // 40)}) for n in range(400)]
    assert finding_codes(read(compact(threads))) == []


TWICE = {
    "a length": (b'"dur":1', b'"dur":1,"dur":5'),
    "a start": (b'"ts":3', b'"ts":3,"ts":4'),
    "a name": (b'"name":"op3"', b'"name":"op3","name":"op"'),
    "all arguments": (b'"args":{', b'"args":{},"args":{'),
    "a number": (b'"External id":3', b'"External id":3,"External id":4'),
}


@pytest.mark.parametrize("change", TWICE.values(), ids=TWICE)
def test_an_event_that_states_a_key_twice_is_counted_and_reported(change):
    content = read(compact(many(8)).replace(*change, 1))
    assert [(f.code, f.count, f.touches) for f in content.findings] == [("keys-repeated", 1, ())]
    assert content.height("cpu_ops") == 8


@pytest.mark.parametrize("name", ['"dur"', '"External id"', '"ts":1,"ts":2'])
def test_keys_in_names_and_values_are_no_keys(name):
    events = [op(name, 1), op("b", 2, note=name), op("d", 4, inner={"a": 1, "dur": 2})]
    assert finding_codes(read(compact(events))) == []
