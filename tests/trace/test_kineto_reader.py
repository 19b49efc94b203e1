"""The Kineto reader on small traces whose tables are known beforehand."""

import pytest
from writing import LAYOUTS, Text, bare, compact, event, finding_codes, kernel, names, pretty, read

from ccl_bench.errors import InputError

layouts = pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())


def rows(content, table):
    return content.table(table).to_dicts()


@layouts
def test_each_category_becomes_a_row_of_its_table(write):
    content = read(
        write(
            [
                kernel(),
                event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", device=0, stream=7, bytes=64),
                event("gpu_memset", "Memset (Device)", device=0, stream=7, bytes=8),
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


@layouts
def test_seventeen_digit_microseconds_keep_every_nanosecond(write):
    content = read(write([kernel(ts=Text("1706850122846038.123"), dur=Text("10.001"))]))
    row = rows(content, "kernels")[0]
    assert row["start_ns"] == 1_706_850_122_846_038_123
    assert row["end_ns"] == 1_706_850_122_846_038_123 + 10_001


@pytest.mark.parametrize("whole", ["8796093022208", "9999999999999", "4354294103889"])
def test_thirteen_digit_microseconds_keep_every_nanosecond(whole):
    content = read(compact([kernel(ts=Text(f"{whole}.{n:03}"), correlation=n) for n in range(1000)]))
    assert content.table("kernels")["start_ns"].to_list() == [int(whole) * 1000 + n for n in range(1000)]


def test_long_times_in_a_later_piece_keep_every_nanosecond(monkeypatch):
    monkeypatch.setattr("ccl_bench.trace.formats.kineto.pieces.PIECE_BYTES", 256)
    stamps = ["1706850122846030", *(f"170685012284603{n}.123" for n in range(1, 10))]
    content = read(compact([kernel(ts=Text(stamp), correlation=n) for n, stamp in enumerate(stamps)]))
    whole = 1_706_850_122_846_030_000
    assert content.table("kernels")["start_ns"].to_list() == [
        whole,
        *(whole + n * 1000 + 123 for n in range(1, 10)),
    ]


@layouts
def test_base_time_is_added(write):
    base = 1_711_964_646_000_000_000
    content = read(write([kernel(ts=Text("4458676983543.183"), dur=1)], baseTimeNanoseconds=base))
    assert rows(content, "kernels")[0]["start_ns"] == base + 4_458_676_983_543_183


@layouts
def test_base_time_after_the_events_is_added(write):
    content = read(write([kernel(ts=5)], {"displayTimeUnit": "ms", "baseTimeNanoseconds": 1_000}))
    assert rows(content, "kernels")[0]["start_ns"] == 1_000 + 5_000
    assert content.findings == []


@pytest.mark.parametrize("base", [-5, "x", None, [], 10**30, 1.5, True, Text("1" * 5000)])
def test_an_impossible_base_time_adds_nothing(base):
    ts = rows(read(compact([kernel(ts=5)], baseTimeNanoseconds=base)), "kernels")[0]["start_ns"]
    assert ts in {5_000, 5_001}


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


def test_an_unsigned_64_bit_communicator_is_kept_as_text():
    args = {"Collective name": "allreduce", "Comms Id": 18446744073709551615}
    content = read(compact([kernel("ncclDevKernel_AllReduce", **args)]))
    assert rows(content, "collectives")[0]["communicator"] == "18446744073709551615"


@layouts
def test_a_kernel_with_collective_arguments_becomes_a_call(write):
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 1048576,
        "Out msg nelems": 8388608,
        "Group size": 8,
        "dtype": "BFloat16",
        "In split size": "[]",
        "Out split size": "[1, 2, 3]",
        "Process Group Name": "3",
        "Process Group Description": "mesh_tp",
        "Process Group Ranks": "[0, 1, 2, 3, 4, 5, 6, 7]",
        "Global rank start": 0,
        "Global rank stride": 1,
        "Seq": 57,
        "Is asynchronized op": True,
        "Src Rank": 4,
    }
    content = read(
        write([kernel("ncclDevKernel_AllGather_RING_LL", 10, 5, stream=20, correlation=9, **args)])
    )
    assert rows(content, "collectives") == [
        {
            "start_ns": 10_000,
            "end_ns": 15_000,
            "source": "kernel",
            "name": "_allgather_base",
            "thread": 20,
            "correlation": 9,
            "external_id": None,
            "dtype": "BFloat16",
            "in_elements": 1048576,
            "out_elements": 8388608,
            "in_split": [],
            "out_split": [1, 2, 3],
            "group_size": 8,
            "group_name": "3",
            "group_description": "mesh_tp",
            "group_ranks": [0, 1, 2, 3, 4, 5, 6, 7],
            "group_start": 0,
            "group_stride": 1,
            "sequence": 57,
            "communicator": None,
            "peer": 4,
            "is_async": True,
        }
    ]


def test_a_rank_list_that_was_cut_is_not_believed():
    args = {"Collective name": "allreduce", "Process Group Ranks": "[0, 1, 2, ...]"}
    assert rows(read(compact([kernel(**args)])), "collectives")[0]["group_ranks"] is None


def test_positional_arguments_of_old_traces_are_understood():
    inputs = ["", "41", "139913", "0", "allreduce", "[]", "[]", "8"]
    args = {"Concrete Inputs": inputs, "Input Dims": [[4, 2048, 16], [], [], [], [], [], [], []]}
    (row,) = rows(read(pretty([event("cpu_op", "record_param_comms", **args)])), "collectives")
    assert (row["source"], row["in_elements"], row["group_size"]) == ("host", 4 * 2048 * 16, 8)
    assert (row["sequence"], row["group_name"]) == (41, "139913")


@pytest.mark.parametrize(
    "args",
    [
        {"Concrete Inputs": ["", ["1"], {"a": 1}]},
        {"Concrete Inputs": "no list", "Input Dims": 5},
        {"Input Dims": [[2**62, 4]]},
        {"Input Dims": [[[2**62], [2**62], [2**62]]]},
        {"Input Dims": [[["x"], [None, 1]]]},
        {"Input type": [["float"], 7]},
        {"Input type": [7, 8, 9], "Input Dims": [[1], [2], [3]]},
        {"Concrete Inputs": Text("[1e999]")},
    ],
)
@pytest.mark.parametrize("name", ["record_param_comms", "gloo:all_reduce", "c10d::allreduce_", "c10d::send"])
def test_odd_positional_arguments_do_not_lose_the_call(name, args):
    category = "user_annotation" if name.startswith("gloo") else "cpu_op"
    content = read(compact([event(category, name, **args)]))
    assert content.table("collectives").height == 1


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


@layouts
def test_devices_and_groups_are_listed(write):
    device = {
        "id": 1,
        "name": "NVIDIA H800",
        "totalGlobalMem": 84943110144,
        "numSms": 132,
        "maxThreadsPerMultiprocessor": 2048,
    }
    group = {
        "pg_name": "1",
        "pg_desc": "mesh_tp",
        "backend_config": "cuda:nccl",
        "pg_size": 2,
        "ranks": [0, 2],
    }
    info = {"backend": "nccl", "rank": 3, "world_size": 64, "pg_config": [group], "nccl_version": "2.17.1"}
    content = read(write([kernel()], deviceProperties=[device], distributedInfo=info))
    assert rows(content, "devices") == [
        {"device": 1, "name": "NVIDIA H800", "memory_bytes": 84943110144, "sms": 132, "threads_per_sm": 2048}
    ]
    assert rows(content, "process_groups") == [
        {"name": "1", "description": "mesh_tp", "backend": "cuda:nccl", "size": 2, "ranks": [0, 2]}
    ]
    assert (content.rank, content.world_size) == (3, 64)
    assert content.attributes == {"backend": "nccl", "nccl_version": "2.17.1"}


@pytest.mark.parametrize(
    "before",
    [
        {"deviceProperties": [{"id": 2**64, "totalGlobalMem": 2**64 - 1, "numSms": "x"}]},
        {"deviceProperties": {"id": 0}},
        {"deviceProperties": [None, 5, {}]},
        {"distributedInfo": {"rank": 2**70, "world_size": -1.5}},
        {"distributedInfo": [1]},
        {"distributedInfo": {"pg_config": [{"pg_size": 2**64, "ranks": [2**64, 1]}, {"ranks": "0, 1"}]}},
        {"distributedInfo": {"pg_config": {"a": {"pg_name": 7}, "b": 3}}},
    ],
)
def test_odd_metadata_does_not_lose_the_events(before):
    assert read(compact([kernel()], **before)).table("kernels").height == 1


@pytest.mark.parametrize(
    ("category", "table"),
    [
        ("Kernel", "kernels"),
        ("Memcpy", "memcpy"),
        ("Memset", "memcpy"),
        ("Operator", "cpu_ops"),
        ("Runtime", "launches"),
    ],
)
def test_category_names_of_old_torch_are_known(category, table):
    args = {"device": 0, "stream": 7, "correlation": 3, "external id": 8}
    (row,) = rows(read(pretty([event(category, "x", 5, 2, **args)])), table)
    assert (row["start_ns"], row["end_ns"], row["external_id"]) == (5_000, 7_000, 8)


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


def test_events_first_and_metadata_after_them_are_read():
    text = (
        b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1}],"distributedInfo":{"rank":6}}'
    )
    content = read(text)
    assert (names(content), content.rank, content.findings) == (["a"], 6, [])


