"""What becomes of each kind of row of an export."""

import struct

import pytest
from exports import HOST, OWNER, PID, START_NS, THREAD, codes, content, derived, export, kernel, mark, rows

from ccl_bench.analysis.device.completeness import Subject, lost_work
from ccl_bench.trace.formats.nsys.counters import counter

GPU = {
    "id": 3,
    "name": "NVIDIA H100",
    "totalMemory": 80,
    "smCount": 132,
    "cuDevice": 0,
    "maxWarpsPerSm": 64,
    "threadsPerWarp": 32,
}


def read(tmp_path, tables, strings=(), process=None, **more):
    return content(export(tmp_path / "x.sqlite", tables, strings, **more), process)


def kernels(tmp_path, *found, strings=("mm(int)",), **more):
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": list(found)} | more
    return read(tmp_path, tables, strings)


def nvtx(tmp_path, *found, strings=(), **more):
    return read(tmp_path, {"NVTX_EVENTS": list(found)} | more, strings)


def test_a_kernel_has_its_place_time_and_launch_shape(tmp_path):
    shape = {"gridX": 66, "gridY": 2, "gridZ": 2, "blockX": 8, "blockY": 6, "blockZ": 1}
    memory = {"registersPerThread": 40, "staticSharedMemory": 100, "dynamicSharedMemory": 28}
    found = kernels(tmp_path, kernel(10, 30, **shape, **memory), TARGET_INFO_GPU=[GPU]).table("kernels")
    assert rows(found, "start_ns", "end_ns", "device", "stream", "correlation") == [(10, 30, 0, 7, 10)]
    assert found["name"].to_list() == ["mm(int)"]
    launched = ("grid_blocks", "block_threads", "registers", "shared_memory_bytes")
    assert rows(found, *launched) == [(264, 48, 40, 128)]
    # 264 blocks on 132 multiprocessors; 48 threads are 2 warps
    assert rows(found, "blocks_per_sm", "warps_per_sm") == [(2.0, 4.0)]


def test_a_kernel_without_demangled_name_goes_by_the_short_one(tmp_path):
    both = [kernel(1, 2, name=None, shortName=1), kernel(3, 4, name=None), kernel(5, 6, name=99)]
    names = kernels(tmp_path, *both).table("kernels")["name"].to_list()
    assert names == ["mm(int)", "(unnamed kernel)", "(unnamed kernel)"]


def test_devices_are_numbered_as_the_process_numbers_them(tmp_path):
    cuda = {"gpuId": 3, "cudaId": 0, "pid": PID, "numMultiprocessors": 132}
    others = {"gpuId": 0, "cudaId": 0, "pid": PID + 1, "numMultiprocessors": 1}
    gpus = [GPU | {"smCount": None, "cuDevice": 3}, GPU | {"id": 0, "name": "other"}]
    found = kernels(tmp_path, kernel(1, 2), TARGET_INFO_GPU=gpus, TARGET_INFO_CUDA_DEVICE=[others, cuda])
    assert found.table("devices").rows() == [(0, "NVIDIA H100", 80, 132, 2048, None, None)]


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (1, "HtoD"),
        (2, "DtoH"),
        (8, "DtoD"),
        (9, "HtoH"),
        (10, "PtoP"),
        (11, "HtoD"),
        (0, "other"),
        (77, "other"),
    ],
)
def test_copies_have_the_kind_that_their_number_stands_for(tmp_path, number, kind):
    copy = kernel(10, 20, bytes=64, copyKind=number)
    found = read(tmp_path, {"CUPTI_ACTIVITY_KIND_MEMCPY": [copy]}).table("memcpy")
    assert rows(found, "start_ns", "end_ns", "kind", "bytes") == [(10, 20, kind, 64)]


def test_an_export_may_number_copies_otherwise(tmp_path):
    copy, named = kernel(10, 20, bytes=64, copyKind=5), {"id": 5, "name": "CUDA_MEMCPY_KIND_DTOH"}
    found = read(tmp_path, {"CUPTI_ACTIVITY_KIND_MEMCPY": [copy], "ENUM_CUDA_MEMCPY_OPER": [named]})
    assert found.table("memcpy")["kind"].to_list() == ["DtoH"]


