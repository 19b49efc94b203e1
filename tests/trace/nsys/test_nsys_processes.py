"""Which processes of a report are ranks, and which rank each is."""

import pytest
from exports import HOST, OWNER, PID, THREAD, content, export, kernel, mark, rows

from ccl_bench.base.errors import InputError
from ccl_bench.trace.formats.nsys.processes import processes

OTHER = OWNER + (1 << 24)


def found(tmp_path, **tables):
    return processes(export(tmp_path / "x.sqlite", tables))


def of(owner, device, start=1, **more):
    return kernel(start, start + 1, globalPid=owner, deviceId=device) | more


def test_a_process_with_device_work_is_a_rank_and_its_helpers_are_not(tmp_path):
    (process,) = found(
        tmp_path,
        CUPTI_ACTIVITY_KIND_KERNEL=[of(OWNER, 0)],
        NVTX_EVENTS=[mark(1, 2, "loader", globalTid=OTHER)],
        PROCESSES=[{"globalPid": OWNER, "pid": PID, "name": "python3"}],
    )
    assert (process.id, process.pid, process.name, process.devices) == (f"pid{PID}", PID, "python3", (0,))


def test_without_device_work_the_processes_with_ranges_are_ranks(tmp_path):
    marks = [
        mark(1, 2, "a"),
        mark(1, 2, "b", globalTid=OTHER),
        mark(3, None, "c", globalTid=OTHER + (1 << 24)),
    ]
    assert [process.pid for process in found(tmp_path, NVTX_EVENTS=marks)] == [PID, PID + 1]


def test_processes_with_a_device_each_have_a_local_rank_in_order_of_devices(tmp_path):
    ranks = found(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[of(OWNER, 5), of(OTHER, 2)])
    assert [(process.pid, process.local_rank, process.rank) for process in ranks] == [
        (PID + 1, 0, None),
        (PID, 1, None),
    ]


def test_processes_that_call_their_device_alike_have_no_local_rank(tmp_path):
    ranks = found(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[of(OWNER, 0), of(OTHER, 0)])
    assert [process.local_rank for process in ranks] == [None, None]


def test_a_copy_to_another_device_makes_no_trace_of_its_own(tmp_path):
    (process,) = found(
        tmp_path,
        CUPTI_ACTIVITY_KIND_KERNEL=[of(OWNER, 1)],
        CUPTI_ACTIVITY_KIND_MEMCPY=[of(OWNER, 0, bytes=1, copyKind=10)],
    )
    assert process.devices == (1,)


@pytest.fixture
def two_devices(tmp_path):
    """Write a report of one process that drives two devices."""
    call = {"start": 0, "end": 1, "globalTid": THREAD, "nameId": 2}
    return export(
        tmp_path / "x.sqlite",
        {
            "CUPTI_ACTIVITY_KIND_KERNEL": [of(OWNER, 0, 10), of(OWNER, 1, 20)],
            "CUPTI_ACTIVITY_KIND_MEMCPY": [of(OWNER, 4, 30, bytes=1, copyKind=1)],
            "CUPTI_ACTIVITY_KIND_RUNTIME": [call | {"correlationId": n} for n in (10, 20, 99)],
            "NVTX_EVENTS": [mark(0, 50, "step 0")],
        },
        ("mm", "cudaLaunchKernel"),
    )


def test_a_process_that_drives_several_devices_is_a_trace_for_each(two_devices):
    ids = [process.id for process in processes(two_devices)]
    assert ids == [f"pid{PID}-device0", f"pid{PID}-device1"]
    first, second = (content(two_devices, name) for name in ids)
    assert rows(first.table("kernels"), "start_ns", "device") == [(10, 0)]
    assert rows(second.table("kernels"), "start_ns", "device") == [(20, 1)]
    assert [part.table("annotations").height for part in (first, second)] == [1, 1]


def test_work_on_a_device_without_kernels_goes_with_the_first_trace(two_devices):
    first, second = (content(two_devices, process.id) for process in processes(two_devices))
    assert [part.table("memcpy")["device"].to_list() for part in (first, second)] == [[4], []]


