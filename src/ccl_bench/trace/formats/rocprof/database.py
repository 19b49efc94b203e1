"""Read rocprofv3's databases (rocpd) into the same records as its JSON.

`source/lib/output/generateRocpd.cpp` of ROCprofiler-SDK writes one process a file, in tables whose names end
in an identifier of it; `rocpd merge` puts several into one. Rows are joined by the process's own numbers: an
agent is its node, a thread its system's number, and `stack_id` of an event is the number of the call.
"""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.base.text import json_decoder
from ccl_bench.trace import sqlite
from ccl_bench.trace.formats import Identity, TracePart
from ccl_bench.trace.formats.rocprof.document import (
    GPU,
    Agent,
    Correlation,
    Dispatch,
    Handle,
    Metadata,
    RangeText,
    Record,
    RecordKind,
    Records,
    RocprofProcess,
    Size,
    Strings,
    Symbol,
)
from ccl_bench.trace.sqlite import Filter, absent_names, whole_file_findings

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.trace.sqlite import Database

_AGAIN = "record it again with rocprofv3 --output-format json, and let the program end by itself"
ROCPD = sqlite.DatabaseOrigin(signs=("rocpd_",), is_none="is no database of rocprofv3", fix=_AGAIN)

_KERNELS = "rocpd_kernel_dispatch_"
_PLACES = ("tid", "agent_id", "queue_id", "stream_id")
_TIMES = (("start", "end"), ("start_id", "end_id"))
"""Columns of the times of a row: themselves up to schema 3, numbers of rows of times since schema 4."""
_ONE_ROW = Filter(sql="1 LIMIT 1")
_RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
"""Variables in which launchers state the rank and the number of ranks, torch's first."""

_AGENT = json_decoder(Agent)


def open_rocpd(path: Path, file: str = "") -> AbstractContextManager[Database]:
    """Open a database; InputError if it is none that can be read."""
    return sqlite.open_database(path, file or str(path), ROCPD)


def parts(path: Path) -> list[TracePart]:
    """Return the processes in a database that recorded work or ranges."""
    with open_rocpd(path) as database:
        guids = [
            name.removeprefix(_KERNELS) for name in sorted(database.columns) if name.startswith(_KERNELS)
        ]
        with_work = [guid for guid in guids if _holds_something(database, guid)]
        return [
            TracePart(guid if len(with_work) > 1 else "", _identity(database, guid)) for guid in with_work
        ]


def _holds_something(database: Database, guid: str) -> bool:
    tables = (f"{_KERNELS}{guid}", f"rocpd_memory_copy_{guid}", f"rocpd_region_{guid}")
    return any(database.frame(table, {"id": "integer"}, _ONE_ROW).height for table in tables)


def _identity(database: Database, guid: str) -> Identity:
    """Return the rank and number of ranks that the environment of a process states."""
    environments = database.frame(f"rocpd_info_process_{guid}", {"environment": "text"})[
        "environment"
    ].drop_nulls()
    environment = _object(environments[0]) if environments.len() else {}
    return Identity(_first(environment, _RANK), _first(environment, _WORLD))


def _first(environment: dict[str, Any], names: tuple[str, ...]) -> int | None:
    texts = (str(environment[name]) for name in names if name in environment)
    return next((int(text) for text in texts if text.isdecimal() and len(text) < 8), None)


