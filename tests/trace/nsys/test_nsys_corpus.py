"""The reader on real exports, against counts by plain SQL."""

import gzip
import sqlite3
from functools import cache

import pytest
from exports import content, derived

from ccl_bench.trace.formats.nsys import recognises
from ccl_bench.trace.formats.nsys.processes import processes

TWO_GPUS = "two-gpu-sendrecv/mfu_2gpu_before.sqlite"
TINY = "tiny/rtx3080_tiny.sqlite"
ATTENTION = "nvtx-attention/result_2_7B_nvtx.sqlite"
GRAPHS = "cuda-graphs/result_2_7B_compile_ro.sqlite"
JACOBI = "jacobi-mpi/rank3_report1.sqlite.gz"

every_file = pytest.mark.parametrize("file", [TWO_GPUS, TINY, ATTENTION, GRAPHS, JACOBI])


@pytest.fixture
def place(corpus, file):
    return corpus / "nsys" / file


@pytest.fixture
def sql(place, tmp_path):
    """Return a function that gives the one number that a query comes to, 0 where a table is absent."""
    if place.suffix == ".gz":
        copy = tmp_path / "copy.sqlite"
        copy.write_bytes(gzip.decompress(place.read_bytes()))
        place = copy
    database = sqlite3.connect(f"file:{place}?mode=ro&immutable=1", uri=True)

    def number(query):
        try:
            return database.execute(query).fetchone()[0] or 0
        except sqlite3.OperationalError as error:
            assert "no such table" in str(error)
            return 0

    yield number
    database.close()


@cache
def every_trace(place):
    return [content(place, process.id) for process in processes(place)]


def height(traces, table):
    return sum(trace.table(table).height for trace in traces)


@every_file
def test_each_event_is_in_the_tables_once(place, sql):
    traces = every_trace(place)
    copies = [f"SELECT count(*) FROM CUPTI_ACTIVITY_KIND_{kind}" for kind in ("MEMCPY", "MEMSET")]
    assert height(traces, "kernels") == sql("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_KERNEL")
    assert height(traces, "memcpy") == sum(map(sql, copies))
    assert height(traces, "launches") == sql("SELECT count(*) FROM CUPTI_ACTIVITY_KIND_RUNTIME")
    assert height(traces, "annotations") == sql(
        "SELECT count(*) FROM NVTX_EVENTS WHERE eventType IN (59, 60)"
    )