def test_launches_go_with_the_device_of_their_work(two_devices):
    first, second = (content(two_devices, process.id) for process in processes(two_devices))
    assert first.table("launches")["correlation"].to_list() == [10, 99]
    assert second.table("launches")["correlation"].to_list() == [20, 99]


def test_several_processes_must_be_distinguished_by_whoever_reads(tmp_path):
    place = export(tmp_path / "x.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [of(OWNER, 0), of(OTHER, 1)]})
    with pytest.raises(InputError, match="several processes") as error:
        content(place)
    assert f"pid{PID}, pid{PID + 1}" in error.value.fix
    with pytest.raises(InputError, match="no process pid9"):
        content(place, "pid9")


def test_processes_of_two_hosts_may_share_a_process_id(tmp_path):
    elsewhere = OWNER + HOST
    ids = [
        process.id for process in found(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[of(OWNER, 0), of(elsewhere, 0)])
    ]
    assert len(set(ids)) == 2
    assert all(name.startswith(f"pid{PID}-host") for name in ids)


def test_mpi_shows_ranks(tmp_path):
    ranks = [{"globalTid": OWNER + 3, "rank": 6}, {"globalTid": OTHER + 3, "rank": 5}]
    two = found(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[of(OWNER, 0), of(OTHER, 1)], MPI_RANKS=ranks)
    assert [process.rank for process in two] == [6, 5]


def test_older_versions_show_the_rank_of_mpi_by_the_name_of_a_thread(tmp_path):
    named = mark(1, None, "MPI Rank 3", 39)
    (process,) = found(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[of(OWNER, 0)], NVTX_EVENTS=[named])
    assert process.rank == 3


def environment(*settings):
    return {
        "META_DATA_CAPTURE": [{"name": "PROCESS_0:ENVIRONMENT_VARIABLE", "value": text} for text in settings]
    }


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        (('RANK="3"', 'WORLD_SIZE="8"'), (3, 8)),
        (('OMPI_COMM_WORLD_RANK="2"', 'OMPI_COMM_WORLD_SIZE="4"', 'SLURM_PROCID="0"'), (2, 4)),
        (('PMIX_RANK="1"',), (1, None)),
        (('SLURM_PROCID="5"', 'SLURM_STEP_NUM_TASKS="8"'), (5, 8)),
        (('SLURM_PROCID="0"', 'SLURM_NTASKS="8"'), (None, None)),
        (('SLURM_PROCID="0"', 'SLURM_STEP_NUM_TASKS="1"'), (None, None)),
        (('RANK="9"', 'WORLD_SIZE="8"'), (None, None)),
        (('RANK="-1"', 'LOCAL_RANK="2"', 'MY_RANK="1"', 'PASSWORD="RANK=7"'), (None, None)),
    ],
)
def test_the_environment_of_the_command_shows_the_rank_of_a_single_process(tmp_path, settings, place):
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": [of(OWNER, 0)]} | environment(*settings)
    (process,) = found(tmp_path, **tables)
    assert (process.rank, process.world_size) == place


@pytest.mark.parametrize("separator", [";", "\0"])
def test_older_versions_keep_the_environment_in_one_text(tmp_path, separator):
    text = separator.join(["A=b", "RANK=1", "WORLD_SIZE=2", "C=d"])
    said = [{"name": "DeviceEnvironment", "value": text}]
    (process,) = found(tmp_path, CUPTI_ACTIVITY_KIND_KERNEL=[of(OWNER, 0)], TARGET_INFO_SYSTEM_ENV=said)
    assert (process.rank, process.world_size) == (1, 2)


def test_the_environment_of_a_launcher_is_not_that_of_its_ranks(tmp_path):
    tables = {"CUPTI_ACTIVITY_KIND_KERNEL": [of(OWNER, 0), of(OTHER, 1)]} | environment('RANK="0"')
    assert [process.rank for process in found(tmp_path, **tables)] == [None, None]
