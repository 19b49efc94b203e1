"""Samples of devices from monitoring tools during a run: power, clocks, temperature, NVLink.

Read are `nvidia-smi --query-gpu=timestamp,... --format=csv`, `nvidia-smi dmon -o DT`, `amd-smi metric` and
`monitor` with `-w` as CSV or JSON, and DCGM's fields as Prometheus gives them (`query_range` as JSON, text
with times). A log without times is refused: it belongs to no step. Times of nvidia-smi have no zone.
"""

from __future__ import annotations

import csv
import math
import re
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.base.units import FIRST_WALL_CLOCK_NS
from ccl_bench.card.yaml_tree import IssueLog, Reading, shown
from ccl_bench.catalog import load_data
from ccl_bench.side_files.json_file import json_value
from ccl_bench.storage.files import MIB, read_head, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    from ccl_bench.storage.files import Location

MAX_BYTES = 256 * MIB
SUFFIXES = (".csv", ".txt", ".log", ".json", ".prom")
"""How the names of such files end; their content decides."""
_HEAD_BYTES = 16 << 10


_TIMES = "sample with nvidia-smi --query-gpu=timestamp,index,power.draw --format=csv -lms 100 -f FILE.csv"


@dataclass(frozen=True, slots=True)
class SampledDevice:
    """A device as a monitoring tool names it."""

    file: str
    host: str = ""
    index: int | None = None
    """Its number on the host, as the tool counts."""
    uuid: str = ""

    @property
    def name(self) -> str:
        """The device as messages and details name it."""
        name = f"{self.file}#{self.uuid if self.index is None else self.index}"
        return f"{name} on {self.host}" if self.host else name


@dataclass(slots=True)
class SampleSeries:
    """One quantity of one device over time."""

    device: SampledDevice
    quantity: str
    """A name of catalog/device_samples.toml, which ends in the unit."""
    is_local: bool
    """Whether times are those of a wall clock in an unknown zone, counted as if it were UTC."""
    times_ns: list[int] = field(default_factory=list)
    values: list[float] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class DeviceSamples:
    """What monitoring tools logged of the devices of a run."""

    series: tuple[SampleSeries, ...] = ()
    ranks: Mapping[str, int] = field(default_factory=dict)
    """`FILE#DEVICE` → rank, where `ranks.json` states it; the device by number or UUID."""


@dataclass(frozen=True, slots=True)
class _Sample:
    device: SampledDevice
    time_ns: int
    is_local: bool
    values: dict[str, float]
    """Name of the tool → number."""


def is_device_samples(head: bytes) -> bool:
    """Whether a file that begins with these bytes is a log of a monitoring tool, with times or without."""
    text = head.decode("utf-8", "replace")
    if text.lstrip()[:1] in "{[":
        words = {*re.findall(r'"(\w+)"', text)}
        return '"DCGM_FI_' in text or (
            words >= {"gpu", "timestamp"} and not words.isdisjoint(_names("amd_smi"))
        )
    lines = text.splitlines()[:_HEADER_LINES]
    return any(_is_table(_fields(line)) or _names_of_dmon(line) for line in lines) or bool(
        _METRIC.search(text) or any(line.startswith("#Entity") for line in lines)
    )


def is_device_samples_file(path: Path) -> bool:
    """Whether a file is a log of a monitoring tool; never raises for what the file holds."""
    try:
        return path.suffix.lower() in SUFFIXES and is_device_samples(read_head(path, _HEAD_BYTES))
    except (OSError, InputError):
        return False


def read_device_samples(path: Location, before: DeviceSamples | None = None) -> Reading[DeviceSamples]:
    """Return the samples of one file behind those read `before`; InputError if it has none with a time."""
    return device_samples_in_text(read_text(path, MAX_BYTES), file=str(path), before=before)


def device_samples_in_text(
    text: str, *, file: str = "", before: DeviceSamples | None = None
) -> Reading[DeviceSamples]:
    """Return the samples in a text behind those read `before`; `file` names it in messages."""
    log = IssueLog(file)
    tool, samples = _samples(text, file.replace("\\", "/").rsplit("/", 1)[-1], log)
    series = _series(_names(tool), samples)
    if not series and not log.entries:
        log.error("", "contains no sample of a known quantity", _TIMES)
    earlier = before or DeviceSamples()
    return Reading(DeviceSamples((*earlier.series, *series), earlier.ranks), log.in_order(), file)


