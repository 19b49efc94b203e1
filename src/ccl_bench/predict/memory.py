"""Memory that a configuration needs on its fullest rank, and whether it fits."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ccl_bench.base.errors import NoValue
from ccl_bench.base.lazy_imports import np
from ccl_bench.catalog import devices
from ccl_bench.predict.step_model import microbatches
from ccl_bench.predict.trials import columns
from ccl_bench.result.prediction import Memory

if TYPE_CHECKING:
    import polars as pl

    from ccl_bench.predict.step_model import Columns, Floats

_REPLICATED_BYTES = 18
"""Weight in bf16, gradient and master weight in fp32, two moments: 2 + 4 + 4 + 8."""
_SHARDED_BYTES = 16
"""Weight, gradient and two moments in fp32, as FSDP2 shards them."""
_WHOLE_ACTIVATIONS, _SPLIT_ACTIVATIONS = 10, 24
"""Bytes of a layer for each element of its input: whole, and split by tp (arXiv:2205.05198, section 4).

The scores of attention are left out: fused kernels do not keep them.
"""
_LOGIT_BYTES = 10
"""Logits in bf16 and fp32, and their gradient in fp32."""
_RUNTIME_BYTES = 2 * 2**30
"""CUDA context, libraries, buffers of NCCL, workspaces of cuBLAS."""

FITTING, EXCEEDING = 0.85, 1.15
"""Shares of the device's memory: below the first a configuration fits, above the second it does not.

Between them it depends on fragmentation, and on what a framework keeps beside the shapes: measured peaks are
within 15 % of such a count (arXiv:2205.05198, figure 6).
"""


def needed_bytes(columns: Columns) -> Floats:
    """Return the bytes of the fullest rank of each configuration: state, activations in flight, logits."""
    tp, dp, pp = (columns[name] for name in ("tp", "dp", "pp"))
    count, batch = microbatches(columns)
    tokens = batch * columns["seq_len"]
    hidden, layers = columns["hidden"], np.ceil(columns["layers"] / pp)
    table = columns["vocabulary"] * hidden / tp
    parameters = layers * columns["layer_parameters"] / tp + table * np.where(pp > 1, 1, 2)
    sharded = columns["sharded"] > 0
    # A pipeline keeps the gathered weights of its stage, because the next microbatch needs them at once.
    gathered = 2 * np.where(pp > 1, parameters, parameters / layers * 2)
    state = np.where(sharded, _SHARDED_BYTES * parameters / dp + gathered, _REPLICATED_BYTES * parameters)
    layer = tokens * hidden * (_WHOLE_ACTIVATIONS + _SPLIT_ACTIVATIONS / tp)
    kept = np.where(columns["recompute"] > 0, 2 * tokens * hidden * layers, layer * layers)
    activations = kept * np.minimum(pp, count) + np.where(columns["recompute"] > 0, layer, 0)
    logits = _LOGIT_BYTES * tokens * columns["vocabulary"] / tp
    total: Floats = state + activations + logits + _RUNTIME_BYTES
    return total


class MemoryModel:
    """Which configurations fit, by what they need, by the device, and by trials that ran or failed."""

    def __init__(self, trials: pl.DataFrame) -> None:
        ran = trials.filter(trials["step_s"].is_not_null())
        failed = trials.filter(trials["step_s"].is_null())
        self._ran = max(needed_bytes(columns(ran)).tolist(), default=0.0)
        failures = needed_bytes(columns(failed)) if failed.height else np.zeros(0)
        # A failure without a reason is one of memory only where memory is short; below what ran, it is none.
        ran_out = (failed["status"].fill_null("") == "oom").to_numpy()
        capacities = np.array([_capacity(name) or np.inf for name in failed["gpu"]])
        counts = ran_out | (failures > FITTING * capacities)
        self._failed = min((each for each in failures[counts].tolist() if each > self._ran), default=np.inf)

    def judge(self, rows: pl.DataFrame) -> list[Memory]:
        """Return what each configuration needs, and whether it fits."""
        return [
            Memory(self._fits(needed, _capacity(name)), round(needed))
            for needed, name in zip(needed_bytes(columns(rows)).tolist(), rows["gpu"], strict=True)
        ]

    def _fits(self, needed: float, capacity: int | None) -> bool | None:
        if needed >= self._failed:
            return False
        if needed <= self._ran:
            return True
        if capacity is None or FITTING * capacity < needed <= EXCEEDING * capacity:
            return None
        return needed <= capacity


@cache
def _capacity(name: str | None) -> int | None:
    """Return the memory of a device in bytes, None where it is unknown."""
    if name is None:
        return None
    try:
        return devices.device(name).memory_bytes
    except NoValue:
        return None
