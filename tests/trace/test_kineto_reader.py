"""The Kineto reader on small traces whose tables are known beforehand."""

import pytest
from writing import LAYOUTS, Text, bare, compact, event, finding_codes, kernel, names, pretty, read

from ccl_bench.base.errors import InputError

layouts = pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())


def rows(content, table):
    return content.table(table).to_dicts()


@layouts
def test_each_category_becomes_a_row_of_its_table(write):
    content = read(
        write(
            [
                kernel(),
                event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", device=0, stream=8, bytes=64),
                event("gpu_memset", "Memset (Device)", device=0, stream=9, bytes=8),
                event("cpu_op", "aten::add"),
                event("cuda_runtime", "cudaLaunchKernel", correlation=1),
                event("cuda_driver", "cuLaunchKernel", correlation=2),
                event("user_annotation", "ProfilerStep#1"),
                event("gpu_user_annotation", "ProfilerStep#1"),
                event("python_function", "module.py(1): f"),
                event("cuda_sync", "Stream Sync"),
            ]
        )
    )
    heights = {name: table.height for name, table in content.tables.items()}
    assert heights == {
        "kernels": 1,
        "memcpy": 2,
        "cpu_ops": 1,
        "products": 0,
        "launches": 2,
        "annotations": 2,
        "collectives": 0,
        "autograd_links": 0,
        "devices": 0,
        "process_groups": 0,
    }
    assert content.findings == []


@layouts
def test_a_kernel_keeps_its_launch_numbers(write):
    args = {
        "External id": 5,
        "registers per thread": 40,
        "shared memory": 400,
        "blocks per SM": 4.740741,
        "warps per SM": 75.851852,
        "grid": [512, 2, 1],
        "block": [32, 4, 1],
        "est. achieved occupancy %": 93,
    }
    (row,) = rows(read(write([kernel("gemm", 100, 7, stream=9, correlation=77, **args)])), "kernels")
    assert row == {
        "start_ns": 100_000,
        "end_ns": 107_000,
        "name": "gemm",
        "device": 0,
        "stream": 9,
        "correlation": 77,
        "external_id": 5,
        "collective": None,
        "blocks_per_sm": 4.740741,
        "warps_per_sm": 75.851852,
        "occupancy_pct": 93.0,
        "grid_blocks": 512 * 2,
        "block_threads": 32 * 4,
        "registers": 40,
        "shared_memory_bytes": 400,
    }


def test_text_where_a_number_belongs_is_understood():
    args = {"External id": "12", "grid": ["4096", 2, "3"], "block": "[128, 1, 1]"}
    row = rows(read(compact([kernel(ts="100.5", dur="7", correlation="9", **args)])), "kernels")[0]
    assert (row["start_ns"], row["end_ns"], row["correlation"]) == (100_500, 107_500, 9)
    assert (row["external_id"], row["grid_blocks"], row["block_threads"]) == (12, 4096 * 2 * 3, 128)


@pytest.mark.parametrize(
    "odd", ["abc", "", "sNaN", "NaN", "1e999999", "7.5", 7.5, 10**400, 2**63, [1], {"a": 1}, Text("1" * 4000)]
)
def test_what_is_no_whole_number_becomes_null(odd):
    events = [kernel(ts=1, correlation=odd), kernel(ts=2, correlation=3)]
    content = read(compact(events))
    found = content.table("kernels")["correlation"].to_list()
    assert found in ([None, 3], [3])
    assert len(found) + sum(f.count for f in content.findings if f.code == "events-lost") == 2


@pytest.mark.parametrize("size", [[2**40, 2**40, 1], [None, 1, 1], ["x", 1, 1], [], "", 7, [1.5], [True, 2]])
def test_an_odd_grid_does_not_lose_the_kernel(size):
    content = read(compact([kernel(grid=size), kernel(ts=1)]))
    assert content.table("kernels").height + sum(f.count for f in content.findings) == 2


