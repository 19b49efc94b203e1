"""The rule `launch_bound`: devices are idle because hosts launch too slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.execution.idle import LAUNCHING, PAUSE_NS
from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.whatif.run_graph import GAP, OWN, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.diagnosis.hosts import Hosts
    from ccl_bench.result.diagnosis import Opportunity
    from ccl_bench.whatif.event_graph import Times

_FACTOR = 0.5
"""Host time in the replay over the recorded one: compiling reaches about this, and CUDA graphs less."""

_WORTH = 0.05
"""Share of the step that devices must be idle so, and that it must gain: any step gains a little."""


@diagnosis(kind="host")
def launch_bound(
    gains: Gains, hosts: Hosts, idle_causes: pl.DataFrame, steps: pl.DataFrame
) -> Iterator[Opportunity]:
    """The devices are idle because the hosts have not launched their work yet: the step is host-bound.

    How it is seen:
    Devices are idle for at least 5 % of the step while their hosts launch call after call, less than 1 ms
    apart. The run is replayed with hosts that take half their time between and in such calls. The gain is
    that of hosts twice as fast, not an upper bound. Late ranks, data loading, garbage collection, compilation
    and pauses take no time here; they have their own rules.

    Why it costs:
    A device that has finished its queue does nothing, and the other ranks wait for it in collectives.

    What to do:
    Launch less or sooner: CUDA graphs (torch.cuda.make_graphed_callables, torch.compile
    (mode="reduce-overhead"); Megatron --enable-cuda-graph or --cuda-graph-impl; vLLM without
    --enforce-eager), fused kernels and optimizers (torch.compile, AdamW(fused=True)), larger microbatches,
    fewer Python callbacks in the step. Record again without --with-stack and record_shapes: the profiler
    itself slows hosts.

    When it is no problem:
    If the profiler slows the host down. Compare the traced step with the untraced
    one (step_times_per_rank.json, or the overhead that ccl-bench collect prints).

    Reference:
    Lumos (MLSys'25); PyTorch CUDA graphs, pytorch.org/docs/stable/notes/cuda.html
    """
    if not gains.has_device:
        raise Silent("the traces show no work on a device")
    launching = idle_causes.filter(pl.col("cause") == LAUNCHING)
    idle_ns = launching.select((pl.col("end_ns") - pl.col("start_ns")).sum()).item()
    share = idle_ns / max(1, steps["length_ns"].sum())
    if share < _WORTH:
        raise Silent(f"devices are idle for {share:.1%} of the step while hosts launch call after call")
    variant = _faster_launches(gains, hosts.steady)
    steady, whole = gains.of(hosts.steady, variant)
    gain = whole.beyond(steady.by_step)
    if not gain.is_sure or gain.share < _WORTH:
        return
    yield gains.opportunity(
        gain,
        _faster_launches(gains, gains.graph.values),
        title="The devices wait for their hosts to launch work",
        remedy="use CUDA graphs or torch.compile, fuse small kernels, or give each launch more work",
        change="hosts take half their time",
    )


def _faster_launches(gains: Gains, base: Times) -> Times:
    """Return the variant in which hosts take half their time between and in calls, pauses left out."""
    variant = base.copy()
    rows = gains.on_host.nonzero()[0]
    for part in (GAP, OWN):
        values = variant[rows * VALUES + part]
        variant[rows * VALUES + part] = np.where(values <= PAUSE_NS, _FACTOR * values, values)
    return variant