def test_a_copy_is_pageable_where_the_export_names_the_memory_so(tmp_path):
    ends = [(0, 2), (2, 1), (2, 2), (None, None)]
    copies = [
        kernel(10 * n, 10 * n + 5, bytes=64, copyKind=1, srcKind=source, dstKind=target)
        for n, (source, target) in enumerate(ends)
    ]
    kinds = [{"id": n, "label": label} for n, label in enumerate(("Pageable", "Pinned", "Device"))]
    tables = {"CUPTI_ACTIVITY_KIND_MEMCPY": copies, "ENUM_CUDA_MEM_KIND": kinds}
    found = read(tmp_path, tables).table("memcpy")
    assert found["is_pageable"].to_list() == [True, False, None, None]


def test_memory_sets_stand_beside_copies_in_order(tmp_path):
    tables = {
        "CUPTI_ACTIVITY_KIND_MEMCPY": [kernel(30, 40, bytes=1, copyKind=1)],
        "CUPTI_ACTIVITY_KIND_MEMSET": [kernel(10, 20, bytes=2, value=0)],
    }
    assert rows(read(tmp_path, tables).table("memcpy"), "start_ns", "kind") == [(10, "memset"), (30, "HtoD")]


def test_calls_go_by_their_name_without_the_version_of_the_api(tmp_path):
    call = {"start": 1, "end": 2, "globalTid": THREAD, "correlationId": 5, "nameId": 2}
    found = kernels(
        tmp_path,
        kernel(3, 4, correlationId=5),
        strings=("mm", "cudaLaunchKernel_v7000"),
        CUPTI_ACTIVITY_KIND_RUNTIME=[call],
    )
    calls = found.table("launches")
    assert rows(calls, "start_ns", "end_ns", "name", "process", "thread", "correlation") == [
        (1, 2, "cudaLaunchKernel", PID, 7, 5)
    ]


def test_a_range_is_named_by_its_text_or_by_the_string_behind_its_id(tmp_path):
    found = nvtx(tmp_path, mark(1, 9, "inline"), mark(2, 8, textId=1), mark(3, 7), strings=("registered",))
    assert rows(found.table("annotations"), "start_ns", "end_ns", "name", "on_device") == [
        (1, 9, "inline", False),
        (2, 8, "registered", False),
        (3, 7, "(unnamed)", False),
    ]


def test_ranges_are_annotations_and_marks_and_domains_are_not(tmp_path):
    kinds = {
        33: "category",
        34: "mark",
        39: "thread",
        59: "push/pop",
        60: "start/end",
        75: "domain",
        76: "end",
    }
    found = nvtx(tmp_path, *(mark(kind, kind + 1, text, kind) for kind, text in kinds.items()))
    assert found.table("annotations")["name"].to_list() == ["push/pop", "start/end"]


def test_a_range_that_never_ended_is_counted_and_left_out(tmp_path):
    found = nvtx(tmp_path, mark(1, 2, "whole"), mark(3, None, "open"))
    assert found.table("annotations")["name"].to_list() == ["whole"]
    assert codes(found) == ["ranges-unended"]


def test_steps_come_from_ranges(tmp_path):
    found = nvtx(tmp_path, *(mark(10 * n, 10 * n + 10, f"step {n}") for n in (3, 4)))
    steps = derived(found, "steps")
    assert rows(steps, "step", "start_ns", "end_ns", "source") == [
        (3, 30, 40, "numbered range"),
        (4, 40, 50, "numbered range"),
    ]


def test_what_pytorch_appends_to_a_name_is_taken_off(tmp_path):
    names = ["aten::mm, seq = 3, op_id = 7, sizes = [[2, 2], [2, 2]]", "step 4, op_id = 9", "a, sizes = b"]
    found = nvtx(tmp_path, *(mark(n, n + 1, name) for n, name in enumerate(names)))
    assert found.table("annotations")["name"].to_list() == ["aten::mm", "step 4", "a, sizes = b"]
    assert found.table("cpu_ops")["name"].to_list() == ["aten::mm", "step 4"]


