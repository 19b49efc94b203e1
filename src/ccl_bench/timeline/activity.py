"""What one rank did, as slices: its steps, kernels or operators, communication calls and copies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.work import COMPUTING
from ccl_bench.analysis.work import MEMORY as COPYING
from ccl_bench.base.lazy_polars import pl
from ccl_bench.timeline.tracks import COMMUNICATION, COMPUTE, DEVICE_STEP, MEMORY, STEP, slices

if TYPE_CHECKING:
    from collections.abc import Mapping

NEEDS = ("steps", "device_work", "memcpy", "work", "calls", "cpu_ops")
"""Tables of a trace that its activity is made from."""

LONGEST_NAME = 120
"""Characters of a name that are kept; template arguments of kernels run to thousands."""


def activity(tables: Mapping[str, pl.DataFrame]) -> pl.DataFrame:
    """Return the slices of everything that occupied one rank, and of its steps."""
    steps = tables["steps"]
    found = [*_steps(steps), _calls(tables["calls"])]
    if tables["device_work"].height:
        found += [_kernels(tables["device_work"]), _copies(tables["memcpy"], tables["device_work"])]
    else:
        found.append(_operators(tables["work"], tables["cpu_ops"]))
    return pl.concat(found)


def _steps(steps: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the steps as recorded and as the device worked on them."""
    named = pl.format("step {}", pl.col("step"))
    on_device = steps.select("step", start_ns="device_start_ns", end_ns="device_end_ns")
    return [slices(steps, STEP, name=named), slices(on_device, DEVICE_STEP, name=named)]


def _calls(calls: pl.DataFrame) -> pl.DataFrame:
    size = pl.when(pl.col("size_bytes").is_not_null()).then(pl.format(',"bytes":{}', "size_bytes"))
    described = pl.concat_str(pl.format('"collective":"{}"', pl.col("collective")), size.fill_null(""))
    return slices(calls, COMMUNICATION, name=shortened("name"), args=described)


def _kernels(device_work: pl.DataFrame) -> pl.DataFrame:
    computing = device_work.filter("is_kernel", pl.col("kind").is_in(COMPUTING))
    return slices(computing, COMPUTE, name=shortened("name"))


def _copies(memcpy: pl.DataFrame, device_work: pl.DataFrame) -> pl.DataFrame:
    """Return the copies and sets, without those that carry out communication."""
    place = ["start_ns", "end_ns", "stream", "correlation"]
    copied = device_work.filter(pl.col("kind") == COPYING).select(place).unique()
    own = memcpy.join(copied, on=place, how="semi", nulls_equal=True, maintain_order="left")
    moved = pl.when(pl.col("bytes").is_not_null()).then(pl.format('"bytes":{}', "bytes"))
    return slices(own, MEMORY, name=pl.col("kind"), args=moved)


def _operators(work: pl.DataFrame, cpu_ops: pl.DataFrame) -> pl.DataFrame:
    """Return what the CPU computed on a run without a device, with the names of the operators."""
    place = {"start_ns": "start_ns", "end_ns": "end_ns", "stream": "thread"}
    names = cpu_ops.select("name", **place).unique([*place], keep="last", maintain_order=True)
    computed = work.filter(pl.col("kind").is_in(COMPUTING)).select(*place)
    named = computed.join(names, on=[*place], how="left", nulls_equal=True, maintain_order="left")
    return slices(named, COMPUTE, name=shortened("name"))


def shortened(column: str) -> pl.Expr:
    """Return a name of at most `LONGEST_NAME` characters."""
    text = pl.col(column).cast(pl.String)
    is_long = text.str.len_chars() > LONGEST_NAME
    return pl.when(is_long).then(text.str.head(LONGEST_NAME) + "...").otherwise(text)
