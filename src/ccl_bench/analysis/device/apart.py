"""A process that worked on several devices: the work of each apart, for a number of a device is of one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.derived import derived
from ccl_bench.base.lazy_polars import pl

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

STRAY = 0.01
"""Share of the busiest device's kernel time below which a device was only touched, as by a stray context."""


def devices_at_work(kernels: pl.DataFrame) -> tuple[list[int], list[int]]:
    """Return the devices that a process worked on, and those that it only touched, each sorted."""
    length = (pl.col("end_ns") - pl.col("start_ns")).sum()
    times = kernels.drop_nulls("device").group_by("device").agg(length.alias("ns")).sort("device")
    is_touched = times.select(pl.col("ns") < STRAY * pl.col("ns").max()).to_series()
    return times["device"].filter(~is_touched).to_list(), times["device"].filter(is_touched).to_list()


def on_device(
    tables: Mapping[str, pl.DataFrame], device: int, others: Sequence[int], *, is_first: bool
) -> dict[str, pl.DataFrame]:
    """Return what of `kernels`, `memcpy`, `launches` and `counters` is of one device and not of the `others`.

    Work on a device that runs no kernel, or on nobody knows which, goes with the first one. A call goes with
    the device of its work; one without work goes with every device, for it took the host's time.
    """
    is_other = pl.col("device").is_in(list(others)).fill_null(value=False)
    own = pl.col("device") == device
    mine = ~is_other if is_first else own.fill_null(value=False)
    work = [tables[name].filter(~mine)["correlation"].drop_nulls() for name in ("kernels", "memcpy")]
    elsewhere = pl.col("correlation").is_in(pl.concat(work).unique().implode()).fill_null(value=False)
    return {name: table.filter(~elsewhere if name == "launches" else mine) for name, table in tables.items()}


@derived(
    reads={"kernels": ("device",)},
    device=("Int64", "device number; null where kernels do not say"),
)
def device_used(kernels: pl.DataFrame) -> pl.DataFrame:
    """One trace with kernels: the device that its numbers are of; each device of a process has its own."""
    return kernels.select(pl.col("device").drop_nulls().mode().min()).head(min(1, kernels.height))
