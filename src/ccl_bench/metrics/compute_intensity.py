"""How much is computed for each byte of memory traffic."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics import metric

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.metrics import Measurement


@metric(unit="FLOP/byte", better="higher")
def compute_intensity(facts: Facts) -> Measurement:
    """Operations for each byte between a device and its memory; no supported trace records those bytes.

    Formula:
        compute_intensity = model FLOPs per step and device / bytes read from and written to its memory

    Caveats:
        Operations are those the model needs (see `mfu`). The bytes are those of kernels, in and out of
        device memory: torch.profiler and the CUDA timeline record none of them. The bytes of copies are a
        small and unrelated part and are not used; nor are those of communication, which is traffic on
        links, not memory.

    Reference:
        Arithmetic intensity of the roofline model, Williams et al. 2009.
    """
    facts.needed("model_flops_per_token")
    raise NotMeasurable(
        "traces do not hold what kernels read from and write to device memory",
        fix="record dram__bytes.sum with Nsight Compute and divide by hand",
    )