@every_file
def test_times_and_bytes_are_the_recorded_ones(place, sql):
    traces = every_trace(place)
    start = sql("SELECT utcEpochNs FROM TARGET_INFO_SESSION_START_TIME")
    kernels = [trace.table("kernels") for trace in traces]
    assert min(table["start_ns"].min() for table in kernels) == start + sql(
        "SELECT min(start) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    )
    assert sum((table["end_ns"] - table["start_ns"]).sum() for table in kernels) == sql(
        "SELECT sum(end - start) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    )
    moved = [f"SELECT sum(bytes) FROM CUPTI_ACTIVITY_KIND_{kind}" for kind in ("MEMCPY", "MEMSET")]
    assert sum(trace.table("memcpy")["bytes"].sum() for trace in traces) == sum(map(sql, moved))


@every_file
def test_every_kernel_has_its_name_and_shape(place, sql):
    for trace in every_trace(place):
        kernels = trace.table("kernels")
        assert not kernels.filter(kernels["name"].cast(str) == "(unnamed kernel)").height
        assert kernels["grid_blocks"].null_count() == 0
        assert kernels["block_threads"].min() >= 1
    assert sql("SELECT sum(gridX * gridY * gridZ) FROM CUPTI_ACTIVITY_KIND_KERNEL") == sum(
        trace.table("kernels")["grid_blocks"].sum() for trace in every_trace(place)
    )


@every_file
def test_it_is_recognised_by_its_first_bytes(place):
    opened = gzip.open if place.suffix == ".gz" else open
    with opened(place, "rb") as stream:
        assert recognises(stream.read(256 << 10))


@pytest.mark.parametrize("file", [TWO_GPUS])
def test_two_processes_of_one_report_are_two_traces(place):
    first, second = processes(place)
    assert (first.pid, first.devices, first.local_rank) == (144, (0,), 0)
    assert (second.pid, second.devices, second.local_rank) == (145, (1,), 1)
    assert [process.rank for process in (first, second)] == [None, None]
    traces = every_trace(place)
    assert [trace.table("kernels").height for trace in traces] == [1993, 2017]
    assert height(traces, "kernels") == 4010
    assert height(traces, "annotations") == 19_118


@pytest.mark.parametrize("file", [TWO_GPUS])
def test_a_send_recv_kernel_is_the_all_to_all_that_pytorch_called(place, sql):
    traces = every_trace(place)
    calls = [derived(trace, "calls") for trace in traces]
    assert [table.height for table in calls] == [33, 33]
    named = [
        trace.table("kernels")["name"].cast(str).str.starts_with("ncclDevKernel_SendRecv") for trace in traces
    ]
    assert sum(names.sum() for names in named) == 66
    inside = """SELECT count(DISTINCT k.rowid) FROM CUPTI_ACTIVITY_KIND_KERNEL k
        JOIN StringIds s ON s.id = k.shortName AND s.value LIKE '%SendRecv%'
        JOIN CUPTI_ACTIVITY_KIND_RUNTIME r ON r.correlationId = k.correlationId
            AND r.globalTid >> 24 = k.globalPid >> 24
        JOIN NVTX_EVENTS n ON n.globalTid = r.globalTid AND r.start BETWEEN n.start AND n."end"
        WHERE n.text LIKE 'nccl:all_to_all%'"""
    assert (
        sum(table.filter(table["collective"] == "all_to_all").height for table in calls) == sql(inside) == 64
    )


@pytest.mark.parametrize("file", [TWO_GPUS])
def test_operators_are_known_by_their_name_alone(place):
    operators = every_trace(place)[0].table("cpu_ops")["name"].cast(str)
    assert (operators == "aten::copy_").sum() > 100
    assert not operators.str.contains("op_id").any()


@pytest.mark.parametrize("file", [GRAPHS])
def test_kernels_in_graphs_are_reported_as_hidden(place):
    (trace,) = every_trace(place)
    hidden = next(finding for finding in trace.findings if finding.code == "cuda-graphs-hide-kernels")
    assert (hidden.severity, hidden.count) == ("error", 10)
    assert "kernels" in hidden.touches
    assert "7.811 s" in hidden.message


@pytest.mark.parametrize("file", [ATTENTION, TINY])
def test_blocks_are_counted_against_the_multiprocessors_of_the_device(place):
    (trace,) = every_trace(place)
    (device,) = trace.table("devices").to_dicts()
    kernels = trace.table("kernels")
    assert (kernels["blocks_per_sm"] * device["sms"] - kernels["grid_blocks"]).abs().max() < 1e-6
    assert device["sms"] == {"NVIDIA A100-SXM4-80GB": 108, "NVIDIA GeForce RTX 3080": 68}[device["name"]]


@pytest.mark.parametrize("file", [JACOBI])
def test_rank_and_world_size_are_those_of_open_mpi_and_not_of_slurm(place):
    (trace,) = every_trace(place)
    assert (trace.rank, trace.world_size) == (3, 8)
    mpi = trace.table("collectives")
    assert dict(mpi.group_by("name").len().iter_rows()) == {
        "MPI_Allreduce": 1001,
        "MPI_Sendrecv": 2000,
        "MPI_Barrier": 1,
    }
    kinds = trace.table("memcpy").group_by("kind").len()
    assert dict(kinds.iter_rows()) == {"DtoH": 2002, "DtoD": 2000, "PtoP": 1000, "memset": 2004}


@pytest.mark.parametrize("file", [ATTENTION])
def test_no_secret_of_the_environment_gets_into_the_tables(place):
    (trace,) = every_trace(place)
    assert set(trace.attributes) == {"nsys_version", "nsys_schema_version", "cuda_driver_version"}