@pytest.mark.parametrize("piece", [64, 100, 300])
def test_metadata_after_the_events_may_hold_what_looks_like_events(monkeypatch, piece):
    monkeypatch.setattr("ccl_bench.trace.formats.kineto.pieces.PIECE_BYTES", piece)
    things = [{"name": f"thing {n}", "pid": n} for n in range(40)]
    after = {"things": things, "distributedInfo": {"rank": 6}, "baseTimeNanoseconds": 7_000}
    content = read(compact([event("cpu_op", f"op{n}", n) for n in range(40)], after))
    assert content.rank == 6
    assert content.table("cpu_ops")["start_ns"].to_list() == [7_000 + 1_000 * n for n in range(40)]
    assert content.findings == []


@layouts
def test_no_events_is_a_finding(write):
    content = read(write([]))
    assert finding_codes(content) == ["no-events"]
    assert all(table.height == 0 for table in content.tables.values())


def test_a_byte_order_mark_is_no_damage():
    content = read(b"\xef\xbb\xbf" + compact([kernel()], distributedInfo={"rank": 2}))
    assert (content.rank, content.table("kernels").height, content.findings) == (2, 1, [])


@pytest.mark.parametrize(
    "junk",
    [b"", b" \n", b"\x00\x01\x02\xff" * 500, b"{}", b'{"a": [1, 2]}', b"null", b'"traceEvents"', b"{" * 5000],
)
def test_what_is_no_trace_is_refused(junk):
    with pytest.raises(InputError):
        read(junk)


def test_sorted_keys_are_read(monkeypatch):
    monkeypatch.setattr("ccl_bench.trace.formats.kineto.pieces.PIECE_BYTES", 128)
    events = [dict(sorted(event("cpu_op", f"op{n}", n, **{"External id": n}).items())) for n in range(50)]
    content = read(compact(events))
    assert content.table("cpu_ops")["external_id"].to_list() == list(range(50))
    assert content.findings == []
