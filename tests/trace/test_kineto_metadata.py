"""What a Kineto file says around its events."""

import pytest
from writing import LAYOUTS, compact, event, kernel, names, read

layouts = pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())


def rows(content, table):
    return content.table(table).to_dicts()


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
        {
            "device": 1,
            "name": "NVIDIA H800",
            "memory_bytes": 84943110144,
            "sms": 132,
            "threads_per_sm": 2048,
            "peak_flops_per_s": None,
            "memory_bytes_per_s": None,
        }
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


@pytest.mark.parametrize("piece", [64, 100, 300])
def test_metadata_after_the_events_may_hold_what_looks_like_events(monkeypatch, piece):
    monkeypatch.setattr("ccl_bench.trace.values.BLOCK_BYTES", piece)
    things = [{"name": f"thing {n}", "pid": n} for n in range(40)]
    after = {"things": things, "distributedInfo": {"rank": 6}, "baseTimeNanoseconds": 7_000}
    content = read(compact([event("cpu_op", f"op{n}", n) for n in range(40)], after))
    assert content.rank == 6
    assert content.table("cpu_ops")["start_ns"].to_list() == [7_000 + 1_000 * n for n in range(40)]
    assert content.findings == []


def test_events_first_and_metadata_after_them_are_read():
    text = (
        b'{"traceEvents":[{"ph":"X","cat":"cpu_op","name":"a","ts":1,"dur":1}],"distributedInfo":{"rank":6}}'
    )
    content = read(text)
    assert (names(content), content.rank, content.findings) == (["a"], 6, [])


def test_a_byte_order_mark_is_no_damage():
    content = read(b"\xef\xbb\xbf" + compact([kernel()], distributedInfo={"rank": 2}))
    assert (content.rank, content.table("kernels").height, content.findings) == (2, 1, [])
