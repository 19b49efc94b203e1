"""What network cards of the node sent and received (`--nic-metrics`), in bytes a second.

Rows of `NET_NIC_METRIC` are rates over a sample; `TARGET_INFO_NETWORK_METRICS` holds their names and units.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.schema import TABLES
from ccl_bench.trace.formats.nsys.database import since_epoch

if TYPE_CHECKING:
    from ccl_bench.trace.sqlite import Database

SAMPLES, METRICS = "NET_NIC_METRIC", "TARGET_INFO_NETWORK_METRICS"

_TRAFFIC = re.compile(r"(?:IB|Eth): Bytes (sent|received)")
_PER_SECOND = {"bytes/ms": 1e3, "bytes/s": 1.0, "bytes/us": 1e6}
"""Unit of a rate → what makes it bytes a second; a counter in another unit is not read."""


def network_traffic(database: Database, base_ns: int) -> pl.DataFrame:
    """Return the `network_traffic` rows of the node that a report is of."""
    kept = _kept(database)
    if kept.is_empty():
        return TABLES["network_traffic"].empty()
    numbers = dict.fromkeys(("start", "end", "globalId", "portId", "metricsListId", "metricsIdx"), "integer")
    samples = database.frame(SAMPLES, numbers | {"value": "real"})
    named = samples.join(kept, on=["metricsListId", "metricsIdx"], maintain_order="left")
    placed = named.join(_cards(database), on="globalId", how="left", maintain_order="left")
    card = pl.coalesce("card", pl.format("card {}", "globalId"))
    rows = placed.select(
        since_epoch("start", base_ns).alias("start_ns"),
        since_epoch("end", base_ns).alias("end_ns"),
        pl.format("{}:{}", card, pl.col("portId").fill_null(0)).alias("card"),
        "is_sent",
        (pl.col("value") * pl.col("factor")).alias("bytes_per_s"),
    )
    sound = rows.drop_nulls().filter(pl.col("bytes_per_s") >= 0)
    return TABLES["network_traffic"].frame(sound.to_dict()).sort("start_ns", "card", maintain_order=True)


def _kept(database: Database) -> pl.DataFrame:
    """Return the counters of bytes, each with its direction and factor."""
    kinds = {"metricsListId": "integer", "metricsIdx": "integer", "name": "text", "unit": "text"}
    listed = database.frame(METRICS, kinds).drop_nulls()
    ways = [_TRAFFIC.fullmatch(name) for name in listed["name"]]
    known = listed.with_columns(
        pl.Series("is_sent", [way and way[1] == "sent" for way in ways], dtype=pl.Boolean),
        pl.Series("factor", [_PER_SECOND.get(unit) for unit in listed["unit"]], dtype=pl.Float64),
    )
    key = ["metricsListId", "metricsIdx"]
    return known.drop_nulls().unique(key, keep="first", maintain_order=True).drop("name", "unit")


def _cards(database: Database) -> pl.DataFrame:
    """Return the name of the card behind each number of a sample."""
    joined = database.frame("NIC_ID_MAP", {"nicId": "integer", "globalId": "integer"}).join(
        database.frame("TARGET_INFO_NIC_INFO", {"nicId": "integer", "name": "text"}), on="nicId"
    )
    return joined.select("globalId", card="name").unique("globalId", keep="first", maintain_order=True)
