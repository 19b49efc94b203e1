"""Metrics of cost: US dollars of a step and of a million tokens, at a price that the run states."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.facts import needed_tokens_per_step
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.catalog.devices import models
from ccl_bench.metrics import Measurement, metric
from ccl_bench.metrics.iteration_wall_clock_time import iteration_wall_clock_time
from ccl_bench.metrics.output_throughput import output_throughput
from ccl_bench.metrics.shared import checks
from ccl_bench.metrics.shared.energy import needed_devices

if TYPE_CHECKING:
    from ccl_bench.analysis.facts import Facts
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.side_files import DevicePrice, Prices

_FILE = "prices.toml"
HOUR_S = 3600
MILLION = 1e6

_STATE = (
    f"write it with its date and source into {_FILE}, or price_per_device_hour into the hardware of the "
    "workload card"
)


@metric(unit="USD", better="lower")
def cost_per_step(
    step_times: pl.DataFrame, devices: pl.DataFrame, facts: Facts, prices: Prices | None
) -> Measurement:
    """Price of the time that all devices of the job spend on one step.

    Formula:
        cost_per_step = price of a device and hour * devices * iteration_wall_clock_time / 3600 s

        The price is that of the device in `prices.toml`, else `price_per_device_hour` of the card.

    Caveats:
        Nothing is assumed: without a price there is no value. Time between steps, storage and network cost
        extra. Compare only costs at prices of the same kind and date; the details name the source, and the
        date where `prices.toml` states one. The caveats of `iteration_wall_clock_time` apply.

    Reference:
        Device hours times price, as clouds bill.
    """
    price = _price(facts, prices, devices)
    count = needed_devices(facts)
    time = iteration_wall_clock_time(step_times)
    usd_per_s = price.usd * count.value / HOUR_S
    details = {
        **price.details,
        "devices": count.value,
        "devices_source": count.source,
        "iteration_wall_clock_time_s": time.value,
        "per_step_usd": {step: usd_per_s * seconds for step, seconds in time.details["per_step_s"].items()},
    }
    return Measurement(usd_per_s * time.value, details, time.window, time.ranks, price.findings)


@metric(unit="USD/Mtoken", better="lower")
def cost_per_million_tokens(
    step_times: pl.DataFrame, devices: pl.DataFrame, facts: Facts, prices: Prices | None
) -> Measurement:
    """Price of the time that all devices of the job spend on a million tokens of its steps.

    Formula:
        cost_per_million_tokens = 10^6 * cost_per_step / tokens_per_step

    Caveats:
        Those of `cost_per_step`, and for the tokens in a step those of `throughput_tokens_sec`. For a serving
        benchmark see `cost_per_million_output_tokens`.

    Reference:
        Device hours times price, as clouds bill.
    """
    tokens = needed_tokens_per_step(facts)
    cost = cost_per_step(step_times, devices, facts, prices)
    scale = MILLION / tokens.value
    details = {name: value for name, value in cost.details.items() if name != "per_step_usd"} | {
        "cost_per_step_usd": cost.value,
        "tokens_per_step": tokens.value,
        "tokens_per_step_source": tokens.source,
        "per_step_usd_per_mtoken": {step: scale * usd for step, usd in cost.details["per_step_usd"].items()},
    }
    return Measurement(scale * cost.value, details, cost.window, cost.ranks, cost.findings)


@metric(unit="USD/Mtoken", better="lower", applies=(checks.inference,))
def cost_per_million_output_tokens(
    requests: pl.DataFrame,
    serving_statistics: pl.DataFrame,
    devices: pl.DataFrame,
    facts: Facts,
    prices: Prices | None,
) -> Measurement:
    """Price of the time that all devices of a server take for a million output tokens of a benchmark.

    Formula:
        cost_per_million_output_tokens = 10^6 * price of a device and hour * devices
                                         / (3600 s * output_throughput)

    Caveats:
        Those of `output_throughput`, and for the price those of `cost_per_step`. Input tokens are not
        counted, but their prefill takes time that is paid for. It is the cost under the load of this
        benchmark: a server that waits for requests costs as much.

    Reference:
        Device hours times price, as clouds bill; prices of services are for a million tokens.
    """
    price = _price(facts, prices, devices)
    count = needed_devices(facts)
    rate = output_throughput(requests, serving_statistics)
    details = {
        **price.details,
        "devices": count.value,
        "devices_source": count.source,
        "output_throughput_tokens_per_s": rate.value,
        "requests": rate.details["requests"],
    }
    value = MILLION * price.usd * count.value / (HOUR_S * rate.value)
    return Measurement(value, details, rate.window, rate.ranks, price.findings)


@dataclass(frozen=True, slots=True)
class _Price:
    usd: float
    """US dollars for a device and hour."""
    details: dict[str, Any]
    findings: list[Finding] = field(default_factory=list)


def _price(facts: Facts, prices: Prices | None, devices: pl.DataFrame) -> _Price:
    """Return the price of a device of the run: that of the file, which has a date, else that of the card."""
    on_card = facts.price_per_device_hour
    in_file, reason = (
        _price_in_file(facts, prices, devices) if prices else (None, "the price of a device is unknown")
    )
    if in_file:
        details = {
            "price_per_device_hour_usd": in_file.usd,
            "price_source": f"{_FILE}: {in_file.source}",
            "price_date": in_file.date,
            "price_device": in_file.device,
        }
        findings = []
        if on_card and on_card.value != in_file.usd:
            message = (
                f"price_per_device_hour is {in_file.usd:g} in {_FILE} and {on_card.value:g} in the "
                f"{on_card.source}; the first is used"
            )
            findings.append(Finding("facts-disagree", "warning", message, _FILE, count=2))
        return _Price(in_file.usd, details, findings)
    if on_card is None:
        raise NotMeasurable(reason, fix=_STATE, is_repairable=True)
    return _Price(on_card.value, {"price_per_device_hour_usd": on_card.value, "price_source": on_card.source})


def _price_in_file(facts: Facts, prices: Prices, devices: pl.DataFrame) -> tuple[DevicePrice | None, str]:
    """Return the price of the device that traces show or the card states; None and the reason without one.

    A price for a name counts for every device that the name may stand for: that of `H100` for an H100 SXM,
    but that of `H100 SXM` not for an `H100`. The price of the fewest devices comes first.
    """
    seen = devices["name"].unique().drop_nulls().sort().to_list()
    names = [name for name in seen if name] or ([facts.device.value] if facts.device else [])
    if not names:
        return None, f"{_FILE} has prices, but the device of the run is unknown"
    if len({tuple(models(name)) or name for name in names}) > 1:
        return None, f"{_FILE} has prices by device, and the run used several: {', '.join(names)}"
    name, wanted = names[0], {*models(names[0])}
    meant = {price: {*models(price.device)} for price in prices.devices}
    fitting = [
        price
        for price in meant
        if _plain(price.device) == _plain(name) or (wanted and wanted <= meant[price])
    ]
    best = [price for price in fitting if len(meant[price]) == min(len(meant[each]) for each in fitting)]
    if len({price.usd for price in best}) > 1:
        listed = " and ".join(f"{price.usd:g} of {price.date}" for price in best)
        return None, f"{_FILE} has several prices for {name}: {listed}"
    listed = ", ".join(price.device for price in prices.devices)
    return (best[0], "") if best else (None, f"{_FILE} has no price for {name}, only for {listed}")


def _plain(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))
