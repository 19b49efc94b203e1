"""Rows of the raw tables from the operations of a device."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.dtypes import width_bytes
from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ccl_bench.trace.formats.xplane.devices import XlaDevice
    from ccl_bench.trace.formats.xplane.operations import OperationKind, Operations
    from ccl_bench.trace.hlo.instruction import Shape
    from ccl_bench.trace.hlo.program import HloProgram

_BYTE = "u8"
"""Element type of sizes in bytes."""

_DETAIL = re.compile(r"(?<!\w)(\w++):(\S+)")
_COPIES = {"H2D": "HtoD", "D2H": "DtoH", "D2D": "DtoD", "P2P": "PtoP", "H2H": "HtoH"}
_WARP = 32
"""Threads of a warp; XLA states no other size."""

_HOST_MEMORY = "S(5)"
"""How a layout says that an array lies in the host's memory."""


def kernel_rows(work: Operations, device: XlaDevice, units: int | None) -> pl.DataFrame:
    """Return the `kernels` rows of a device's work; `units` is its number of multiprocessors, if known."""
    times = _rows(work, device, lambda kind: not kind.is_copy)
    details = [dict(_DETAIL.findall(kind.details)) for kind in work.kinds]
    grid = [_product(detail.get("grid")) for detail in details]
    block = [_product(detail.get("block")) for detail in details]
    shared_memory = [
        [
            size
            for name in ("static_shared", "dynamic_shared", "group_mem")
            if (size := _whole(detail.get(name))) is not None
        ]
        for detail in details
    ]
    columns: dict[str, Sequence[object]] = {
        "name": [kind.name for kind in work.kinds],
        "collective": [kind.collective for kind in work.kinds],
        "grid_blocks": grid,
        "block_threads": block,
        "blocks_per_sm": [blocks / units if blocks and units else None for blocks in grid],
        "warps_per_sm": [
            blocks * threads / _WARP / units if blocks and threads and units else None
            for blocks, threads in zip(grid, block, strict=True)
        ],
        "occupancy_pct": [_percentage(detail.get("occ_pct")) for detail in details],
        "registers": [_whole(detail.get("regs")) for detail in details],
        "shared_memory_bytes": [sum(sizes) if sizes else None for sizes in shared_memory],
    }
    return _joined("kernels", times, columns)


def copy_rows(work: Operations, device: XlaDevice) -> pl.DataFrame:
    """Return the `memcpy` rows of a device's work."""
    times = _rows(work, device, lambda kind: kind.is_copy)
    sizes = []
    for kind in work.kinds:
        if kind.instruction is not None and kind.instruction.operands:
            sizes.append(_sum_bytes(kind.instruction.operands))
        else:
            sizes.append(_whole(dict(_DETAIL.findall(kind.details)).get("size")))
    return _joined("memcpy", times, {"kind": [_copy_kind(kind) for kind in work.kinds], "bytes": sizes})


def _rows(work: Operations, device: XlaDevice, holds: Callable[[OperationKind], bool]) -> pl.DataFrame:
    """Return times and places of the work whose kind holds, with the kind."""
    kind_rows = [place for place, kind in enumerate(work.kinds) if holds(kind)]
    table = pl.DataFrame(
        {
            "kind_row": work.kind,
            "start_ns": work.start_ns,
            "end_ns": work.end_ns,
            "stream": work.stream,
            "correlation": work.run,
        }
    ).with_columns(device=pl.lit(device.ordinal, dtype=pl.Int64))
    return table.filter(pl.col("kind_row").is_in(kind_rows))


def _joined(name: str, times: pl.DataFrame, columns: Mapping[str, Sequence[object]]) -> pl.DataFrame:
    """Return rows of a raw table: the columns of each, and those that all of a kind have in common."""
    table, rows = TABLES[name], times["kind_row"]
    of_kinds = {key: pl.Series(key, values, dtype=table.columns[key].type) for key, values in columns.items()}
    of_rows = {key: times[key] for key in table.columns if key in times.columns}
    return table.frame(of_rows | {key: values.gather(rows) for key, values in of_kinds.items()})


_DIGITS = 12
"""Most digits of a size: sums of sizes with more may not fit 64 bits."""


def _product(text: str | None) -> int | None:
    """Return the product of the sizes in a text such as `16,1,1`."""
    sizes = (text or "").split(",")
    if not all(size.isdecimal() and len(size) <= _DIGITS for size in sizes):
        return None
    product = math.prod(map(int, sizes))
    return product if 0 < product < 1 << 62 else None


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= _DIGITS else None