def _samples(text: str, file: str, log: IssueLog) -> tuple[str, list[_Sample]]:
    """Return the tool that wrote a text, and its samples."""
    if text.lstrip()[:1] in ("{", "["):
        data, _ = json_value(text, log.file)
        if isinstance(data, dict):
            return "dcgm", list(_of_prometheus(data, file))
        return "amd_smi", list(_of_amd_json(data, file))
    lines = text.splitlines()
    for index, line in enumerate(lines[:_HEADER_LINES]):
        if names := _names_of_dmon(line):
            return "dmon", list(_of_dmon(names, lines[index + 1 :], file, log))
        if _is_table(_fields(line)):
            return _of_table(lines[index:], file, log)
    if any(line.startswith("#Entity") for line in lines[:_HEADER_LINES]):
        raise InputError("is the output of dcgmi dmon, which records no times", where=log.file, fix=_TIMES)
    return "dcgm", list(_of_prometheus_text(lines, file, log))


_HEADER_LINES = 5
"""Lines in which a header is looked for: amd-smi prints one before it."""
_AMD_DEVICE = ("gpu", "gpu_id")
_NVIDIA_DEVICE = ("index", "gpu_uuid", "uuid", "pci.bus_id", "gpu_bus_id")


@cache
def _names(tool: str) -> dict[str, tuple[str, float]]:
    """Return a tool's name of each quantity → the quantity and the factor of its numbers."""
    return {
        name: (row["name"], row.get("factor", {}).get(tool, 1.0))
        for row in load_data("device_samples")["quantity"]
        for name in row.get(tool, ())
    }


def _fields(line: str) -> list[str]:
    """Return the fields of a line of CSV, bare."""
    try:
        return [text.strip() for text in next(csv.reader([line], skipinitialspace=True), [])]
    except csv.Error:
        return []


def _bare(name: str) -> str:
    return name.partition(" [")[0].strip().lower()


def _is_table(header: Sequence[str]) -> bool:
    names = {_bare(name) for name in header}
    is_amd = not names.isdisjoint(_AMD_DEVICE) and not names.isdisjoint(_names("amd_smi"))
    is_nvidia = any("." in name for name in names) and not names.isdisjoint(_names("nvidia_smi"))
    return is_nvidia or is_amd


def _of_table(lines: Sequence[str], file: str, log: IssueLog) -> tuple[str, list[_Sample]]:
    """Return the samples of a table of nvidia-smi or amd-smi, which may repeat its header."""
    header = _fields(lines[0])
    names = [_bare(name) for name in header]
    if "timestamp" not in names:
        raise InputError("is a log of device samples without times", where=log.file, fix=_TIMES)
    tool = "nvidia_smi" if any("." in name for name in names) else "amd_smi"
    units = {
        name: row["unit"] for row in load_data("device_samples")["quantity"] for name in row.get(tool, ())
    }
    for name in header if tool == "nvidia_smi" else ():
        match, expected = re.match(r"[^\[]*\[(.*)\]", name), units.get(_bare(name), "")
        if match and expected and match[1].strip() != expected:
            message = f"{_bare(name)} is in {shown(match[1])}, not in {expected}"
            raise InputError(message, where=log.file, fix="log it in the unit that nvidia-smi uses")
    samples, lost = [], 0
    for line in lines[1:]:
        cells = _fields(line)
        if not cells or [_bare(cell) for cell in cells] == names:
            continue
        row = dict(zip(names, cells, strict=False))
        time = _time(row["timestamp"]) if len(cells) == len(names) else None
        if time is None:
            lost += 1
            continue
        samples.append(_Sample(_device_in(row, file), *time, _numbers(row, tool)))
    if lost:
        log.warning(
            "",
            f"{lost} lines are cut off or have no time and are left out",
            "do nothing, unless there are many",
        )
    return tool, samples


def _device_in(row: Mapping[str, str], file: str) -> SampledDevice:
    index = next((row[name] for name in ("index", *_AMD_DEVICE) if name in row), "")
    uuid = next((row[name] for name in ("gpu_uuid", "uuid", "pci.bus_id", "gpu_bus_id") if name in row), "")
    return SampledDevice(file, "", int(index) if index.isdecimal() and len(index) < 7 else None, uuid)