def test_ranges_of_pytorch_show_of_collectives(tmp_path):
    marks = [
        mark(0, 90, "record_param_comms, op_id = 1"),
        mark(1, 80, "c10d::allreduce_, op_id = 2"),
        mark(2, 70, "nccl:all_reduce, op_id = 3, sizes = [[4, 8]]"),
        mark(3, 60, "ncclAllReduce"),
        mark(4, 50, "ncclCommCount"),
    ]
    reported = nvtx(tmp_path, *marks).table("collectives")
    assert rows(reported, "start_ns", "source", "name", "in_elements", "thread") == [
        (0, "host", "record_param_comms", None, 7),
        (1, "op", "c10d::allreduce_", None, 7),
        (2, "nccl", "nccl:all_reduce", 32, 7),
        (3, "library", "ncclAllReduce", None, 7),
    ]


SCHEMAS = [
    {"domainId": 1, "schemaId": 100, "idx": n, "type": kind, "name": name, "offset": offset}
    for n, (kind, name, offset) in enumerate(
        [(18, "NCCL communicator ID", None), (22, "Message size [bytes]", 8), (5, "Peer rank", 16)]
    )
] + [
    {"domainId": 1, "schemaId": 101, "idx": n, "type": kind, "name": name, "offset": offset}
    for n, (kind, name, offset) in enumerate([(18, "NCCL communicator ID", None), (5, "No. of ranks", 8)])
]


def payload(schema, data):
    return struct.pack("<IIIIQQ", 1, 0, schema, 0, len(data), 32 + len(data)) + data


COMMUNICATOR = 2**63 + 5
CREATED = payload(101, struct.pack("<Qi4x", COMMUNICATOR, 4))


def sent(size, peer=0):
    return payload(100, struct.pack("<QQi4x", COMMUNICATOR, size, peer))


def nccl_calls(tmp_path, *marks):
    return nvtx(tmp_path, *marks, NVTX_PAYLOAD_SCHEMA_ENTRIES=SCHEMAS).table("collectives")


@pytest.mark.parametrize(
    ("name", "sides"),
    [
        ("ncclAllReduce", (1024, 1024)),
        ("ncclAllGather", (1024, 4096)),
        ("ncclReduceScatter", (4096, 1024)),
        ("ncclAlltoAll", (4096, 4096)),
        ("ncclSend", (1024, None)),
        ("ncclRecv", (None, 1024)),
    ],
)
def test_a_payload_shows_size_and_communicator(tmp_path, name, sides):
    created = mark(1, 2, "ncclCommInitRank", binaryData=CREATED)
    reported = nccl_calls(tmp_path, created, mark(3, 4, name, binaryData=sent(1024, 2)))
    assert rows(reported, "name", "dtype", "in_elements", "out_elements") == [(name, "uint8", *sides)]
    assert rows(reported, "group_size", "communicator", "peer_position") == [(4, str(COMMUNICATOR), 2)]


@pytest.mark.parametrize(
    "damaged",
    [b"", b"short", sent(1024)[:40], payload(999, b"12345678"), sent(2**63), payload(100, b""), b"\xff" * 64],
)
def test_a_payload_that_cannot_be_decoded_shows_nothing(tmp_path, damaged):
    reported = nccl_calls(tmp_path, mark(3, 4, "ncclAllReduce", binaryData=damaged))
    assert rows(reported, "name", "in_elements", "out_elements") == [("ncclAllReduce", None, None)]


def mpi(start, name, **more):
    return {"start": start, "end": start + 5, "globalTid": THREAD, "textId": name, "commHandle": 91} | more


def test_mpi_calls_come_from_their_own_tables(tmp_path):
    strings = ("MPI_Allreduce", "MPI_Isend", "MPI_Recv", "MPI_Waitall")
    found = read(
        tmp_path,
        {
            "MPI_COLLECTIVES_EVENTS": [mpi(1, 1, size=8, recvSize=8, rootRank=None)],
            "MPI_P2P_EVENTS": [mpi(10, 2, size=16, remoteRank=3), mpi(20, 3, size=32, remoteRank=-1)],
            "MPI_START_WAIT_EVENTS": [mpi(30, 4)],
        },
        strings,
    )
    assert found.table("annotations")["name"].to_list() == list(strings)
    reported = found.table("collectives")
    assert rows(reported, "source", "name", "in_elements", "out_elements", "peer", "communicator") == [
        ("mpi", "MPI_Allreduce", 8, 8, None, "91"),
        ("mpi", "MPI_Isend", 16, None, 3, "91"),
        ("mpi", "MPI_Recv", None, 32, None, "91"),
    ]


