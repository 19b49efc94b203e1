"""Files of rocprofv3, as `generateJSON.cpp` and `serialization.hpp` of ROCprofiler-SDK write them."""

import json
import sqlite3
from pathlib import Path

import pytest

from ccl_bench.base.errors import InputError
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result import Result
from ccl_bench.run import open_run
from ccl_bench.trace.cache import read_content
from ccl_bench.trace.content import TraceContent
from ccl_bench.trace.discovery import discover_traces
from ccl_bench.trace.formats import load

Json = dict[str, object]

BOOT = 682_678_344_984_459
"""Times count from the start of the host, as in the manual's sample of `init_time`."""

KINDS = [
    {"kind": "NONE", "operations": []},
    {"kind": "HSA_CORE_API", "operations": ["hsa_init", "hsa_signal_store_screlease"]},
    {"kind": "HIP_RUNTIME_API", "operations": ["hipLaunchKernel", "hipExtLaunchKernel", "hipMemcpyAsync"]},
    {
        "kind": "MARKER_CORE_RANGE_API",
        "operations": ["roctxMarkA", "roctxThreadRangeA", "roctxProcessRangeA"],
    },
    {"kind": "MEMORY_COPY", "operations": ["NONE", "HOST_TO_HOST", "HOST_TO_DEVICE", "DEVICE_TO_HOST"]},
    {"kind": "KERNEL_DISPATCH", "operations": ["NONE", "ENQUEUE", "COMPLETE"]},
    {"kind": "RCCL_API", "operations": ["ncclAllGather", "ncclAllReduce", "ncclGroupEnd", "ncclCommDestroy"]},
]
HSA, HIP, MARKER, COPY, KERNEL, RCCL = range(1, 7)
CPU, GPU0, GPU1 = 11, 12, 13


def agent(handle: int, kind: int, node: int, **more: object) -> Json:
    return {"size": 312, "id": {"handle": handle}, "type": kind, "node_id": node, "name": "gfx942"} | more


MI300 = {
    "product_name": "AMD Instinct MI300X",
    "cu_count": 304,
    "max_waves_per_cu": 32,
    "wave_front_size": 64,
    "mem_banks": [{"heap_type": 1, "size_in_bytes": 1 << 37}],
}
AGENTS = [
    agent(CPU, 1, 0, mem_banks=[{"heap_type": 0, "size_in_bytes": 1 << 40}]),
    agent(GPU1, 2, 2, **MI300),
    agent(GPU0, 2, 1, **MI300),
]
NAMES = [
    "gemm(float*)",
    "ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)",
    "add(float*) [clone .kd]",
]
SYMBOLS = [{"kernel_id": 0}] + [
    {"kernel_id": i, "kernel_name": f"_Z{i}.kd", "formatted_kernel_name": name, "arch_vgpr_count": 16 * i}
    for i, name in enumerate(NAMES, 1)
]


def ran(kind: int, operation: int, start: float, length: float, call: int, **more: object) -> Json:
    """Return a record at `start`, us."""
    begin = BOOT + round(start * 1000)
    times = {"start_timestamp": begin, "end_timestamp": begin + round(length * 1000)}
    place = {"size": 64, "kind": kind, "operation": operation, "thread_id": 70}
    return place | times | {"correlation_id": {"internal": call, "external": 0}} | more


def kernel(which: int, start: float, length: float, call: int, stream: int = 1, device: int = GPU0) -> Json:
    info = {
        "agent_id": {"handle": device},
        "queue_id": {"handle": 5},
        "kernel_id": which,
        "group_segment_size": 1024,
        "workgroup_size": {"x": 256, "y": 1, "z": 1},
        "grid_size": {"x": 256 * 152, "y": 1, "z": 1},
    }
    return ran(KERNEL, 2, start, length, call, dispatch_info=info, stream_id={"handle": stream})


