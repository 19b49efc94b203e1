"""Metrics from hardware counters: use of tensor cores, memory, NVLink, PCIe and network cards."""

from __future__ import annotations

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared.per_step import (
    RECORD,
    by_rank,
    by_step,
    each_rank,
    mean_of,
    need_rows,
    ranks_in,
    window_of,
)
from ccl_bench.metrics.shared.programs import dram_utilization_of_programs

SAMPLE = "record with nsys profile --gpu-metrics-devices=all, as a user who may read counters"
"""The advice where no counter was sampled."""

Parts = dict[str, tuple[str, ...]]
"""Name of a part → the counters that add up to it."""

_MEMORY = ("DRAM Read", "DRAM Write")
_LINK = [f"{what} {data}" for what in ("Requests", "Responses") for data in ("User", "Protocol")]
_NVLINK = {way: (f"NVLink {way}", *(f"NVLink {way} {kind}" for kind in _LINK)) for way in ("RX", "TX")}
_PCIE: Parts = {"RX": ("PCIe RX",), "TX": ("PCIe TX",)}

_STEP = ("trace", "rank", "iteration", "step", "window_ns")


@metric(unit="%", better="higher", prefers=("counters",))
def tensor_core_active(sampled_counters: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Share of cycles in which the tensor cores were active, as the hardware sampled it, over steps.

    Formula:
        tensor_core_active = mean of the samples of Tensor Active in steps, mean over ranks

    Caveats:
        A tensor core counts as active while any of its pipes works: 100 % is not the peak of every number
        format. `mfu` counts what the model needs; this counts what the device did, recomputation included.

    Reference:
        "Tensor Active" of Nsight Systems' GPU metrics; DCGM_FI_PROF_PIPE_TENSOR_ACTIVE is the same counter.
    """
    return _share(sampled_counters, steps, {"tensor": ("Tensor Active",)}, "Tensor Active")


@metric(
    unit="%",
    better="higher",
    prefers=("counters",),
    otherwise=(dram_utilization_of_programs,),
    revision=2,
)
def dram_utilization(sampled_counters: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Share of the device memory's bandwidth that was used, reads and writes together, over steps.

    Formula:
        dram_utilization = mean of DRAM Read + mean of DRAM Write in steps, mean over ranks

        or the mean of the combined counter on devices that have one. In a profile of XLA it is the bytes
        that the compiler counts in the device's main memory, over the time of steps and the peak bandwidth.

    Caveats:
        It counts all traffic, of kernels and copies. The peak is what the memory's clock allows; no kernel
        fully reaches it. `memory_bandwidth_utilization` shows what copies alone reach.

    Reference:
        "DRAM Read Bandwidth" and "DRAM Write Bandwidth" of Nsight Systems' GPU metrics.
    """
    halves = {*sampled_counters["counter"]}.intersection(_MEMORY)
    if len(halves) == 1 and "DRAM" not in {*sampled_counters["counter"]}:
        raise NotMeasurable(f"only {halves.pop()} was sampled of memory reads and writes", fix=SAMPLE)
    counters = _MEMORY if len(halves) > 1 else ("DRAM",)
    return _share(sampled_counters, steps, {"memory": counters}, "the memory's bandwidth")


@metric(unit="%", better="neither", prefers=("counters",))
def nvlink_utilization(sampled_counters: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Share of NVLink's bandwidth that was used, mean of both directions, over the time of steps.

    Formula:
        direction = sum of the means of its counters in steps: requests and responses, user and protocol data
        nvlink_utilization = mean over directions, mean over ranks

    Caveats:
        The share is of the time of steps, not of communication: a step that communicates for a tenth of
        its time has at most 10 %. Protocol data is traffic, too; the details state each counter. For the
        rate of single calls see `bandwidth_utilization_allreduce` and its like.

    Reference:
        "NVLink RX/TX" of Nsight Systems' GPU metrics: bytes as a share of what the links can carry.
    """
    return _share(sampled_counters, steps, _NVLINK, "NVLink")


@metric(unit="%", better="neither", prefers=("counters",))
def pcie_utilization(sampled_counters: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Share of the device's PCIe bandwidth that was used, mean of both directions, over the time of steps.

    Formula:
        pcie_utilization = mean over directions of the mean of its samples in steps, mean over ranks

    Caveats:
        It counts copies to and from the host, and traffic of network cards that read and write the
        device's memory themselves. Protocol overhead is included.

    Reference:
        "PCIe RX Throughput" and "PCIe TX Throughput" of Nsight Systems' GPU metrics.
    """
    return _share(sampled_counters, steps, _PCIE, "PCIe")


@metric(unit="GB/s", better="neither", prefers=("network_traffic",))
def network_throughput(network_rates: pl.DataFrame, steps: pl.DataFrame) -> Measurement:
    """Rate at which the network cards of a node sent and received, over the time of steps.

    Formula:
        network_throughput = sum over cards and directions of bytes in steps / time of steps, mean over traces

    Caveats:
        Cards belong to the node: every process of it has the same number, and other jobs on the node count.
        It is a mean over the whole step, not over communication.

    Reference:
        "IB: Bytes sent", "Eth: Bytes sent" and those received, of Nsight Systems' NIC metrics.
    """
    need_rows(steps, "steps", RECORD)
    if network_rates.is_empty():
        fix = "record with nsys profile --nic-metrics=lf, on nodes with cards of NVIDIA"
        raise NotMeasurable("no trace holds samples of a network card in any step", fix=fix)
    rate = pl.col("bytes").sum() / pl.col("covered_ns").sum()  # bytes per ns are GB per s
    each = network_rates.group_by(*each_rank(), "card", "is_sent", maintain_order=True).agg(gb=rate)
    per_rank = each.group_by("rank", "_trace_without_rank", maintain_order=True).agg(pl.col("gb").sum())
    cards = each.group_by("card", "is_sent").agg(pl.col("gb").mean()).sort("card", "is_sent")
    sent = [(card, gb) for card, is_sent, gb in cards.iter_rows() if is_sent]
    details = {
        "per_rank_gb_per_s": by_rank(per_rank, "gb"),
        "per_card_sent_gb_per_s": dict(sent),
        "per_card_received_gb_per_s": {card: gb for card, is_sent, gb in cards.iter_rows() if not is_sent},
    }
    return Measurement(mean_of(per_rank, "gb"), details, window_of(steps), ranks_in(per_rank))


def _share(sampled: pl.DataFrame, steps: pl.DataFrame, parts: Parts, what: str) -> Measurement:
    """Return the mean over ranks of the mean over parts, each the sum of its counters, over steps.

    A part without counters is left out; the details list each part. Steps are weighted by their length.
    Raises NotMeasurable if no part was sampled.
    """
    need_rows(steps, "steps", RECORD)
    counters = [name for names in parts.values() for name in names]
    samples = sampled.filter(pl.col("counter").is_in(counters))
    if samples.is_empty():
        raise NotMeasurable(f"no trace holds samples of {what} in any step", fix=SAMPLE)
    part_of = {name: part for part, names in parts.items() for name in names}
    by_part = samples.with_columns(
        part=pl.col("counter").replace_strict(part_of, return_dtype=pl.String)
    ).group_by(*_STEP, "part", maintain_order=True)
    sums = by_part.agg(pl.col("mean_pct").sum(), pl.col("samples").max())
    of_steps = sums.group_by(_STEP, maintain_order=True).agg(pl.col("mean_pct").mean())
    per_rank = _over_steps(of_steps)
    means = _over_steps(sums, "part").group_by("part").agg(pl.col("pct").mean()).sort("part")
    each = _over_steps(samples, "counter").group_by("counter").agg(pl.col("pct").mean()).sort("counter")
    details = {
        "kind": "measured",
        "per_rank_pct": by_rank(per_rank, "pct"),
        "per_step_pct": by_step(of_steps, "mean_pct"),
        "per_counter_pct": dict(each.iter_rows()),
        "samples_count": int(sums["samples"].sum() // sums["part"].n_unique()),
    }
    if means.height > 1:
        details["per_direction_pct"] = dict(means.iter_rows())
    return Measurement(mean_of(per_rank, "pct"), details, window_of(steps), ranks_in(per_rank))


def _over_steps(rows: pl.DataFrame, *by: str) -> pl.DataFrame:
    """Return the mean of each rank over its steps, weighted by their length."""
    weighted = (pl.col("mean_pct") * pl.col("window_ns")).sum() / pl.col("window_ns").sum()
    return rows.group_by(*each_rank(), *by, maintain_order=True).agg(weighted.alias("pct"))