def test_mpi_calls_of_older_exports_come_from_ranges(tmp_path):
    names = ("MPI_Init", "MPI_Allreduce", "MPI_Iallgather", "MPI_Waitall")
    found = nvtx(tmp_path, *(mark(n, n + 1, name) for n, name in enumerate(names)))
    assert rows(found.table("collectives"), "source", "name") == [
        ("mpi", "MPI_Allreduce"),
        ("mpi", "MPI_Iallgather"),
    ]


METRICS = [
    {"typeId": 1 << 40, "metricId": n, "metricName": name}
    for n, name in enumerate(
        ["SMs Active [Throughput %]", "GPC Clock Frequency [MHz]", "DRAM Read Bandwidth [Throughput %]"]
    )
]


def test_counters_of_newer_exports(tmp_path):
    samples = [
        {"timestamp": 100 * n, "typeId": 1 << 40, "metricId": metric, "value": value}
        for n, (metric, value) in enumerate([(0, 80), (1, 1500), (2, 30)])
    ]
    found = kernels(tmp_path, kernel(1, 2), GPU_METRICS=samples, TARGET_INFO_GPU_METRICS=METRICS)
    assert rows(found.table("counters"), "time_ns", "device", "name", "value") == [
        (0, 0, "SM Active", 80.0),
        (200, 0, "DRAM Read", 30.0),
    ]


def test_counters_of_older_exports(tmp_path):
    texts = [
        '{"SM Active": "52", "Tensor Active \\/ FP16 Active": 7, "GPC": "1"}',
        "{",
        "[1]",
        '{"SM Active": "x"}',
    ]
    samples = [{"timestamp": n, "typeId": 1 << 40, "data": text} for n, text in enumerate(texts)]
    found = kernels(tmp_path, kernel(1, 2), GENERIC_EVENTS=samples)
    assert rows(found.table("counters"), "time_ns", "device", "name", "value") == [
        (0, 0, "SM Active", 52.0),
        (0, 0, "Tensor Active", 7.0),
    ]


def test_a_process_has_the_counters_of_its_own_device(tmp_path):
    cuda = {"gpuId": 3, "cudaId": 0, "pid": PID}
    samples = [{"timestamp": gpu, "typeId": 1 << 40 | gpu, "data": '{"SM Active": 1}'} for gpu in (2, 3)]
    found = kernels(tmp_path, kernel(1, 2), GENERIC_EVENTS=samples, TARGET_INFO_CUDA_DEVICE=[cuda])
    assert rows(found.table("counters"), "time_ns", "device") == [(3, 0)]


@pytest.mark.parametrize(
    ("recorded", "name"),
    [
        ("SM Active", "SM Active"),
        ("SMs Active [Throughput %]", "SM Active"),
        ("Tensor Active [Throughput %]", "Tensor Active"),
        ("DRAM Write Throughput", "DRAM Write"),
        ("VRAM Bandwidth", "DRAM"),
        ("DRAM Read Bandwidth [MB/s]", None),
        ("Compute Warps in Flight", None),
    ],
)
def test_a_counter_has_one_name_in_all_versions(recorded, name):
    assert counter(recorded) == name


def graph_launch(start, correlation):
    return {"start": start, "end": start + 1, "globalTid": THREAD, "correlationId": correlation, "nameId": 2}


def lost(tmp_path, *found, launches):
    """Return the findings about launches in an export whose work is not in it."""
    strings = ("mm", "cudaGraphLaunch_v10000", "cudaLaunchKernel_v7000")
    content = kernels(tmp_path, *found, strings=strings, CUPTI_ACTIVITY_KIND_RUNTIME=launches)
    assert codes(content) == []
    return list(lost_work(derived(content, "completeness").row(0, named=True), Subject("x.sqlite", None)))