def copy(source: int, destination: int, start: float, call: int) -> Json:
    ends = {"src_agent_id": {"handle": source}, "dst_agent_id": {"handle": destination}, "bytes": 4096}
    return ran(COPY, 2, start, 50, call, stream_id={"handle": 3}, **ends)


def records() -> Json:
    """Return a step of 1000 us: compute 100..300 and 400..500, an all-reduce 250..450, a copy 600..650.

    So compute is 300 us, communication 200, both 100, and the device works for 450 us.
    """
    launched = [(10, 1, 0), (31, 2, 1), (50, 3, 0), (70, 4, 2)]
    return {
        "kernel_dispatch": [
            kernel(1, 100, 200, 1),
            kernel(2, 250, 200, 2, stream=2),
            kernel(3, 400, 100, 3),
        ],
        "hip_api": [ran(HIP, operation, start, 4, call) for start, call, operation in launched],
        "hsa_api": [ran(HSA, 1, 11, 1, 8)],
        "marker_api": [ran(MARKER, 1, 0, 1000, 100), ran(MARKER, 0, 5, 0, 101)],
        "rccl_api": [ran(RCCL, 1, 30, 10, 20), ran(RCCL, 2, 42, 1, 21)],
        "memory_copy": [copy(CPU, GPU0, 600, 4)],
    }


def document(found: Json | None = None) -> Json:
    said = [{"key": 100, "value": "step 5"}, {"key": 101, "value": "a moment"}]
    process = {
        "metadata": {"node": {"hostname": "n1"}, "pid": 70, "init_time": BOOT, "config": {"x": [1]}},
        "agents": AGENTS,
        "counters": [],
        "strings": {"callback_records": [], "buffer_records": KINDS, "marker_api": said},
        "code_objects": [],
        "kernel_symbols": SYMBOLS,
        "host_functions": [],
        "summary": [],
        "callback_records": {"counter_collection": []},
        "buffer_records": records() if found is None else found,
    }
    return {"rocprofiler-sdk-tool": [process]}


def written(folder: Path, content: object, name: str = "out_rank0_results.json") -> Path:
    path = folder / name
    path.write_text(json.dumps(content, indent=1))
    return path


def content(folder: Path, said: object) -> TraceContent:
    (trace,) = discover_traces(written(folder, said)).traces
    assert (trace.form.name, trace.rank) == ("rocprof", 0)
    return read_content(trace, trace.form.tables, use_cache=False)[0]


def results(folder: Path, *names: str) -> list[Result]:
    return evaluate(open_run(folder), names, jobs=1, use_cache=False)


def test_records_become_tables(tmp_path: Path) -> None:
    found = content(tmp_path, document())
    kernels = found.table("kernels").with_columns(start_ns=found.table("kernels")["start_ns"] - BOOT)
    assert kernels.select("start_ns", "name", "device", "stream", "correlation").rows() == [
        (100_000, "gemm(float*)", 0, 1, 1),
        (250_000, NAMES[1], 0, 2, 2),
        (400_000, "add(float*)", 0, 1, 3),
    ]
    sizes = ("grid_blocks", "block_threads", "blocks_per_sm", "warps_per_sm", "registers")
    assert kernels.select(*sizes, "shared_memory_bytes").row(0) == (152, 256, 0.5, 2.0, 16, 1024)
    assert found.table("memcpy").select("kind", "device", "bytes", "correlation").rows() == [
        ("HtoD", 0, 4096, 4)
    ]
    assert found.table("launches").select("name", "correlation", "process", "thread").rows() == [
        ("hipLaunchKernel", 1, 70, 70),
        ("hipExtLaunchKernel", 2, 70, 70),
        ("hipLaunchKernel", 3, 70, 70),
        ("hipMemcpyAsync", 4, 70, 70),
    ]
    assert found.table("annotations")["name"].to_list() == ["step 5"]
    assert found.table("collectives").select("source", "name").rows() == [("library", "ncclAllReduce")]
    known = ("device", "name", "memory_bytes", "sms", "threads_per_sm")
    assert found.table("devices").select(known).rows() == [
        (number, "AMD Instinct MI300X", 1 << 37, 304, 2048) for number in (0, 1)
    ]
    assert [finding.code for finding in found.findings] == ["clock-unanchored"]


