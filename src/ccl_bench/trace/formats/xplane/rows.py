"""Rows of the raw tables from the operations of a device."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.dtypes import width_bytes
from ccl_bench.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ccl_bench.trace.formats.xplane.devices import Device
    from ccl_bench.trace.formats.xplane.operations import Kind, Operations
    from ccl_bench.trace.hlo.instruction import HloInstruction, Shape
    from ccl_bench.trace.hlo.program import HloProgram

_BYTE = "u8"
"""Element type of sizes in bytes."""

_DETAIL = re.compile(r"(\w+):(\S+)")
_COPIES = {"H2D": "HtoD", "D2H": "DtoH", "D2D": "DtoD", "P2P": "PtoP", "H2H": "HtoH"}
_HOST_MEMORY = "S(5)"
"""How a layout says that an array lies in the host's memory."""


class Chip(NamedTuple):
    """Size of a GPU as its plane states it; None if it does not."""

    units: int | None = None
    threads_per_unit: int | None = None


def kernel_rows(work: Operations, device: Device, chip: Chip) -> pl.DataFrame:
    """Return the `kernels` rows of a device's work."""
    times = _rows(work, device, lambda kind: not kind.is_copy)
    details = [dict(_DETAIL.findall(kind.details)) for kind in work.kinds]
    grid = [_product(detail.get("grid")) for detail in details]
    block = [_product(detail.get("block")) for detail in details]
    columns: dict[str, Sequence[object]] = {
        "name": [kind.name for kind in work.kinds],
        "collective": [kind.collective for kind in work.kinds],
        "grid_blocks": grid,
        "block_threads": block,
        "blocks_per_sm": [blocks / chip.units if blocks and chip.units else None for blocks in grid],
        "warps_per_sm": [
            blocks * threads / _WARP / chip.units if blocks and threads and chip.units else None
            for blocks, threads in zip(grid, block, strict=True)
        ],
        "occupancy_pct": [_positive(detail.get("occ_pct")) for detail in details],
        "registers": [_whole(detail.get("regs")) for detail in details],
        "shared_memory_bytes": [_shared_memory(detail) for detail in details],
    }
    return _joined("kernels", times, columns)


_WARP = 32


def copy_rows(work: Operations, device: Device) -> pl.DataFrame:
    """Return the `memcpy` rows of a device's work."""
    times = _rows(work, device, lambda kind: kind.is_copy)
    columns: dict[str, Sequence[object]] = {
        "kind": [_copy_kind(kind) for kind in work.kinds],
        "bytes": [_copy_bytes(kind) for kind in work.kinds],
    }
    return _joined("memcpy", times, columns)


def _rows(work: Operations, device: Device, holds: Callable[[Kind], bool]) -> pl.DataFrame:
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


def _product(text: str | None) -> int | None:
    """Return the product of the sizes in a text such as `16,1,1`."""
    sizes = (text or "").split(",")
    if not all(size.isdecimal() and len(size) <= _DIGITS for size in sizes):
        return None
    product = 1
    for size in sizes:
        product *= int(size)
    return product if 0 < product < 1 << 62 else None


_DIGITS = 12
"""Most digits of a size."""


def _whole(text: str | None) -> int | None:
    return int(text) if text and text.isdecimal() and len(text) <= _DIGITS else None


def _positive(text: str | None) -> float | None:
    try:
        value = float(text or "")
    except ValueError:
        return None
    return value if 0 < value <= 100 else None


def _shared_memory(details: Mapping[str, str]) -> int | None:
    sizes = [_whole(details.get(name)) for name in ("static_shared", "dynamic_shared", "group_mem")]
    stated_sizes = [size for size in sizes if size is not None]
    return sum(stated_sizes) if stated_sizes else None


def _copy_kind(kind: Kind) -> str:
    if kind.instruction is not None and kind.instruction.kind == "copy":
        before, _, after = kind.details.partition(f" {kind.instruction.opcode}(")
        to_host, from_host = _first_is_host(before), _HOST_MEMORY in after
        if to_host == from_host:
            return "DtoD"
        return "DtoH" if to_host else "HtoD"
    if kind.name == "memset":
        return "memset"
    text = f"{kind.name} {kind.details}"
    return next(
        (copy_kind for spelling, copy_kind in _COPIES.items() if spelling in text or copy_kind in text),
        "other",
    )


def _first_is_host(results: str) -> bool:
    """Whether the first array of a tuple lies in the host's memory."""
    first = re.search(r"\w+\[[^\]]*\](\{[^}]*\})?", results)
    return bool(first and _HOST_MEMORY in (first[1] or ""))


def _copy_bytes(kind: Kind) -> int | None:
    if kind.instruction is not None and kind.instruction.operands:
        sizes = [_bytes(shape) for shape in kind.instruction.operands]
        return sum(size for size in sizes if size is not None) if None not in sizes else None
    return _whole(dict(_DETAIL.findall(kind.details)).get("size"))


def _bytes(shape: Shape) -> int | None:
    try:
        return round(shape.elements * width_bytes(shape.dtype))
    except NotMeasurable:
        return None


