"""Metrics of energy: joules of a step and of a token, and tokens a second for each watt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.facts import needed_tokens_per_step
from ccl_bench.analysis.serving.benchmark import total
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.energy import energy_of_benchmark, energy_of_steps
from ccl_bench.metrics.shared.serving import needed_benchmark, title

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.side_files import DeviceSamples


@metric(unit="J", better="lower", revision=2)
def energy_per_step(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame, facts: Facts
) -> Measurement:
    """Energy that all devices of the job take for one step.

    Formula:
        energy_per_step = sum over ranks of (integral of power over steps / number of steps)

        by the trapezoid rule, with the power at the borders of steps interpolated; from the devices' own
        counters of energy where they were sampled.

    Caveats:
        Hosts, network and cooling are not in it. There is no value if the samples of a rank begin after its
        first step or end before its last one, if a gap of more than 3 s would be interpolated, or if more or
        fewer devices were sampled than the job has ranks. See `power_draw`.

    Reference:
        MLPerf Power measures whole systems instead; DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION.
    """
    energy = energy_of_steps(device_samples, steps, device_used, facts)
    return Measurement(energy.total_j, energy.details, energy.window, energy.ranks, energy.findings)


@metric(unit="J/token", better="lower", revision=2)
def energy_per_token(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame, facts: Facts
) -> Measurement:
    """Energy that all devices of the job take for one token of a step.

    Formula:
        energy_per_token = energy_per_step / tokens_per_step

    Caveats:
        The caveats of `energy_per_step` apply, and for the tokens in a step those of
        `throughput_tokens_sec`. For a serving benchmark see `energy_per_output_token`.

    Reference:
        Joules per token as serving benchmarks report them, over devices only.
    """
    tokens = needed_tokens_per_step(facts)
    energy = energy_of_steps(device_samples, steps, device_used, facts)
    details = {
        **energy.details,
        "energy_per_step_j": energy.total_j,
        "tokens_per_step": tokens.value,
        "tokens_per_step_source": tokens.source,
    }
    value = energy.total_j / tokens.value
    return Measurement(value, details, energy.window, energy.ranks, energy.findings)


@metric(unit="tokens/s/W", better="higher")
def throughput_per_watt(
    device_samples: DeviceSamples | None, steps: pl.DataFrame, device_used: pl.DataFrame, facts: Facts
) -> Measurement:
    """Tokens that the whole job processes in a second for each watt of its devices.

    Formula:
        throughput_per_watt = tokens_per_step / energy_per_step

        because a watt is a joule a second; both are of the same steps.

    Caveats:
        Those of `energy_per_token`, of which it is the inverse. The steps are those of the traces: step times
        of a file without a profiler, which `throughput_tokens_sec` prefers, have no energy.

    Reference:
        Performance per watt, as the Green500 ranks systems by it.
    """
    energy = energy_per_token(device_samples, steps, device_used, facts)
    return Measurement(_inverse(energy.value), energy.details, energy.window, energy.ranks, energy.findings)


@metric(unit="J/token", better="lower", applies=(checks.inference,))
def energy_per_output_token(
    device_samples: DeviceSamples | None,
    requests: pl.DataFrame,
    serving_statistics: pl.DataFrame,
    facts: Facts,
) -> Measurement:
    """Energy that all devices of a server take for one output token of a serving benchmark.

    Formula:
        energy_per_output_token = sum over devices of the integral of power / sum of output tokens

        from the first request sent to the end of the last one, by the rules of `energy_per_step`.

    Caveats:
        Prefill is in it, so that long prompts make an output token dear. Failed requests take energy and give
        no token. Requests need wall-clock times, as AIPerf records them; vLLM's benchmark has another clock.
        Exactly the devices of the run must be sampled.

    Reference:
        Samsi et al. 2023, From Words to Watts: energy per output token, over devices only.
    """
    energy = energy_of_benchmark(device_samples, requests, serving_statistics, facts)
    benchmark = needed_benchmark(requests, serving_statistics)
    tokens = total(benchmark, "output_tokens")
    if tokens is None:
        name = title(benchmark.tool)
        raise NotMeasurable(f"the {name} result does not say how many output tokens there were")
    details = {**energy.details, "energy_j": energy.total_j, "output_tokens": tokens}
    return Measurement(energy.total_j / tokens, details, energy.window, energy.ranks, energy.findings)


@metric(unit="tokens/s/W", better="higher", applies=(checks.inference,))
def output_throughput_per_watt(
    device_samples: DeviceSamples | None,
    requests: pl.DataFrame,
    serving_statistics: pl.DataFrame,
    facts: Facts,
) -> Measurement:
    """Output tokens in a second of a serving benchmark for each watt of its devices.

    Formula:
        output_throughput_per_watt = sum of output tokens / energy of all devices

        because a watt is a joule a second.

    Caveats:
        Those of `energy_per_output_token`, of which it is the inverse.

    Reference:
        Performance per watt, as the Green500 ranks systems by it.
    """
    energy = energy_per_output_token(device_samples, requests, serving_statistics, facts)
    return Measurement(_inverse(energy.value), energy.details, energy.window, energy.ranks, energy.findings)


def _inverse(joules_per_token: float) -> float:
    """Return tokens for each joule, or raise NotMeasurable: a device that is on takes energy."""
    if joules_per_token <= 0:
        raise NotMeasurable(
            "the sampled power is 0", fix="check that the tool may read the power of the devices"
        )
    return 1 / joules_per_token