def test_numbers_of_a_run(tmp_path: Path) -> None:
    written(tmp_path, document())
    names = ("gpu_busy", "comm_comp_overlap", "exposed_communication_time", "coll_call_num", "sm")
    busy, overlap, exposed, calls, sm = results(tmp_path, *names)
    assert busy.value == pytest.approx(45)
    assert overlap.value == pytest.approx(50)
    assert exposed.value == pytest.approx(100e-6)
    assert calls.value == 1
    assert sm.value == pytest.approx(100 * (150 * 0.5 + 50 * 1.0 + 100 * 0.5 + 50 * 1.0 + 50 * 0.5) / 1000)
    assert busy.window == "numbered range"


def test_a_generic_kernel_is_what_the_call_around_its_launch_carries_out(tmp_path: Path) -> None:
    written(tmp_path, document())
    (calls,) = results(tmp_path, "coll_call_num")
    assert calls.details["per_collective"] == {"all_reduce": 1}
    grouped = records() | {"rccl_api": [ran(RCCL, 2, 30, 10, 21)]}
    written(tmp_path, document(grouped))
    (calls,) = results(tmp_path, "coll_call_num")
    assert calls.details["per_collective"] == {"other_communication": 1}


@pytest.mark.parametrize(
    ("source", "destination", "kind", "device"),
    [
        (GPU0, CPU, "DtoH", 0),
        (GPU0, GPU1, "PtoP", 1),
        (GPU1, GPU1, "DtoD", 1),
        (CPU, CPU, "HtoH", None),
        (99, GPU0, "other", 0),
    ],
)
def test_copies_are_from_agent_to_agent(
    tmp_path: Path, source: int, destination: int, kind: str, device: int | None
) -> None:
    found = content(tmp_path, document({"memory_copy": [copy(source, destination, 1, 1)]}))
    assert found.table("memcpy").select("kind", "device").rows() == [(kind, device)]


def test_queues_are_streams_where_streams_were_not_recorded(tmp_path: Path) -> None:
    old = [kernel(1, 1, 1, 1, stream=0), kernel(1, 3, 1, 2, stream=0)]
    old[1].pop("stream_id")
    assert content(tmp_path, document({"kernel_dispatch": old})).table("kernels")["stream"].to_list() == [
        5,
        5,
    ]


def test_work_that_hsa_started_has_its_launch_there(tmp_path: Path) -> None:
    found = {
        "kernel_dispatch": [kernel(1, 20, 5, 8)],
        "hsa_api": [ran(HSA, 1, 11, 1, 8), ran(HSA, 0, 1, 1, 7)],
    }
    launches = content(tmp_path, document(found)).table("launches")
    assert launches.select("name", "correlation").rows() == [("hsa_signal_store_screlease", 8)]


@pytest.mark.parametrize("odd", [2**63, 2**64 - 1])
def test_numbers_that_fit_no_column_are_unknown(tmp_path: Path, odd: int) -> None:
    found = kernel(1, 1, 1, 1)
    found["dispatch_info"] |= {"queue_id": {"handle": odd}, "group_segment_size": odd}  # type: ignore[operator]
    found["stream_id"] = {"handle": 0}
    row = content(tmp_path, document({"kernel_dispatch": [found]})).table("kernels").row(0, named=True)
    assert (row["stream"], row["shared_memory_bytes"]) == (None, None)


def test_its_own_configuration_is_no_trace(tmp_path: Path) -> None:
    said = {"rocprofiler-sdk-tool": [{"metadata": {"pid": 1, "config": {}, "environment": {"A": "b"}}}]}
    assert discover_traces(written(tmp_path, said, "70_config.json")).traces == []


