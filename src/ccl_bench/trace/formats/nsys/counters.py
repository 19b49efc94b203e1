"""Samples of hardware counters (`--gpu-metrics-device`), in both layouts that exports have had.

Newer exports have `GPU_METRICS` with names in `TARGET_INFO_GPU_METRICS`, older ones a JSON object for
each sample in `GENERIC_EVENTS`. Of the many counters those are kept that show how much of a device
was used, each as a share of what it can do.

Network cards of the node have their own table (`--nic-metrics`): rows of `NET_NIC_METRIC` are rates over a
sample, bytes a second; `TARGET_INFO_NETWORK_METRICS` holds their names and units.
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
    from ccl_bench.trace.formats.nsys.device import ReportDevices
    from ccl_bench.trace.formats.nsys.processes import ReportProcess
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
        (re.compile(f"NVLink {way} {kind} {data} Data"), f"NVLink {way} {kind} {data}")
        for way in ("RX", "TX")
        for kind in ("Requests", "Responses")
        for data in ("User", "Protocol")
    ),
    (re.compile(r"PCIe RX (?:Throughput|Bandwidth)"), "PCIe RX"),
    (re.compile(r"PCIe TX (?:Throughput|Bandwidth)"), "PCIe TX"),
)
"""Names by which Nsight Systems has called a counter → the one name it has in the table."""

_UNIT = re.compile(r"(?<!\s)\s*+\[(?P<unit>[^\[\]]*+)\]\s*+\Z")
_GPU_BITS = 0xFF
"""Part of a `typeId` that is the number of the GPU."""


def counter(recorded_name: str) -> str | None:
    """Return the counter behind a name as recorded; None for one that is no share or not kept."""
    unit = _UNIT.search(recorded_name)
    if unit and "%" not in unit["unit"]:
        return None
    name = recorded_name[: unit.start()] if unit else recorded_name
    return next((counter_name for pattern, counter_name in _NAMES if pattern.fullmatch(name.strip())), None)


def counters(
    database: Database, process: ReportProcess, devices: ReportDevices, base_ns: int
) -> pl.DataFrame:
    """Return the `counters` rows of the devices of one process."""
    samples = _sampled(database) if "GPU_METRICS" in database else _sampled_as_json(database)
    gpu = samples["typeId"] & _GPU_BITS
    numbers = devices.number_of_gpu
    device = gpu.replace_strict(list(numbers), list(numbers.values()), default=gpu, return_dtype=pl.Int64)
    rows = samples.select(
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
    metrics = database.frame("TARGET_INFO_GPU_METRICS", kinds).drop_nulls()
    meanings = [counter(name) for name in metrics["metricName"]]
    known_metrics = metrics.with_columns(pl.Series("name", meanings, dtype=pl.String)).drop_nulls("name")
    metric_ids = known_metrics["metricId"].unique().to_list()[:256]
    only = Filter(sql="0")
    if metric_ids and database.has("GPU_METRICS", "metricId"):
        only = Filter("metricId", tuple((number, number) for number in metric_ids))
    kinds = {"timestamp": "integer", "typeId": "integer", "metricId": "integer", "value": "real"}
    samples = database.frame("GPU_METRICS", kinds, only)
    names = known_metrics.unique(["typeId", "metricId"], keep="first", maintain_order=True)
    joined = samples.join(names, on=["typeId", "metricId"], how="inner", maintain_order="left")
    return joined.select("timestamp", "typeId", "name", "value")


def _sampled_as_json(database: Database) -> pl.DataFrame:
    kinds = {"timestamp": "integer", "typeId": "integer", "data": "text"}
    only = Filter(sql="\"data\" LIKE '%Active%'") if database.has("GENERIC_EVENTS", "data") else EVERY_ROW
    rows: list[tuple[int, int, str, float]] = []
    for time, kind, text in database.frame("GENERIC_EVENTS", kinds, only).drop_nulls().iter_rows():
        try:
            values = msgspec.json.decode(text, type=dict[str, object])
            shares = [  # a value may be a number or the text of one
                (time, kind, name, msgspec.convert(value, float, strict=False))
                for recorded_name, value in values.items()
                if (name := counter(recorded_name))
            ]
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            continue
        rows += [share for share in shares if 0 <= share[-1] <= 100]
    schema = {"timestamp": pl.Int64, "typeId": pl.Int64, "name": pl.String, "value": pl.Float64}
    return pl.DataFrame(rows, schema=schema, orient="row")


SAMPLES, METRICS = "NET_NIC_METRIC", "TARGET_INFO_NETWORK_METRICS"

_TRAFFIC = re.compile(r"(?:IB|Eth): Bytes (sent|received)")
_PER_SECOND = {"bytes/ms": 1e3, "bytes/s": 1.0, "bytes/us": 1e6}
"""Unit of a rate → what makes it bytes a second; a counter in another unit is not read."""


def network_traffic(database: Database, base_ns: int) -> pl.DataFrame:
    """Return the `network_traffic` rows of the node that a report is of."""
    kinds = {"metricsListId": "integer", "metricsIdx": "integer", "name": "text", "unit": "text"}
    metrics = database.frame(METRICS, kinds).drop_nulls()
    if metrics.is_empty():
        return TABLES["network_traffic"].empty()
    ways = [_TRAFFIC.fullmatch(name) for name in metrics["name"]]
    key = ["metricsListId", "metricsIdx"]
    byte_counters = (
        metrics.with_columns(
            pl.Series("is_sent", [way and way[1] == "sent" for way in ways], dtype=pl.Boolean),
            pl.Series("factor", [_PER_SECOND.get(unit) for unit in metrics["unit"]], dtype=pl.Float64),
        )
        .drop_nulls()
        .unique(key, keep="first", maintain_order=True)
        .drop("name", "unit")
    )
    cards = (
        database.frame("NIC_ID_MAP", {"nicId": "integer", "globalId": "integer"})
        .join(database.frame("TARGET_INFO_NIC_INFO", {"nicId": "integer", "name": "text"}), on="nicId")
        .select("globalId", card="name")
        .unique("globalId", keep="first", maintain_order=True)
    )
    numbers = dict.fromkeys(("start", "end", "globalId", "portId", *key), "integer")
    rows = (
        database.frame(SAMPLES, numbers | {"value": "real"})
        .join(byte_counters, on=key, maintain_order="left")
        .join(cards, on="globalId", how="left", maintain_order="left")
        .select(
            since_epoch("start", base_ns).alias("start_ns"),
            since_epoch("end", base_ns).alias("end_ns"),
            pl.format(
                "{}:{}", pl.coalesce("card", pl.format("card {}", "globalId")), pl.col("portId").fill_null(0)
            ).alias("card"),
            "is_sent",
            (pl.col("value") * pl.col("factor")).alias("bytes_per_s"),
        )
        .drop_nulls()
        .filter(pl.col("bytes_per_s") >= 0)
    )
    return TABLES["network_traffic"].frame(rows.to_dict()).sort("start_ns", "card", maintain_order=True)