def _object(text: str | None) -> dict[str, Any]:
    """Return the object in JSON text; an empty one for anything else."""
    try:
        value = msgspec.json.decode(text or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def process_of(database: Database, part: str, file: str) -> RocprofProcess:
    """Return the process of a database that a part names, the only one without a name."""
    guids = [part] if part else [n.removeprefix(_KERNELS) for n in database.columns if n.startswith(_KERNELS)]
    with_work = [guid for guid in guids if part or _holds_something(database, guid)]
    if len(with_work) != 1:
        raise InputError(
            f"holds {len(with_work)} processes", where=file, fix="give the files as rocprofv3 wrote them"
        )
    return _RocpdReading(database, with_work[0], file).process()


class _RocpdReading:
    """The reading of one process."""

    def __init__(self, database: Database, guid: str, file: str) -> None:
        self.database = database
        self.guid = guid
        if not any(database.has(f"{_KERNELS}{guid}", "event_id", *times) for times in _TIMES):
            message = "is a database of rocprofv3 in an unknown layout"
            raise InputError(message, where=file, fix=_AGAIN)
        kinds = {"id": "integer", "category_id": "integer", "stack_id": "integer", "extdata": "text"}
        events = self.frame("event", kinds).drop_nulls("id").unique("id", keep="first", maintain_order=True)
        self.events = events.with_columns(category=self.categories(events["category_id"]))
        self.operations: dict[str, dict[str, int]] = defaultdict(dict)

    def frame(self, table: str, kinds: dict[str, str]) -> pl.DataFrame:
        """Return columns of a table of the process."""
        return self.database.frame(f"rocpd_{table}_{self.guid}", kinds)

    def texts(self, ids: pl.Series) -> pl.Series:
        """Return the text behind each number."""
        return self.database.strings(ids, f"rocpd_string_{self.guid}", "string")

    def categories(self, ids: pl.Series) -> pl.Series:
        """Return the name of each category, which has a table of its own since schema 4."""
        table = f"rocpd_info_category_{self.guid}"
        return self.database.strings(ids, table, "name") if table in self.database else self.texts(ids)

    def placed(self, table: str, *numbers: str) -> pl.DataFrame:
        """Return numbers of a table with its times and places, which since schema 4 are rows elsewhere."""
        elsewhere = ("start_id", "end_id", "track_id")
        rows = self.frame(table, dict.fromkeys((*numbers, "start", "end", *_PLACES, *elsewhere), "integer"))
        times = (
            self.frame("timestamp", {"id": "integer", "value": "integer"})
            .drop_nulls()
            .unique("id", keep="first", maintain_order=True)
        )
        for name in ("start", "end"):
            values = times.rename({"id": f"{name}_id", "value": "time"})
            joined = rows.join(values, on=f"{name}_id", how="left", maintain_order="left")
            rows = joined.with_columns(joined[name].fill_null(joined["time"])).drop("time")
        kinds = dict.fromkeys(("id", *_PLACES), "integer")
        tracks = (
            self.frame("track", kinds)
            .drop_nulls("id")
            .unique("id", keep="first", maintain_order=True)
            .rename({"id": "track_id"})
        )
        joined = rows.join(tracks, on="track_id", how="left", maintain_order="left", suffix="_of_track")
        columns = [joined[name].fill_null(joined[f"{name}_of_track"]) for name in _PLACES]
        return joined.with_columns(columns)

    def with_events(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Add to each row the category, number of the call and further data of its event."""
        columns = self.events.select("category", "stack_id", "extdata", event_id="id")
        return rows.join(columns, on="event_id", how="left", maintain_order="left")

    def process(self) -> RocprofProcess:
        """Return the process with all that is read of it."""
        regions = list(self.regions())
        by_kind: dict[str, list[Record]] = defaultdict(list)
        messages = []
        for category, record, message in regions:
            kind = next((kind for start, kind in _SERVICES.items() if category.startswith(start)), "")
            by_kind[kind].append(record)
            messages += [RangeText(record.correlation.internal, message)] if message else []
        records = Records(
            kernel_dispatch=list(self.kernels()),
            memory_copy=list(self.copies()),
            hip_api=by_kind["hip_api"],
            hsa_api=by_kind["hsa_api"],
            rccl_api=by_kind["rccl_api"],
            marker_api=by_kind["marker_api"],
        )
        pids = self.frame("info_process", {"pid": "integer"})["pid"].drop_nulls()
        kinds = [RecordKind(kind, list(operations)) for kind, operations in self.operations.items()]
        return RocprofProcess(
            metadata=Metadata(pids[0] if pids.len() else None),
            agents=list(self.agents()),
            strings=Strings(kinds, messages),
            kernel_symbols=list(self.symbols()),
            buffer_records=records,
        )

    def agents(self) -> Iterator[Agent]:
        """Yield the agents of the node; their properties are JSON beside them."""
        kinds = {
            "id": "integer",
            "type": "text",
            "type_index": "integer",
            "product_name": "text",
            "extdata": "text",
        }
        for number, kind, index, product, data in self.frame("info_agent", kinds).iter_rows():
            try:
                agent = _AGENT.decode(data or "{}")
            except (msgspec.DecodeError, UnicodeError, RecursionError):
                agent = Agent()
            agent.id, agent.node_id = Handle(-1 if number is None else number), number or 0
            agent.type = GPU if kind == "GPU" else 1
            agent.logical_node_type_id, agent.product_name = index, product or agent.product_name
            yield agent

    def symbols(self) -> Iterator[Symbol]:
        """Yield the kernels of the program."""
        kinds = {"id": "integer", "kernel_name": "text", "display_name": "text", "arch_vgpr_count": "integer"}
        for number, name, display_name, registers in self.frame("info_kernel_symbol", kinds).iter_rows():
            yield Symbol(number, name or "", display_name or "", registers)

    def kernels(self) -> Iterator[Record]:
        """Yield the dispatches."""
        sides = [f"{kind}_size_{side}" for kind in ("workgroup", "grid") for side in "xyz"]
        rows = self.placed("kernel_dispatch", "kernel_id", "group_segment_size", *sides, "event_id")
        for row in self.with_events(rows).iter_rows(named=True):
            block, grid = (Size(*(row[name] or 0 for name in sides[place : place + 3])) for place in (0, 3))
            yield Record(
                thread_id=row["tid"],
                correlation=Correlation(row["stack_id"] or 0),
                start=row["start"],
                end=row["end"],
                stream=Handle(row["stream_id"] or 0),
                dispatch=Dispatch(
                    Handle(_id_or_absent(row["agent_id"])),
                    Handle(row["queue_id"] or 0),
                    _id_or_absent(row["kernel_id"]),
                    row["group_segment_size"],
                    block,
                    grid,
                ),
            )

    def copies(self) -> Iterator[Record]:
        """Yield the copies."""
        rows = self.placed("memory_copy", "dst_agent_id", "src_agent_id", "size", "event_id")
        for row in self.with_events(rows).iter_rows(named=True):
            yield Record(
                thread_id=row["tid"],
                correlation=Correlation(row["stack_id"] or 0),
                start=row["start"],
                end=row["end"],
                stream=Handle(row["stream_id"] or 0),
                source=Handle(_id_or_absent(row["src_agent_id"])),
                destination=Handle(_id_or_absent(row["dst_agent_id"])),
                bytes=row["size"],
            )

    def regions(self) -> Iterator[tuple[str, Record, str]]:
        """Yield the category, record and message of each call or range."""
        rows = self.placed("region", "name_id", "event_id")
        events = self.with_events(rows.with_columns(name=self.texts(rows["name_id"])))
        for row in events.iter_rows(named=True):
            category, name = row["category"] or "", row["name"] or ""
            operations = self.operations[category]
            record = Record(
                kind=list(self.operations).index(category),
                operation=operations.setdefault(name, len(operations)),
                thread_id=row["tid"],
                correlation=Correlation(row["stack_id"] or 0),
                start=row["start"],
                end=row["end"],
            )
            message = _object(row["extdata"]).get("message") if category.startswith("MARKER") else None
            yield category, record, str(message or "")


_SERVICES = {"HIP_": "hip_api", "HSA_": "hsa_api", "RCCL_": "rccl_api", "MARKER_CORE": "marker_api"}
"""How categories begin → the records that their regions are."""


def _id_or_absent(number: int | None) -> int:
    """Return a number, or one that nothing has."""
    return -2 if number is None else number


def damage_findings(database: Database, file: str) -> Iterator[Finding]:
    """Yield the findings on unreadable parts of a database."""
    yield from whole_file_findings(database, file)
    yield from absent_names(database, file, ("kernels", "launches", "annotations"))
    for table, why in database.damage.items():
        yield Finding("table-damaged", "error", f"{table} is damaged: {why}", file)