@pytest.mark.parametrize("processes", [[], [{"agents": []}, {"agents": []}]])
def test_another_number_of_processes_is_refused(tmp_path: Path, processes: list[Json]) -> None:
    path = written(tmp_path, {"rocprofiler-sdk-tool": processes, "agents": 1})
    form = load().get("rocprof")
    assert form.read is not None
    with path.open("rb") as stream, pytest.raises(InputError, match=f"holds {len(processes)} processes"):
        form.read(stream, path.name)


def test_a_damaged_file_is_unreadable_and_says_so(tmp_path: Path) -> None:
    path = written(tmp_path, document())
    path.write_text(path.read_text()[:-40])
    (busy,) = results(tmp_path, "gpu_busy")
    assert (busy.status, busy.reason) == ("not_measurable", "no trace of the run could be read")
    assert "its records cannot be read" in busy.fix


def test_nothing_recorded_is_a_finding(tmp_path: Path) -> None:
    assert [finding.code for finding in content(tmp_path, document({})).findings] == ["no-events"]


GUID = "00001eca_d4de_74de_b70e_c34ecf8c3a87"
DATA = "extdata JSONB DEFAULT '{}' NOT NULL"
LAYOUT = {
    "metadata": "id INTEGER PRIMARY KEY, tag TEXT, value TEXT",
    "string": "id INTEGER PRIMARY KEY, guid TEXT, string TEXT NOT NULL UNIQUE",
    "info_process": "id INTEGER PRIMARY KEY, pid INTEGER, environment JSONB DEFAULT '{}' NOT NULL",
    "info_agent": f"id INTEGER PRIMARY KEY, type TEXT, type_index INTEGER, product_name TEXT, {DATA}",
    "info_kernel_symbol": "id INTEGER PRIMARY KEY, kernel_name TEXT, display_name TEXT, "
    "arch_vgpr_count INTEGER",
    "event": f"id INTEGER PRIMARY KEY, category_id INTEGER, stack_id INTEGER, {DATA}",
    "region": "id INTEGER PRIMARY KEY, tid INTEGER, start BIGINT, end BIGINT, name_id INTEGER, "
    f"event_id INTEGER, {DATA}",
    "kernel_dispatch": "id INTEGER PRIMARY KEY, tid INTEGER, agent_id INTEGER, kernel_id INTEGER, "
    "queue_id INTEGER, stream_id INTEGER, start BIGINT, end BIGINT, group_segment_size INTEGER, "
    "workgroup_size_x INTEGER, workgroup_size_y INTEGER, workgroup_size_z INTEGER, "
    "grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER, event_id INTEGER",
    "memory_copy": "id INTEGER PRIMARY KEY, tid INTEGER, start BIGINT, end BIGINT, dst_agent_id INTEGER, "
    "src_agent_id INTEGER, size INTEGER, stream_id INTEGER, event_id INTEGER",
}
"""Columns of schema 3 that are read, as `rocpd_tables.sql` declares them."""


WHERE = "track_id INTEGER, start_id INTEGER, end_id INTEGER"
NEWER = LAYOUT | {
    "timestamp": "id INTEGER PRIMARY KEY, value BIGINT",
    "track": "id INTEGER PRIMARY KEY, tid INTEGER, agent_id INTEGER, queue_id INTEGER, stream_id INTEGER",
    "info_category": "id INTEGER PRIMARY KEY, name TEXT",
    "region": f"id INTEGER PRIMARY KEY, {WHERE}, name_id INTEGER, event_id INTEGER, {DATA}",
    "kernel_dispatch": f"id INTEGER PRIMARY KEY, {WHERE}, kernel_id INTEGER, group_segment_size INTEGER, "
    "workgroup_size_x INTEGER, workgroup_size_y INTEGER, workgroup_size_z INTEGER, "
    "grid_size_x INTEGER, grid_size_y INTEGER, grid_size_z INTEGER, event_id INTEGER",
    "memory_copy": f"id INTEGER PRIMARY KEY, {WHERE}, dst_agent_id INTEGER, src_agent_id INTEGER, "
    "size INTEGER, event_id INTEGER",
}
"""Columns of schema 4, which keeps times, places and categories in tables of their own."""