_VALUE = re.compile(r"\s*(0x[0-9a-fA-F]{1,16}|[-+]?\d[\d.]*(?:[eE][-+]?\d+)?)\s*(?:W|MHz|%|C|J)?\s*")


def _number(text: object) -> float | None:
    """Return a number with or without its unit; None if there is none, as in `[N/A]`."""
    if isinstance(text, bool) or not isinstance(text, int | float | str):
        return None
    match = _VALUE.fullmatch(str(text))
    if match is None:
        return None
    try:
        value = float(int(match[1], 16)) if match[1].startswith("0x") else float(match[1])
    except (ValueError, OverflowError):
        return None
    return value if math.isfinite(value) and value >= 0 else None


def _numbers(row: Mapping[str, Any], tool: str) -> dict[str, float]:
    values = {name: _number(row[name]) for name in _names(tool) if name in row}
    return {name: value for name, value in values.items() if value is not None}


_LOCAL = re.compile(
    r"(\d{4})[/-]?(\d\d)[/-]?(\d\d)[ T](\d\d):(\d\d):(\d\d)(?:[.,](\d{1,9}))?\s*(Z|[-+]\d\d:?\d\d)?"
)
_EPOCH_UNITS = ((10**11, 10**9), (10**14, 10**6), (10**17, 10**3), (10**20, 1))
"""Below which number a Unix time counts in which unit, ns: seconds, then milli-, micro- and nanoseconds."""