def _percentage(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= 100 else None


def _copy_kind(kind: OperationKind) -> str:
    if kind.instruction is not None and kind.instruction.kind == "copy":
        # The first array of the result is where the copy goes.
        before, _, after = kind.details.partition(f" {kind.instruction.opcode}(")
        first = re.search(r"\w+\[[^\]]*\](\{[^}]*\})?", before)
        to_host = bool(first and _HOST_MEMORY in (first[1] or ""))
        if to_host == (_HOST_MEMORY in after):
            return "DtoD"
        return "DtoH" if to_host else "HtoD"
    if kind.name == "memset":
        return "memset"
    text = f"{kind.name} {kind.details}"
    return next(
        (copy_kind for spelling, copy_kind in _COPIES.items() if spelling in text or copy_kind in text),
        "other",
    )


def _sum_bytes(shapes: Sequence[Shape]) -> int | None:
    """Return the bytes of arrays; None if one is of a type without a known width."""
    try:
        return sum(round(shape.elements * width_bytes(shape.dtype)) for shape in shapes)
    except NotMeasurable:
        return None


class _CollectiveCall(NamedTuple):
    """Arguments of a collective on one device, the same in every run."""

    name: str | None = None
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    group_ranks: list[int] | None = None
    is_async: bool | None = None


def collective_rows(
    work: Operations, device: XlaDevice, programs: Mapping[int, HloProgram], ranks: Mapping[int, int]
) -> pl.DataFrame:
    """Return the `collectives` rows of a device's work; `ranks` maps global ids of devices to ranks."""
    times = _rows(work, device, lambda kind: kind.collective is not None)
    calls = [_call(kind, device, programs, ranks) for kind in work.kinds]
    columns = {name: [getattr(call, name) for call in calls] for name in _CollectiveCall._fields}
    rows = times.with_columns(source=pl.lit("kernel"), thread="stream")
    return _joined("collectives", rows, columns)


def _call(
    kind: OperationKind, device: XlaDevice, programs: Mapping[int, HloProgram], ranks: Mapping[int, int]
) -> _CollectiveCall:
    instruction, name = kind.instruction, kind.collective
    if name is None:
        return _CollectiveCall()
    program = programs.get(kind.program) if kind.program is not None else None
    members: list[int] | None = None
    if program is not None and device.global_id is not None:
        ids = tuple(device_id for replicas in program.devices for device_id in replicas)
        if instruction is not None:
            ids = program.members(instruction, device.global_id) or ()
        if ids and all(device_id in ranks for device_id in ids):
            members = sorted(ranks[device_id] for device_id in ids)
    size = len(members) if members is not None else None
    if instruction is None:
        return _CollectiveCall(name, group_size=size, group_ranks=members)
    dtype, sent = _elements(instruction.operands)
    _, received = _elements(instruction.results)
    if instruction.is_start or instruction.is_done or dtype == _BYTE:
        # The result of these holds more than what is received, which follows from what is sent.
        received = sent
        if name in ("all_gather", "reduce_scatter") and sent is not None:
            gathered = name == "all_gather"
            received = None if not size else sent * size if gathered else sent // size
    if name == "send_recv" and instruction.pairs and device.global_id is not None:
        number = program.number_of(instruction, device.global_id) if program else None
        received = sent
        if number is not None:  # a device that is in no pair sends or receives nothing
            received = sent if any(target == number for _, target in instruction.pairs) else 0
            sent = sent if any(source == number for source, _ in instruction.pairs) else 0
    return _CollectiveCall(name, dtype, sent, received, size, members, is_async=instruction.is_start)


def _elements(shapes: Sequence[Shape]) -> tuple[str | None, int | None]:
    """Return type and number of the elements of several arrays; bytes where their types differ."""
    kinds = {shape.dtype for shape in shapes}
    if len(kinds) == 1:
        return kinds.pop(), sum(shape.elements for shape in shapes)
    size = _sum_bytes(shapes) if shapes else None
    return (None, None) if size is None else (_BYTE, size)


def product_rows(work: Operations) -> pl.DataFrame:
    """Return the `products` rows: each product of matrices that an instruction computes, each time."""
    table = TABLES["products"]
    places = [(place, product) for place, kind in enumerate(work.kinds) for product in kind.products]
    if not places:
        return table.empty()
    of_kinds = pl.DataFrame(
        [(place, work.kinds[place].name, *product) for place, product in places],
        schema=["kind_row", "name", "batch", "rows", "inner", "columns", "dtype"],
        orient="row",
    )
    times = pl.DataFrame(
        {"kind_row": work.kind, "start_ns": work.start_ns, "end_ns": work.end_ns, "thread": work.stream}
    )
    rows = times.join(of_kinds, on="kind_row", how="inner", maintain_order="left")
    return table.frame({name: rows[name] for name in table.columns})


def operation_rows(work: Operations, programs: Mapping[int, HloProgram]) -> pl.DataFrame:
    """Return the `hlo_operations` rows: each instruction each time, with the compiler's counts."""
    times = pl.DataFrame({"kind_row": work.kind, "start_ns": work.start_ns, "end_ns": work.end_ns})
    of_programs = [place for place, kind in enumerate(work.kinds) if kind.program is not None]
    names = {number: program.name for number, program in programs.items()}
    flops = [kind.flops for kind in work.kinds]
    for place, kind in enumerate(work.kinds):  # what the compiler does not count is that of the products
        if kind.flops is None and kind.products:
            flops[place] = sum(2.0 * p.batch * p.rows * p.inner * p.columns for p in kind.products)
    columns: dict[str, Sequence[object]] = {
        "name": [kind.instruction.name if kind.instruction else kind.name for kind in work.kinds],
        "program": [names.get(kind.program or 0, str(kind.program)) for kind in work.kinds],
        "category": [kind.category or None for kind in work.kinds],
        "flops": flops,
        "model_flops": [kind.model_flops for kind in work.kinds],
        "bytes": [kind.bytes_accessed for kind in work.kinds],
        "memory_bytes": [kind.memory_bytes for kind in work.kinds],
    }
    return _joined("hlo_operations", times.filter(pl.col("kind_row").is_in(of_programs)), columns)