class Rocpd:
    """What `generateRocpd.cpp` writes of the same process."""

    def __init__(
        self, path: Path, guid: str = GUID, layout: dict[str, str] = LAYOUT, **environment: str
    ) -> None:
        self.guid = guid
        self.texts: dict[str, int] = {}
        self.categories: dict[str, int] = {}
        self.is_newer = "timestamp" in layout
        self.events = self.times = self.tracks = 0
        self.database = sqlite3.connect(path)
        for name, columns in layout.items():
            self.database.execute(f"CREATE TABLE rocpd_{name}_{guid} ({columns})")
        self.add("info_process", id=70, pid=70, environment=json.dumps(environment))
        node = {CPU: 0, GPU0: 1, GPU1: 2}
        for entry in AGENTS:
            number = node[entry["id"]["handle"]]  # type: ignore[index]
            place = {"type": "GPU", "type_index": number - 1} if number else {"type": "CPU", "type_index": 0}
            product = entry.get("product_name", "EPYC")
            self.add("info_agent", id=number, product_name=product, extdata=json.dumps(entry), **place)
        for symbol in SYMBOLS[1:]:
            names = {"kernel_name": symbol["kernel_name"], "display_name": symbol["formatted_kernel_name"]}
            self.add(
                "info_kernel_symbol",
                id=symbol["kernel_id"],
                arch_vgpr_count=symbol["arch_vgpr_count"],
                **names,
            )
        for kind, rows in records().items():
            for row in rows:  # type: ignore[attr-defined]
                self.record(kind, row, node)
        for text, number in self.texts.items():
            self.add("string", id=number, guid=guid, string=text)
        for name, number in self.categories.items():
            self.add("info_category", id=number, name=name)
        self.database.commit()
        self.database.close()

    def add(self, table: str, **values: object) -> None:
        marks = ",".join("?" * len(values))
        names = ",".join(values)
        self.database.execute(
            f"INSERT INTO rocpd_{table}_{self.guid} ({names}) VALUES ({marks})", [*values.values()]
        )

    def add_placed(self, table: str, **values: object) -> None:
        """Add a row with times and a place, in the layout of the database."""
        if self.is_newer:
            self.tracks += 1
            for end in ("start", "end"):
                self.times += 1
                self.add("timestamp", id=self.times, value=values.pop(end))
                values[f"{end}_id"] = self.times
            names = ("tid", "agent_id", "queue_id", "stream_id")
            self.add("track", id=self.tracks, **{name: values.pop(name, None) for name in names})
            values["track_id"] = self.tracks
        self.add(table, **values)

    def category(self, name: str) -> int:
        return (
            self.categories.setdefault(name, len(self.categories) + 1) if self.is_newer else self.text(name)
        )

    def text(self, text: str) -> int:
        return self.texts.setdefault(text, len(self.texts) + 1)

    def record(self, kind: str, row: Json, node: dict[int, int]) -> None:
        self.events += 1
        entry = KINDS[row["kind"]]  # type: ignore[call-overload]
        call = row["correlation_id"]["internal"]  # type: ignore[index]
        said = {100: "step 5", 101: "a moment"}.get(call)
        more = {"extdata": json.dumps({"message": said})} if said else {}
        self.add("event", id=self.events, category_id=self.category(entry["kind"]), stack_id=call, **more)
        times = {
            "tid": 70,
            "start": row["start_timestamp"],
            "end": row["end_timestamp"],
            "event_id": self.events,
        }
        stream = row.get("stream_id", {}).get("handle")  # type: ignore[attr-defined]
        if kind == "kernel_dispatch":
            info: dict = row["dispatch_info"]  # type: ignore[type-arg,assignment]
            sides = {f"{w}_size_{s}": info[f"{w}_size"][s] for w in ("workgroup", "grid") for s in "xyz"}
            work = {
                "agent_id": node[info["agent_id"]["handle"]],
                "kernel_id": info["kernel_id"],
                "stream_id": stream,
            }
            self.add_placed("kernel_dispatch", queue_id=5, group_segment_size=1024, **times, **sides, **work)
        elif kind == "memory_copy":
            ends = {f"{w}_agent_id": node[row[f"{w}_agent_id"]["handle"]] for w in ("src", "dst")}  # type: ignore[index]
            self.add_placed("memory_copy", size=row["bytes"], stream_id=stream, **ends, **times)
        else:
            self.add_placed("region", name_id=self.text(entry["operations"][row["operation"]]), **times)