class _Call(NamedTuple):
    """Arguments of a collective on one device, the same in every run."""

    name: str | None = None
    dtype: str | None = None
    in_elements: int | None = None
    out_elements: int | None = None
    group_size: int | None = None
    group_ranks: list[int] | None = None
    is_async: bool | None = None


def collective_rows(
    work: Operations, device: Device, programs: Mapping[int, HloProgram], ranks: Mapping[int, int]
) -> pl.DataFrame:
    """Return the `collectives` rows of a device's work; `ranks` maps global ids of devices to ranks."""
    times = _rows(work, device, lambda kind: kind.collective is not None)
    calls = [_call(kind, device, programs, ranks) for kind in work.kinds]
    columns = {name: [getattr(call, name) for call in calls] for name in _Call._fields}
    rows = times.with_columns(source=pl.lit("kernel"), thread="stream")
    return _joined("collectives", rows, columns)


def _call(kind: Kind, device: Device, programs: Mapping[int, HloProgram], ranks: Mapping[int, int]) -> _Call:
    instruction, name = kind.instruction, kind.collective
    if name is None:
        return _Call()
    members = _members(kind, device, programs, ranks)
    size = len(members) if members is not None else None
    if instruction is None:
        return _Call(name, group_size=size, group_ranks=members)
    dtype, sent = _elements(instruction.operands)
    _, received = _elements(instruction.results)
    if instruction.is_start or instruction.is_done or dtype == _BYTE:
        received = _received(name, sent, size)
    if name == "send_recv" and instruction.pairs and device.global_id is not None:
        sent, received = _by_pairs(instruction, device, programs.get(kind.program or 0), sent)
    return _Call(name, dtype, sent, received, size, members, is_async=instruction.is_start)


def _members(
    kind: Kind, device: Device, programs: Mapping[int, HloProgram], ranks: Mapping[int, int]
) -> list[int] | None:
    """Return the ranks that take part; None if unknown."""
    program = programs.get(kind.program) if kind.program is not None else None
    if program is None or device.global_id is None:
        return None
    if kind.instruction is None:
        ids: tuple[int, ...] | None = tuple(
            device_id for replicas in program.devices for device_id in replicas
        )
    else:
        ids = program.members(kind.instruction, device.global_id)
    if not ids or any(device_id not in ranks for device_id in ids):
        return None
    return sorted(ranks[device_id] for device_id in ids)


def _elements(shapes: Sequence[Shape]) -> tuple[str | None, int | None]:
    """Return type and number of the elements of several arrays; bytes where their types differ."""
    kinds = {shape.dtype for shape in shapes}
    if len(kinds) == 1:
        return kinds.pop(), sum(shape.elements for shape in shapes)
    sizes = [_bytes(shape) for shape in shapes]
    stated_sizes = [size for size in sizes if size is not None]
    return (_BYTE, sum(stated_sizes)) if stated_sizes and len(stated_sizes) == len(sizes) else (None, None)


def _received(name: str, sent: int | None, members: int | None) -> int | None:
    """Return the elements that a collective gives to each member for those that it takes of one."""
    if name not in ("all_gather", "reduce_scatter") or sent is None:
        return sent
    if not members:
        return None
    return sent * members if name == "all_gather" else sent // members


def _by_pairs(
    instruction: HloInstruction, device: Device, program: HloProgram | None, sent: int | None
) -> tuple[int | None, int | None]:
    """Return the elements that a device sends and receives in a collective permute: 0 if it is in no pair."""
    number = (
        program.number_of(instruction, device.global_id) if program and device.global_id is not None else None
    )
    if number is None:
        return sent, sent
    sends = any(source == number for source, _ in instruction.pairs)
    receives = any(target == number for _, target in instruction.pairs)
    return (sent if sends else 0), (sent if receives else 0)


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
    of_programs = [work.kinds[place].program is not None for place in range(len(work.kinds))]
    in_programs = times.filter(
        pl.col("kind_row").is_in([p for p, has_program in enumerate(of_programs) if has_program])
    )
    names = {number: program.name for number, program in programs.items()}
    columns: dict[str, Sequence[object]] = {
        "name": [kind.instruction.name if kind.instruction else kind.name for kind in work.kinds],
        "program": [names.get(kind.program or 0, str(kind.program)) for kind in work.kinds],
        "category": [kind.category or None for kind in work.kinds],
        "flops": [_flops(kind) for kind in work.kinds],
        "model_flops": [kind.model_flops for kind in work.kinds],
        "bytes": [kind.bytes_accessed for kind in work.kinds],
        "memory_bytes": [kind.memory_bytes for kind in work.kinds],
    }
    return _joined("hlo_operations", in_programs, columns)


def _flops(kind: Kind) -> float | None:
    """Return the operations of one run as the compiler counts them, else those of its products."""
    if kind.flops is not None:
        return kind.flops
    flops = [
        2.0 * product.batch * product.rows * product.inner * product.columns for product in kind.products
    ]
    return sum(flops) if flops else None
