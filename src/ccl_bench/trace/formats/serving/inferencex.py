"""Aggregates of InferenceX, formerly InferenceMAX: the statistics of one benchmark at one concurrency.

`utils/process_result.py` divides the rates of a vLLM result by devices and converts its times to seconds.
Of a disaggregated system it divides output by the devices that decode and input by those that prefill, so the
rates here are multiplied again: a rate per device is then one of all devices. Interactivity (`intvty`) is the
reciprocal of each statistic of TPOT, its `p99` that of the slowest requests, and is not read a second time.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.base.findings import Finding
from ccl_bench.trace.formats.serving.json_values import LONGEST_S, finite, read_objects
from ccl_bench.trace.formats.serving.requests import (
    RequestRows,
    Setting,
    StoredStatistic,
    differ_little,
    settings_of,
    statistic,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any, BinaryIO

    from ccl_bench.trace.content import TraceContent

_SETTINGS = {
    "hw": "system",
    "model": "model",
    "framework": "engine",
    "image": "image",
    "precision": "precision",
    "spec_decoding": "speculative_decoding",
    "mtp": "speculative_decoding",
    "num_speculative_tokens": "speculative_tokens",
    "disagg": "disaggregated",
    "is_multinode": "multinode",
    "isl": "input_tokens",
    "osl": "output_tokens",
    "tp": "tp",
    "pp": "pp",
    "ep": "ep",
    "dp_attention": "dp_attention",
    "prefill_num_workers": "prefill_workers",
    "prefill_tp": "prefill_tp",
    "prefill_ep": "prefill_ep",
    "prefill_dp_attention": "prefill_dp_attention",
    "decode_num_workers": "decode_workers",
    "decode_tp": "decode_tp",
    "decode_ep": "decode_ep",
    "decode_dp_attention": "decode_dp_attention",
}
_COUNTS = (
    *("conc", "isl", "osl", "tp", "pp", "ep"),
    *("prefill_num_workers", "prefill_tp", "num_prefill_gpu", "decode_num_workers"),
)
"""Keys of which a benchmark has at least one. Without devices that decode alone, theirs are 0."""
_TIME = re.compile(r"(mean|median|std|min|max|p\d+(?:\.\d+)?)_(ttft|tpot|itl|e2el)")
_FIX = "make the file again with InferenceX's utils/process_result.py, or leave it out of the run"


def read_inferencex(stream: BinaryIO, file: str) -> TraceContent:
    """Return the tables of an aggregate, `agg_*.json`, or of a list of them.

    Raises InputError for a value that no benchmark has: none of a file counts then.
    """
    rows = RequestRows("inferencex", file)
    for benchmark, document in enumerate(read_objects(stream, file)):
        where = file if benchmark == 0 else f"{file}, result {benchmark}"
        numbers = numbers_of(document, where)
        rows.settings += settings_of(document, _SETTINGS, benchmark)
        rows.stored.append(StoredStatistic(benchmark, "concurrency", "total", numbers["conc"]))
        rows.stored += _times(numbers, benchmark, where)
        devices = devices_of(document, numbers, where)
        rows.settings += [Setting(benchmark, name, f"{count:g}") for name, count in devices.items()]
        rates = _rates(numbers, devices, where)
        rows.stored += [StoredStatistic(benchmark, name, "total", rate) for name, rate in rates.items()]
        tpot, interactivity = numbers.get("mean_tpot"), numbers.get("mean_intvty")
        if tpot and interactivity and not differ_little(tpot * interactivity, 1.0):
            message = (
                f"mean_intvty is {interactivity:g} tokens/s, but mean_tpot gives {1 / tpot:.6g}, which counts"
            )
            finding = Finding("statistics-disagree", "warning", message, where, touches=("requests",))
            rows.findings.append(finding)
    return rows.content()


def numbers_of(document: Mapping[str, Any], where: str) -> dict[str, float]:
    """Return the numbers of an aggregate by key, null as missing; InputError if one is impossible."""
    names = {key for key in document if _TIME.fullmatch(key)}
    names |= {*_COUNTS, "num_decode_gpu", "decode_tp", "tput_per_gpu", "output_tput_per_gpu"}
    names |= {"input_tput_per_gpu", "mean_intvty"}
    numbers = {}
    for key in sorted(name for name in names if document.get(name) is not None):
        number = finite(document[key])
        if number is None:
            raise InputError(f"{key} is not a number: {str(document[key])[:40]!r}", where=where, fix=_FIX)
        if number < 0 or (_TIME.fullmatch(key) and number > LONGEST_S):
            raise InputError(f"{key} is {number:g}, which no benchmark measures", where=where, fix=_FIX)
        if key in _COUNTS and (number < 1 or number != int(number)):
            raise InputError(f"{key} is {number:g}, not a whole number above 0", where=where, fix=_FIX)
        numbers[key] = number
    for key in ("conc", "tput_per_gpu"):
        if not numbers.get(key):
            raise InputError(f"{key} is missing or 0", where=where, fix=_FIX)
    return numbers


def _times(numbers: Mapping[str, float], benchmark: int, where: str) -> Iterator[StoredStatistic]:
    """Yield the statistics of times, s."""
    for key, number in numbers.items():
        if match := _TIME.fullmatch(key):
            quantity = "latency" if match[2] == "e2el" else match[2]
            yield StoredStatistic(benchmark, quantity, statistic(match[1]), number)
    ttft, latency = numbers.get("mean_ttft"), numbers.get("mean_e2el")
    if ttft is not None and latency is not None and latency < ttft:
        message = f"mean_e2el is {latency:g} s, shorter than mean_ttft, {ttft:g} s"
        raise InputError(message, where=where, fix=_FIX)


def devices_of(document: Mapping[str, Any], numbers: Mapping[str, float], where: str) -> dict[str, float]:
    """Return the devices that serve: all of them, or those that prefill and those that decode.

    Empty if a system in one piece does not state them; InputError if a disaggregated one does not.
    """
    is_divided = "num_prefill_gpu" in numbers or str(document.get("disagg")).lower() == "true"
    if not is_divided:
        return {"devices": numbers["tp"] * numbers.get("pp", 1.0)} if "tp" in numbers else {}
    devices = {}
    for part in ("prefill", "decode"):
        workers, degree = numbers.get(f"{part}_num_workers"), numbers.get(f"{part}_tp")
        count = numbers.get(f"num_{part}_gpu")
        if count is None and workers is not None and degree is not None:
            count = workers * degree
        if count is None:
            message = f"it is disaggregated, and num_{part}_gpu is missing"
            raise InputError(message, where=where, fix=_FIX)
        devices[f"{part}_devices"] = count
    return devices


def _rates(numbers: Mapping[str, float], devices: Mapping[str, float], where: str) -> dict[str, float]:
    """Return tokens per second over all devices; none if their number is unknown."""
    if not devices:
        return {}
    whole = sum(devices.values())
    prefill, decode = devices.get("prefill_devices", whole), devices.get("decode_devices") or whole
    total = numbers["tput_per_gpu"] * whole
    rates = {"total_token_throughput": total}
    if "output_tput_per_gpu" in numbers:
        rates["output_throughput"] = numbers["output_tput_per_gpu"] * decode
    if "input_tput_per_gpu" in numbers and "output_throughput" in rates:
        both = rates["output_throughput"] + numbers["input_tput_per_gpu"] * prefill
        if not differ_little(both, total):
            message = f"input and output are {both:.6g} tokens/s, but tput_per_gpu gives {total:.6g}"
            raise InputError(message, where=where, fix=_FIX)
    if rates.get("output_throughput", 0.0) > total:
        message = f"output alone is {rates['output_throughput']:.6g} tokens/s, more than all: {total:.6g}"
        raise InputError(message, where=where, fix=_FIX)
    return rates