def test_a_graph_launch_without_kernels_is_an_error(tmp_path):
    (finding,) = lost(tmp_path, kernel(1, 2), launches=[graph_launch(0, 50), graph_launch(3, 51)])
    assert (finding.code, finding.severity, finding.count) == ("cuda-graphs-hide-kernels", "error", 2)


def test_a_graph_whose_kernels_were_recorded_hides_nothing(tmp_path):
    nodes = [kernel(start, start + 1, correlationId=50, graphNodeId=start) for start in (10, 20)]
    assert lost(tmp_path, *nodes, launches=[graph_launch(0, 50)]) == []


@pytest.mark.parametrize(
    ("missing", "expected"),
    [(0, []), (1, ["kernels-missing"]), (10, ["kernels-missing"]), (11, ["kernels-lost"])],
)
def test_launches_without_kernel_are_reported(tmp_path, missing, expected):
    calls = [graph_launch(2 * n, n + 1) | {"nameId": 3} for n in range(100)]
    ran = [kernel(1_000 * (n + 1), 1_000 * (n + 2), correlationId=n + 1) for n in range(missing, 100)]
    assert [finding.code for finding in lost(tmp_path, *ran, launches=calls)] == expected


@pytest.mark.parametrize(
    ("said", "owner", "expected"),
    [
        ("Not all CUDA events might have been collected.", OWNER, ["events-dropped"]),
        ("Not all CUDA events might have been collected.", OWNER + (1 << 24), []),
        ("Not all OpenGL events might have been collected.", OWNER, []),
        ("Profiling has started.", OWNER, []),
    ],
)
def test_what_the_profiler_lost_of_a_process_is_reported(tmp_path, said, owner, expected):
    diagnosis = {"severity": 2, "text": said, "globalPid": owner}
    assert codes(kernels(tmp_path, kernel(1, 2), DIAGNOSTIC_EVENT=[diagnosis])) == expected


def test_an_export_without_session_start_has_times_of_its_own(tmp_path):
    found = kernels(tmp_path, kernel(5, 6), TARGET_INFO_SESSION_START_TIME=[])
    assert found.table("kernels")["start_ns"].to_list() == [5]
    assert codes(found) == ["clock-unanchored"]


def test_an_export_that_is_normalized_has_the_session_start_in_its_times(tmp_path):
    said = {"name": "EXPORT_PARAM_TIME_NORMALIZE", "value": "true"}
    found = kernels(tmp_path, kernel(START_NS + 5, START_NS + 6), META_DATA_EXPORT=[said])
    assert rows(found.table("kernels"), "start_ns") == [(5,)]


def test_an_empty_export_has_no_events(tmp_path):
    found = read(tmp_path, {})
    assert codes(found) == ["no-events"]
    assert found.rank is None


def test_the_number_of_a_host_is_no_part_of_a_process_id(tmp_path):
    owner = (HOST << 1) + (PID << 24)
    found = read(tmp_path, {"NVTX_EVENTS": [mark(1, 2, "a", globalTid=owner + 9)]})
    assert rows(found.table("annotations"), "process", "thread") == [(PID, 9)]


@pytest.mark.parametrize(
    "name",
    [
        "Step {}",
        "iteration{}",
        "Iteration: {}",
        "train_step_{}",
        "global_step_{}",
        "Step[{}]",
        "step {}/100",
        "## step {} ##",
    ],
)
def test_steps_are_known_by_the_names_that_people_give_them(tmp_path, name):
    found = nvtx(tmp_path, *(mark(10 * n, 10 * n + 10, name.format(n)) for n in (3, 4)))
    assert derived(found, "steps")["step"].to_list() == [3, 4]


@pytest.mark.parametrize(
    "name", ["micro_step {}", "steps {}", "epoch {}", "forward step {}", "step {} warmup", "step {}.5"]
)
def test_other_numbered_ranges_are_no_steps(tmp_path, name):
    found = nvtx(tmp_path, *(mark(10 * n, 10 * n + 10, name.format(n)) for n in (3, 4)))
    assert set(derived(found, "steps")["source"]) == {"whole trace"}
