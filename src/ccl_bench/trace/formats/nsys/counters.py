"""Samples of hardware counters (`--gpu-metrics-device`), in both layouts that exports have had.

Newer exports have `GPU_METRICS` with names in `TARGET_INFO_GPU_METRICS`, older ones a JSON object for
each sample in `GENERIC_EVENTS`. Of the many counters those are kept that show how much of a device
was used, each as a share of what it can do.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.nsys.database import since_epoch
from ccl_bench.trace.sqlite import EVERY_ROW, Filter

if TYPE_CHECKING:
    from ccl_bench.trace.formats.nsys.device import Devices
    from ccl_bench.trace.formats.nsys.processes import Process
    from ccl_bench.trace.sqlite import Database

_NAMES = (
    (re.compile(r"SMs? Active"), "SM Active"),
    (re.compile(r"SM Issue"), "SM Issue"),
    (re.compile(r"Tensor Active(?: / FP16 Active)?"), "Tensor Active"),
    (re.compile(r"DRAM Read (?:Throughput|Bandwidth)"), "DRAM Read"),
    (re.compile(r"DRAM Write (?:Throughput|Bandwidth)"), "DRAM Write"),
    (re.compile(r"[DV]RAM (?:Throughput|Bandwidth)"), "DRAM"),
    (re.compile(r"GR Active(?: \(GE/CE\))?"), "GR Active"),
    (re.compile(r"NVLink RX(?: (?:Throughput|Bandwidth))?"), "NVLink RX"),
    (re.compile(r"NVLink TX(?: (?:Throughput|Bandwidth))?"), "NVLink TX"),
    *(
        (re.compile(f"NVLink {way} {what} {data} Data"), f"NVLink {way} {what} {data}")
        for way in ("RX", "TX")
        for what in ("Requests", "Responses")
        for data in ("User", "Protocol")
    ),
    (re.compile(r"PCIe RX (?:Throughput|Bandwidth)"), "PCIe RX"),
    (re.compile(r"PCIe TX (?:Throughput|Bandwidth)"), "PCIe TX"),
)
"""Names by which Nsight Systems has called a counter → the one name it has in the table."""

_UNIT = re.compile(r"\s*\[(?P<unit>[^\]]*)\]\s*\Z")
_GPU_BITS = 0xFF
"""Part of a `typeId` that is the number of the GPU."""


def counter(recorded: str) -> str | None:
    """Return the counter behind a name as recorded; None for one that is no share or not kept."""
    unit = _UNIT.search(recorded)
    if unit and "%" not in unit["unit"]:
        return None
    name = recorded[: unit.start()] if unit else recorded
    return next((known for pattern, known in _NAMES if pattern.fullmatch(name.strip())), None)


def counters(database: Database, process: Process, devices: Devices, base_ns: int) -> pl.DataFrame:
    """Return the `counters` rows of the devices of one process."""
    found = _sampled(database) if "GPU_METRICS" in database else _sampled_as_json(database)
    gpu = found["typeId"] & _GPU_BITS
    numbers = devices.number_of_gpu
    device = gpu.replace_strict(list(numbers), list(numbers.values()), default=gpu, return_dtype=pl.Int64)
    rows = found.select(
        since_epoch("timestamp", base_ns).alias("time_ns"),
        device.alias("device"),
        "name",
        "value",
    ).drop_nulls()
    if process.devices:
        rows = rows.filter(pl.col("device").is_in(process.devices))
    return TABLES["counters"].frame(rows.to_dict()).sort("time_ns", maintain_order=True)


def _sampled(database: Database) -> pl.DataFrame:
    kinds = {"typeId": "integer", "metricId": "integer", "metricName": "text"}
    named = database.frame("TARGET_INFO_GPU_METRICS", kinds).drop_nulls()
    meanings = [counter(name) for name in named["metricName"]]
    kept = named.with_columns(pl.Series("name", meanings, dtype=pl.String)).drop_nulls("name")
    wanted = kept["metricId"].unique().to_list()[:256]
    known = database.has("GPU_METRICS", "metricId") and wanted
    only = Filter("metricId", tuple((number, number) for number in wanted)) if known else Filter(sql="0")
    samples = database.frame(
        "GPU_METRICS",
        {"timestamp": "integer", "typeId": "integer", "metricId": "integer", "value": "real"},
        only,
    )
    names = kept.unique(["typeId", "metricId"], keep="first", maintain_order=True)
    joined = samples.join(names, on=["typeId", "metricId"], how="inner", maintain_order="left")
    return joined.select("timestamp", "typeId", "name", "value")


def _sampled_as_json(database: Database) -> pl.DataFrame:
    kinds = {"timestamp": "integer", "typeId": "integer", "data": "text"}
    only = Filter(sql="\"data\" LIKE '%Active%'") if database.has("GENERIC_EVENTS", "data") else EVERY_ROW
    samples = database.frame("GENERIC_EVENTS", kinds, only).drop_nulls()
    rows = [
        (time, kind, name, value) for time, kind, text in samples.iter_rows() for name, value in _values(text)
    ]
    schema = {"timestamp": pl.Int64, "typeId": pl.Int64, "name": pl.String, "value": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


def _values(text: str) -> list[tuple[str, float]]:
    """Return the counters in one sample; a value may be a number or the text of one."""
    try:
        said = msgspec.json.decode(text, type=dict[str, object])
        shares = [
            (counter(name), msgspec.convert(value, float, strict=False))
            for name, value in said.items()
            if counter(name)
        ]
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return []
    return [(name, value) for name, value in shares if name and 0 <= value <= 100]