@pytest.mark.parametrize("layout", [LAYOUT, NEWER], ids=["schema 3", "schema 4"])
def test_a_database_holds_what_the_json_holds(tmp_path: Path, layout: dict[str, str]) -> None:
    Rocpd(tmp_path / "70_results.db", layout=layout, RANK="3", WORLD_SIZE="8", SLURM_PROCID="0")
    (trace,) = discover_traces(tmp_path).traces
    assert (trace.form.name, trace.rank, trace.rank_source, trace.world_size) == ("rocpd", 3, "file", 8)
    found, _ = read_content(trace, trace.form.tables, use_cache=False)
    (tmp_path / "json").mkdir()
    expected = content(tmp_path / "json", document())
    for name in sorted(trace.form.tables):
        assert found.table(name).rows() == expected.table(name).rows(), name
    assert found.table("kernels").height == 3


def test_a_database_beside_its_json_is_not_read_twice(tmp_path: Path) -> None:
    Rocpd(tmp_path / "out_rank0_results.db")
    written(tmp_path, document())
    assert [trace.form.name for trace in discover_traces(tmp_path).traces] == ["rocprof"]


def test_processes_of_a_merged_database_are_traces_of_their_own(tmp_path: Path) -> None:
    for rank, guid in enumerate(("aaaa", "bbbb")):
        Rocpd(tmp_path / "merged.db", guid, RANK=str(rank))
    assert [(t.relative, t.rank) for t in discover_traces(tmp_path).traces] == [
        ("merged.db#aaaa", 0),
        ("merged.db#bbbb", 1),
    ]
    (busy,) = results(tmp_path, "gpu_busy")
    assert (busy.value, busy.ranks) == (pytest.approx(45), [0, 1])


def test_a_process_that_recorded_nothing_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "launcher_results.db"
    Rocpd(path, RANK="0")
    with sqlite3.connect(path) as database:
        for table in ("kernel_dispatch", "memory_copy", "region"):
            database.execute(f"DELETE FROM rocpd_{table}_{GUID}")
    database.close()
    assert discover_traces(path).traces == []


def test_a_database_of_another_layout_is_refused_with_what_to_do(tmp_path: Path) -> None:
    other = {
        name: columns.replace("start BIGINT, end BIGINT", "began INTEGER") for name, columns in LAYOUT.items()
    }
    path = tmp_path / "rank0_results.db"
    database = sqlite3.connect(path)
    for name, columns in other.items():
        database.execute(f"CREATE TABLE rocpd_{name}_{GUID} ({columns})")
    database.execute(f"INSERT INTO rocpd_kernel_dispatch_{GUID} (id) VALUES (1)")
    database.commit()
    database.close()
    (trace,) = discover_traces(path).traces
    with pytest.raises(InputError, match="an unknown layout") as refused:
        read_content(trace, trace.form.tables, use_cache=False)
    assert "--output-format json" in refused.value.fix


def test_a_cut_database_gives_what_is_whole_and_says_so(tmp_path: Path) -> None:
    path = tmp_path / "rank0_results.db"
    Rocpd(path)
    path.write_bytes(path.read_bytes()[:-6000])
    (trace,) = discover_traces(path).traces
    found, _ = read_content(trace, trace.form.tables, use_cache=False)
    assert {"file-truncated", "table-damaged"} & {finding.code for finding in found.findings}
