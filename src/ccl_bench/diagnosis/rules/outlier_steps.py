"""The rule `outlier_steps`: single steps are much longer than all others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.analysis.steps.findings import outliers
from ccl_bench.analysis.steps.findings import warm_up as count_warm_up
from ccl_bench.base.text import numbers
from ccl_bench.diagnosis import Silent, diagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity


@diagnosis(kind="run")
def outlier_steps(gains: Gains) -> Iterator[Opportunity]:
    """Single steps take at least twice as long as the median step.

    How it is seen:
    A step is an outlier if it is twice as long as the median, and six standard deviations
    above it. If more than a fifth of the steps are, the run has several kinds of steps, and none is an
    outlier.

    Why it costs:
    The mean step includes them; their cause, such as saving a checkpoint or an evaluation,
    repeats in a longer run.

    What to do:
    Find the special work in them: ccl-bench timeline RUN --steps N, or ccl-bench diagnose RUN
    --steps N. Save checkpoints asynchronously (torch.distributed.checkpoint.async_save; torchtitan
    checkpoint.async_mode; Megatron --async-save), collect garbage seldom, look for other load on the
    machine.

    When it is no problem:
    If the step intentionally does rare additional work.

    Reference:
    Median absolute deviation as in Leys et al., Journal of Experimental Social Psychology 49(4), 2013
    """
    lengths = gains.replays.recorded_s.tolist()
    first = count_warm_up(lengths) if len(lengths) > 2 else 0
    if len(lengths) - first < 5:
        raise Silent("there are fewer than five steps")
    median = float(np.median(lengths[first:]))
    long = [first + place for place in outliers(lengths[first:]) if lengths[first + place] > median]
    if long:
        which_ones = numbers([gains.steps[place] for place in long])
        which = np.isin(np.arange(len(lengths)), long)
        yield gains.without_steps(
            which,
            title=f"{len(long)} of {len(lengths)} steps took more than twice the median: {which_ones}",
            remedy="find the special work in them with --steps; save checkpoints asynchronously",
        )
