"""The metric `kv_transfer_bandwidth`: how fast the KV cache of requests moves, where ranges name it."""

from __future__ import annotations

from ccl_bench.analysis.intervals import merge_intervals
from ccl_bench.analysis.serving.kv_transfers import KERNEL
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.text import counted
from ccl_bench.base.units import SECOND_NS
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.per_step import ranks_in

SEE_ENGINE = (
    "read the transfer statistics that the engine itself logs: NIXL and Mooncake move data through network "
    "cards and threads of their own, which a trace of the device does not connect with requests"
)
NAME_IT = "mark the code that moves the cache with a range such as kv_transfer, or record NVTX with LMCache"


@metric(unit="GB/s", better="higher", applies=(checks.inference,))
def kv_transfer_bandwidth(kv_transfers: pl.DataFrame) -> Measurement:
    """Bytes of KV cache that copies moved, for each second in which one of them ran.

    Formula:
        kv_transfer_bandwidth = bytes of the copies launched in ranges of KV transfers
                                / |U(these copies)|, over all ranks, each rank's union for itself

    Caveats:
        Only ranges that name a transfer of KV cache count: methods of vLLM's connectors and LMCache, and
        ranges that begin with kv_transfer. Copies to and from the host count too, also small ones of indices;
        the details divide by direction and by range. Kernels that move the cache state no bytes: their time
        is in the details, and not in the value.
        Transfers that a network card or another thread makes are not in the trace: without any copy the
        metric is refused.

    Reference:
        vLLM, `KVConnectorBase_V1`; LMCache, `_lmcache_nvtx_annotate`.
    """
    if kv_transfers.is_empty():
        raise NotMeasurable(
            "no range in the traces names a transfer of KV cache", fix=f"{NAME_IT}; or {SEE_ENGINE}"
        )
    copies = kv_transfers.filter((pl.col("bytes") > 0) & (pl.col("end_ns") > pl.col("start_ns")))
    kernels = kv_transfers.filter(pl.col("way") == KERNEL)
    if copies.is_empty():
        names = ", ".join(kv_transfers["name"].unique().sort().head(3))
        launched = f"{counted(kernels.height, 'kernel')} without a size, and " if kernels.height else ""
        reason = f"the ranges of KV transfers ({names}) launched {launched}no copy of known size"
        raise NotMeasurable(reason, fix=SEE_ENGINE)
    total_s, total_bytes = _seconds(copies), int(copies["bytes"].sum())
    ways = copies["way"].unique().sort().to_list()
    by_way = {way: copies.filter(pl.col("way") == way) for way in ways}
    details = {
        "bytes": total_bytes,
        "time_s": total_s,
        "copies_count": copies.height,
        "per_direction_gb_per_s": {
            way: float(rows["bytes"].sum()) / 1e9 / _seconds(rows) for way, rows in by_way.items()
        },
        "per_direction_bytes": {way: int(rows["bytes"].sum()) for way, rows in by_way.items()},
        "per_range_bytes": dict(copies.group_by("name").agg(pl.col("bytes").sum()).sort("name").rows()),
        "kernels_without_size_s": _seconds(kernels) if kernels.height else 0.0,
    }
    return Measurement(
        total_bytes / 1e9 / total_s, details, window="ranges of KV transfers", ranks=ranks_in(copies)
    )


def _seconds(work: pl.DataFrame) -> float:
    """Return the time with any of this work, the sum over traces, s."""
    length = pl.col("end_ns") - pl.col("start_ns")
    return float(merge_intervals(work, "trace").select(length.sum() / SECOND_NS).item())
