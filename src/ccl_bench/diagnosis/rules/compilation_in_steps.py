"""The rule `compilation_in_steps`: hosts compile or load modules in the step."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.execution.idle import FIRST_USE
from ccl_bench.base.lazy_imports import pl
from ccl_bench.catalog.host_stalls import COMPILATION, MODULE_LOADING
from ccl_bench.diagnosis import diagnosis
from ccl_bench.diagnosis.stalls import without_stalls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.diagnosis.hosts import Hosts
    from ccl_bench.result.diagnosis import Opportunity


@diagnosis(kind="host")
def compilation_in_steps(gains: Gains, hosts: Hosts) -> Iterator[Opportunity]:
    """Hosts compile, or load modules of kernels, in steps that are measured.

    How it is seen:
    The run is replayed without the time that hosts spend in torch.compile (ranges that end in
    "(dynamo_timed)"), in calls of the driver that load modules (cuModuleLoadData, cuLibraryLoadData), and in
    the first launch of a kernel, where it takes more than 1 ms: the code is loaded when it is first used.

    Why it costs:
    Compiling takes seconds, in which one rank launches nothing and the others wait for it.

    What to do:
    Run more warm-up steps before recording. If it goes on, find out why torch.compile compiles again
    (TORCH_LOGS=recompiles): mark changing sizes with torch._dynamo.mark_dynamic, pad batches to few sizes,
    raise torch._dynamo.config.cache_size_limit. CUDA_MODULE_LOADING=EAGER loads all kernels at the start.
    vLLM: --compilation-config with the sizes that are served.

    When it is no problem:
    If it happens in the first steps only, leave them out with --skip-steps.

    Reference:
    PyTorch, torch.compile troubleshooting: recompilation
    """
    columns = ["trace", "kind", "name", "start_ns", "end_ns"]
    first_uses = gains.activity.filter(pl.col("cause") == FIRST_USE)
    loads = first_uses.with_columns(kind=pl.lit(MODULE_LOADING))[columns]
    yield from without_stalls(
        gains,
        pl.concat([hosts.stalls[columns], loads]),
        kinds=[COMPILATION, MODULE_LOADING],
        what="Hosts compile or load modules in the step",
        remedy="warm up before recording; find recompilations with TORCH_LOGS=recompiles",
    )