@layouts
def test_an_autograd_arrow_joins_forward_to_backward(write):
    arrows = [
        {"ph": "s", "id": 4, "pid": 1, "tid": 11, "ts": 20, "cat": "fwdbwd", "name": "fwdbwd"},
        {"ph": "f", "id": 4, "pid": 1, "tid": 22, "ts": 90, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"},
        {"ph": "s", "id": 5, "pid": 1, "tid": 11, "ts": 30, "cat": "fwdbwd", "name": "fwdbwd"},
    ]
    expected = {"forward_ns": 20_000, "forward_thread": 11, "backward_ns": 90_000, "backward_thread": 22}
    assert rows(read(write([event("cpu_op"), *arrows])), "autograd_links") == [expected]


def test_arrows_that_share_an_id_do_not_multiply():
    ends = [
        {"ph": ph, "id": 1, "pid": 1, "tid": 1, "ts": n, "cat": "fwdbwd", "name": "fwdbwd"}
        for ph in "sf"
        for n in range(3000)
    ]
    assert read(compact(ends)).table("autograd_links").height == 1


@pytest.mark.parametrize(
    ("category", "table"),
    [
        ("Kernel", "kernels"),
        ("Memcpy", "memcpy"),
        ("Memset", "memcpy"),
        ("Runtime", "launches"),
    ],
)
def test_category_names_of_old_torch_are_known(category, table):
    args = {"device": 0, "stream": 7, "correlation": 3, "external id": 8}
    (row,) = rows(read(pretty([event(category, "x", 5, 2, **args)])), table)
    assert (row["start_ns"], row["end_ns"], row["external_id"]) == (5_000, 7_000, 8)


OLD_CATEGORIES = {
    "cpu_op": "Operator",
    "user_annotation": "Operator",
    "cuda_runtime": "Runtime",
    "kernel": "Kernel",
    "gpu_memcpy": "Memcpy",
    "gpu_memset": "Memset",
}
"""Categories since torch 1.12 → those of torch 1.8 and 1.9."""

RANGES = (
    *("ProfilerStep#3", "Optimizer.step#SGD.step", "Optimizer.zero_grad#SGD.zero_grad", "## forward ##"),
    *("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "gloo:all_reduce", "nccl:all_reduce"),
    *("DistributedDataParallel.forward", "forward", "step_3", "Iteration3", "my block"),
)

OPERATORS = (
    *("aten::mm", "c10d::allreduce_", "detach", "detach_", "record_param_comms", "ReluBackward1"),
    *("MulBackward0", "CudnnConvolutionBackward", "autograd::engine::evaluate_function: AddmmBackward0"),
    *("MyFunction", "myfunctionBackward", "torch::autograd::AccumulateGrad"),
)


@layouts
def test_a_trace_with_old_categories_gives_the_same_tables(write):
    shapes = {"Input Dims": [[2, 3], [3, 5]], "Input type": ["float", "float"]}
    marks = [
        event("user_annotation", name, 10 * n, 90, **{"External id": n}) for n, name in enumerate(RANGES)
    ]
    operators = [
        event("cpu_op", name, 10 * n + 5, 3, **shapes, **{"External id": n, "Sequence number": n})
        for n, name in enumerate(OPERATORS, len(RANGES))
    ]
    events = [
        *(each for pair in zip(marks, operators, strict=True) for each in pair),
        event("cuda_runtime", "cudaLaunchKernel", 6, 1, correlation=1),
        kernel(ts=8),
        event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 20, 1, device=0, stream=7, bytes=64),
        event("gpu_memset", "Memset (Device)", 25, 1, device=0, stream=7, bytes=8),
    ]
    old = [each | {"cat": OLD_CATEGORIES[each["cat"]]} for each in events]
    found, expected = read(write(old)), read(write(events))
    assert names(found, "annotations") == [*RANGES]
    assert names(found, "cpu_ops") == [*OPERATORS]
    for name, table in expected.tables.items():
        assert found.table(name).equals(table), name
    assert found.findings == expected.findings


def test_events_of_an_amd_device_are_read():
    content = read(
        pretty(
            [
                kernel(
                    "Cijk_Ailk_Bljk_SB_MT64x64x16",
                    10,
                    5,
                    stream=0,
                    grid=[64, 1, 1],
                    block=[256, 1, 1],
                ),
                event("hip_runtime", "hipLaunchKernel", 1, 2, correlation=1),
                event("gpu_memcpy", "CopyHostToDevice", 20, 1, device=2, stream=0, correlation=2),
            ]
        )
    )
    assert names(content, "kernels") == ["Cijk_Ailk_Bljk_SB_MT64x64x16"]
    assert names(content, "launches") == ["hipLaunchKernel"]
    assert content.table("memcpy")["kind"].to_list() == ["HtoD"]


def test_categories_that_are_not_known_are_counted():
    content = read(compact([kernel(), event("tpu_op"), event("tpu_op")]))
    (finding,) = content.findings
    assert (finding.code, finding.count) == ("categories-unknown", 2)


@pytest.mark.parametrize("closed", [True, False])
def test_a_bare_array_of_events_is_read(closed):
    content = read(bare([event("cpu_op", "a", 1), event("cpu_op", "b", 2)], closed=closed))
    assert names(content) == ["a", "b"]
    assert finding_codes(content) == ([] if closed else ["file-truncated"])


def test_a_trailing_comma_loses_nothing():
    content = read(compact([event("cpu_op", "a", 1), event("cpu_op", "b", 2)]).replace(b"}]", b"},]"))
    assert names(content) == ["a", "b"]
    assert content.findings == []


@layouts
def test_no_events_is_a_finding(write):
    content = read(write([]))
    assert finding_codes(content) == ["no-events"]
    assert all(table.height == 0 for table in content.tables.values())


@pytest.mark.parametrize(
    "junk",
    [b"", b" \n", b"\x00\x01\x02\xff" * 500, b"{}", b'{"a": [1, 2]}', b"null", b'"traceEvents"', b"{" * 5000],
)
def test_what_is_no_trace_is_refused(junk):
    with pytest.raises(InputError):
        read(junk)


def test_sorted_keys_are_read(monkeypatch):
    monkeypatch.setattr("ccl_bench.trace.values.BLOCK_BYTES", 128)
    events = [dict(sorted(event("cpu_op", f"op{n}", n, **{"External id": n}).items())) for n in range(50)]
    content = read(compact(events))
    assert content.table("cpu_ops")["external_id"].to_list() == list(range(50))
    assert content.findings == []


@layouts
def test_the_name_of_a_copy_says_whether_memory_of_the_host_is_pageable(write):
    expected = {
        "Memcpy HtoD (Pageable -> Device)": ("HtoD", True),
        "Memcpy HtoD (Pinned -> Device)": ("HtoD", False),
        "Memcpy DtoH (Device -> Pageable)": ("DtoH", True),
        "Memcpy DtoD (Device -> Device)": ("DtoD", None),
        "CopyHostToDevice": ("HtoD", None),
    }
    copies = [event("gpu_memcpy", name, n, device=0, stream=7) for n, name in enumerate(expected)]
    found = read(write(copies)).table("memcpy")
    assert list(found.select("kind", "is_pageable").iter_rows()) == [*expected.values()]
