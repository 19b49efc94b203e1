"""The rule `launch_bound`: devices are idle because hosts launch too slowly."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.stalls import without_intervals
from ccl_bench.diagnosis.verdict import on_common_clock
from ccl_bench.whatif.run_graph import GAP, OWN, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.diagnosis.gains import Gains, Times
    from ccl_bench.result.diagnosis import Opportunity

_FACTOR = 0.5
"""Host time in the replay over the recorded one."""

_UNEVEN = 1.25
"""Host time over the median of all ranks from which a rank is late for its own reasons."""

_WORTH = 0.05
"""Share of the step that it must gain: faster hosts make any step slightly shorter."""


@diagnosis(kind="host")
def launch_bound(gains: Gains, stalls: pl.DataFrame, clock_offsets: pl.DataFrame) -> Iterator[Opportunity]:
    """The devices are idle because the hosts have not launched their work yet: the step is host-bound.

    How it is seen:
    The run is replayed with hosts that take half their time, except for waiting for the
    device. The gain is that of hosts twice as fast, not an upper bound. A rank with a slow host is replayed
    with the median of all ranks: late_ranks reports its cost. Data loading, garbage collection and
    compilation take no time here; they have their own rules.

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
    base = without_intervals(gains, on_common_clock(stalls, clock_offsets))
    factors = _even_factors(gains, base)
    even, variant = (_host_times(gains, base, factor * factors) for factor in (1, _FACTOR))
    late, whole = gains.of(even, variant)
    gain = whole.beyond(late.by_step)
    if not gain.is_sure or gain.share < _WORTH:
        return
    yield gains.opportunity(
        gain,
        variant,
        title="The devices wait for their hosts to launch work",
        remedy="use CUDA graphs or torch.compile, fuse small kernels, or give each launch more work",
        change="hosts take half their time",
    )


def _even_factors(gains: Gains, base: Times) -> Times:
    """Return for each operation the factor that makes its rank's host as fast as the median."""
    durations = base[:-1].reshape(-1, VALUES)[:, [GAP, OWN]].clip(min=0).sum(axis=1)
    ranks = gains.operations["rank"].fill_null(-1).to_numpy()
    numbers, place = np.unique(ranks, return_inverse=True)
    totals = np.bincount(place, weights=durations * gains.on_host, minlength=len(numbers))
    typical = float(np.median(totals))
    factors = np.where(totals > _UNEVEN * typical, typical / np.maximum(totals, 1), 1.0)
    by_operation: Times = factors[place]
    return by_operation


def _host_times(gains: Gains, base: Times, factors: Times) -> Times:
    """Return the variant in which the hosts' times before and in calls change by factors."""
    variant = base.copy()
    rows = gains.on_host.nonzero()[0]
    for part in (GAP, OWN):
        variant[rows * VALUES + part] *= factors[rows]
    return variant
