"""The rule `warm_up`: the first steps still warm up."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.steps.findings import warm_up as count_warm_up
from ccl_bench.diagnosis import Silent, diagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity


@diagnosis(kind="run")
def warm_up(gains: Gains) -> Iterator[Opportunity]:
    """The first measured steps are longer than all others: the run was still warming up.

    How it is seen:
    Each of the first steps takes more than 1.5 times the median of the steps after them, and is further
    above the longest of those than that is above the shortest.

    Why it costs:
    It distorts the measurement, not the training: means and shares include one-time work,
    such as compiling, loading modules, the allocator's first requests, and the set-up of communicators.

    What to do:
    Leave the steps out with --skip-steps, or let the profiler wait and warm up longer:
    torch.profiler.schedule(wait=5, warmup=3, active=5); torchtitan profiling.profiler_warmup; Megatron
    --profile-step-start. The gain is the reduction of the mean step without them.

    When it is no problem:
    If you measure the start itself.

    Reference:
    torch.profiler.schedule; MLPerf Training also excludes the first steps
    """
    if len(gains.steps) < 3:
        raise Silent("there are fewer than three steps")
    count = count_warm_up(gains.replays.recorded_s.tolist())
    if count:
        which = np.arange(len(gains.steps)) < count
        yield gains.without_steps(
            which,
            title=f"The first {count} steps are warm-up" if count > 1 else "The first step is warm-up",
            remedy=f"leave them out with --skip-steps {count}, or record after more warm-up",
        )
