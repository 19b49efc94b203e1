"""Numbers that the board derives from those of a row: throughput per device, tokens/s of a user."""

from __future__ import annotations

import pkgutil
import tomllib
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

DERIVED = "derived from TTFT, TPOT and concurrency"
"""Basis of a throughput that nobody measured."""

LITTLE = ("TTFT", "TPOT")
"""Metrics that such a throughput follows from, beside the load of the row."""


@cache
def board_numbers() -> dict[str, dict[str, str]]:
    """Return name → title, unit, better direction and formula of each number."""
    return tomllib.loads((pkgutil.get_data(__package__, "board_numbers.toml") or b"").decode())


def derive(
    run: Mapping[str, Any], values: Mapping[str, float]
) -> Iterator[tuple[str, float, tuple[str, ...]]]:
    """Yield (name, value, metrics that it follows from) of a row; `values` are its own, in base units.

    A throughput follows from the latency of a request by Little's law: of `concurrency` requests under way,
    each takes TTFT + (output tokens - 1) x TPOT.
    """
    devices, ttft_s, tpot_s = run["device_count"], values.get("TTFT"), values.get("TPOT")
    if tpot_s:
        yield "interactivity", 1 / tpot_s, ("TPOT",)
    if not devices:
        return
    of_metric = {
        "output_throughput_per_device": "output_throughput",
        "total_throughput_per_device": "total_token_throughput",
        "training_throughput_per_device": "throughput_tokens_sec",
    }
    for name, metric in of_metric.items():
        if values.get(metric):
            yield name, values[metric] / devices, (metric,)
    load = (run["concurrency"], run["output_len"], run["input_len"])
    if ttft_s and tpot_s and all(load) and not {"output_throughput", *of_metric}.intersection(values):
        requests_per_s = load[0] / (ttft_s + (load[1] - 1) * tpot_s)
        yield "output_throughput_per_device", requests_per_s * load[1] / devices, LITTLE
        yield "total_throughput_per_device", requests_per_s * (load[1] + load[2]) / devices, LITTLE
