"""The rule `fp32_products`: matrix products in float32 without tensor cores."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog import devices as catalog
from ccl_bench.diagnosis import Silent, diagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity

_PLAIN = r"(?i)sgemm"
_ON_TENSOR_CORES = r"(?i)tf32|tensorop|s1688|bf16|f16"


@diagnosis(kind="device")
def fp32_products(gains: Gains, devices: pl.DataFrame) -> Iterator[Opportunity]:
    """Matrix products run in float32 on a device whose tensor cores would do them in TF32.

    How it is seen:
    Kernels named sgemm use no tensor cores. The run is replayed with them faster by the ratio of the device's
    peaks in TF32 and float32: the most that can be gained.

    Why it costs:
    The peak in TF32 is several times that in float32: 156 and 19.5 TFLOP/s on an A100.

    What to do:
    torch.set_float32_matmul_precision("high"), or torch.backends.cuda.matmul.allow_tf32 = True. Better: train
    in bf16 (torch.autocast, FSDP2 MixedPrecisionPolicy(param_dtype=torch.bfloat16), Megatron --bf16,
    DeepSpeed bf16.enabled, vLLM --dtype bfloat16).

    When it is no problem:
    If the products need float32, as in parts of solvers, norms of gradients or losses. TF32 has ten bits of
    mantissa.

    Reference:
    NVIDIA A100 Tensor Core GPU Architecture; torch.set_float32_matmul_precision
    """
    name = pl.col("name").cast(pl.String)
    on_device = (pl.col("place") == "device") & (pl.col("kind") == "compute")
    plain = gains.where(on_device & name.str.contains(_PLAIN) & ~name.str.contains(_ON_TENSOR_CORES))
    if not plain.any():
        raise Silent("no kernel multiplies matrices in float32 without tensor cores")
    ratios = []
    for device in devices["name"].drop_nulls().unique().sort():
        with suppress(NotMeasurable):
            peaks = catalog.device(device).peaks
            ratios += [peaks["fp32"] / peaks["tf32"]] if {"fp32", "tf32"} <= peaks.keys() else []
    if not ratios:
        raise Silent("no device is known to compute in TF32")
    yield from gains.sure(
        gains.replays.scaled(plain, ratios[0]),
        title="Matrix products run in float32, without tensor cores",
        remedy='allow TF32: torch.set_float32_matmul_precision("high"); or train in bf16',
        change="they are faster by at most the ratio of the peaks in TF32 and float32",
    )
