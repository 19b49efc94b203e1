"""The metric `throughput_tokens_sec`: tokens per second of the whole job."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.facts import needed_tokens_per_step
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.iteration_wall_clock_time import iteration_wall_clock_time

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.result.details import ThroughputDetails


@metric(unit="tokens/s", better="higher", aliases=("throughput_tokens_16",), revision=3)
def throughput_tokens_sec(step_times: pl.DataFrame, facts: Facts) -> Measurement:
    """Tokens that the whole job processes in a second.

    Formula:
        throughput_tokens_sec = tokens_per_step / iteration_wall_clock_time

        `tokens_per_step` as written in `run_metadata.json`, else global batch size times sequence length.

    Caveats:
        Padding counts as tokens. In inference, batch size times sequence length is the number of tokens of
        a prefill; a decode step processes one token per sequence: state `tokens_per_step`. The time is that
        of the slowest rank; if it comes from a trace, it includes the profiler's overhead.

    Reference:
        Throughput as torchtitan and MLPerf Training report it, over all devices.
    """
    tokens = needed_tokens_per_step(facts)
    time = iteration_wall_clock_time(step_times)
    rate = tokens.value / time.value
    details: ThroughputDetails = {
        "tokens_per_step": tokens.value,
        "tokens_per_step_source": tokens.source,
        "iteration_wall_clock_time_s": time.value,
        "per_step_tokens_per_s": {
            step: tokens.value / seconds for step, seconds in time.details["per_step_s"].items() if seconds
        },
    }
    if facts.world_size:
        details["tokens_per_s_per_gpu"] = rate / facts.world_size.value
        details["gpus"] = facts.world_size.value
    return Measurement(rate, details, time.window, time.ranks)