def _time(text: object) -> tuple[int, bool] | None:
    """Return a time in ns since the epoch and whether it is local; None if the text is no time."""
    text_of_time = str(text).strip()
    if re.fullmatch(r"\d{9,20}(?:\.\d{1,9})?", text_of_time):
        whole, _, fraction = text_of_time.partition(".")
        unit = next((unit for limit, unit in _EPOCH_UNITS if int(whole) < limit), 0)
        time_ns = int(whole) * unit + (int(fraction.ljust(9, "0")) * unit // 10**9 if fraction else 0)
        return (time_ns, False) if time_ns >= FIRST_WALL_CLOCK_NS else None
    match = _LOCAL.fullmatch(text_of_time)
    if match is None:
        return None
    try:
        moment = datetime(*(int(match[part]) for part in range(1, 7)), tzinfo=UTC)  # type: ignore[misc,arg-type]
    except ValueError:
        return None
    time_ns = int(moment.timestamp()) * 10**9 + int((match[7] or "0").ljust(9, "0"))
    zone = match[8]
    if zone and zone != "Z":
        digits = zone.replace(":", "")
        time_ns -= (1 if digits[0] == "+" else -1) * (int(digits[1:3]) * 60 + int(digits[3:])) * 60 * 10**9
    return (time_ns, zone is None) if time_ns >= FIRST_WALL_CLOCK_NS else None


def _names_of_dmon(line: str) -> list[str]:
    """Return the columns that a header of `nvidia-smi dmon` names; none if it is none."""
    if not line.startswith("#"):
        return []
    names = [name.lower() for name in re.split(r"[\s,]+", line.lstrip("# ").strip())]
    return names if "gpu" in names and not {*names}.isdisjoint(_names("dmon")) else []


def _of_dmon(names: Sequence[str], lines: Sequence[str], file: str, log: IssueLog) -> Iterator[_Sample]:
    """Yield the rows of `nvidia-smi dmon`; its header and units come again and again."""
    if not {"date", "time"} <= {*names}:
        message = "is the output of nvidia-smi dmon without dates and times: add -o DT"
        raise InputError(message, where=log.file, fix=_TIMES)
    for line in lines:
        cells = re.split(r"[\s,]+", line.strip())
        if line.lstrip().startswith("#") or len(cells) != len(names):
            continue
        row = dict(zip(names, cells, strict=True))
        if time := _time(f"{row['date']} {row['time']}"):
            yield _Sample(_device_in({"index": row["gpu"]}, file), *time, _numbers(row, "dmon"))


def _of_prometheus(data: Mapping[str, Any], file: str) -> Iterator[_Sample]:
    """Yield the samples of an answer of Prometheus' HTTP interface."""
    inner = data.get("data")
    results = inner.get("result") if isinstance(inner, dict) else None
    for entry in results if isinstance(results, list) else ():
        labels = entry.get("metric") if isinstance(entry, dict) else None
        if not isinstance(labels, dict):
            continue
        pairs = entry.get("values", [entry.get("value")])
        for pair in pairs if isinstance(pairs, list) else ():
            if not isinstance(pair, list) or len(pair) != 2:
                continue
            is_fraction = isinstance(pair[0], float) and math.isfinite(pair[0])
            if time := _time(f"{pair[0]:.9f}" if is_fraction else pair[0]):
                name, value = str(labels.get("__name__")), _number(pair[1])
                if value is not None:
                    yield _Sample(_labelled(labels, file), *time, {name: value})


def _labelled(labels: Mapping[str, object], file: str) -> SampledDevice:
    index = str(labels.get("gpu", ""))
    host = next((str(labels[key]) for key in ("Hostname", "hostname", "instance") if key in labels), "")
    return SampledDevice(
        file, host, int(index) if index.isdecimal() and len(index) < 7 else None, str(labels.get("UUID", ""))
    )


_METRIC = re.compile(r"^(DCGM_FI_\w+)\{([^}]*)\}\s+(\S+)(?:\s+(\d+))?\s*$", re.MULTILINE)
_LABEL = re.compile(r'(?<!\w)(\w++)="([^"]*)"')


def _of_prometheus_text(lines: Iterable[str], file: str, log: IssueLog) -> Iterator[_Sample]:
    """Yield the samples of DCGM's exporter that have a time."""
    matches = [match for line in lines if (match := _METRIC.match(line))]
    if matches and not any(match[4] for match in matches):
        message = "is a page of DCGM's exporter, which has no times: use Prometheus' query_range"
        raise InputError(message, where=log.file, fix="save the JSON answer for the time of the run")
    for match in matches:
        time, value = _time(match[4] or ""), _number(match[3])
        if time and value is not None:
            yield _Sample(_labelled(dict(_LABEL.findall(match[2])), file), *time, {match[1]: value})


def _of_amd_json(data: object, file: str) -> Iterator[_Sample]:
    """Yield the samples of amd-smi's JSON: a list of devices, or of such lists."""
    for item in data if isinstance(data, list) else ():
        if isinstance(item, list):
            yield from _of_amd_json(item, file)
        elif isinstance(item, dict) and (time := _time(item.get("timestamp"))):
            row = {"gpu": str(item.get("gpu", ""))} | dict(_flat(item))
            yield _Sample(_device_in(row, file), *time, _numbers(row, "amd_smi"))


def _flat(item: Mapping[str, Any], depth: int = 4) -> Iterator[tuple[str, Any]]:
    """Yield each number under its own name; `{"value": 1, "unit": "W"}` is a number."""
    for key, value in item.items():
        if isinstance(value, dict) and "value" in value:
            yield key, value["value"]
        elif isinstance(value, dict) and depth:
            yield from _flat(value, depth - 1)
        elif key not in _AMD_DEVICE:
            yield key, value


def _series(names: Mapping[str, tuple[str, float]], samples: Iterable[_Sample]) -> list[SampleSeries]:
    """Return samples as series in order of time; of several names of one quantity the first counts."""
    points: dict[tuple[SampledDevice, str, bool], dict[int, float]] = {}
    for sample in samples:
        for name, value in sample.values.items():
            if name in names:
                of_name = points.setdefault((sample.device, name, sample.is_local), {})
                of_name[sample.time_ns] = value * names[name][1]
    order = {name: index for index, name in enumerate(names)}
    best: dict[tuple[SampledDevice, str], SampleSeries] = {}
    for (device, name, is_local), values in sorted(points.items(), key=lambda item: order[item[0][1]]):
        quantity, in_order = names[name][0], dict(sorted(values.items()))
        series = SampleSeries(device, quantity, is_local, [*in_order], [*in_order.values()])
        best.setdefault((device, quantity), series)
    return list(best.values())


__all__ = [
    "DeviceSamples",
    "SampleSeries",
    "SampledDevice",
    "device_samples_in_text",
    "is_device_samples",
    "is_device_samples_file",
    "read_device_samples",
]
