"""Accelerators: peak FLOP/s, memory and links by the name a profiler, a driver or a person uses.

Also what shows that a process used one at all: collective backends and operators.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from functools import cache, reduce
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.registry import did_you_mean
from ccl_bench.catalog import dtypes, load_data

if TYPE_CHECKING:
    from collections.abc import Mapping

SEARCHED = 256
"""Characters of a device's name that patterns are looked for in: names have up to 60, and some patterns take
time with the cube of their number."""

_GIVE_PEAK = "write gpu_peak_tflops into run_metadata.json"
# ECC on GDDR takes 1/16 of the memory and drivers a little more; the next larger model has
# at least 1.2 times as much.
_LEAST_REPORTED, _MOST_REPORTED = 0.90, 1.01


@dataclass(frozen=True, slots=True, eq=False)
class Device:
    """An accelerator as one rank holds it; a figure not known, or left open by a vague name, is None."""

    name: str
    """Name in the catalog; several joined by "or" where the name asked for left that open."""
    vendor: str | None
    """Maker."""
    release_year: int | None
    """Year of the announcement."""
    memory_bytes: int | None
    """Memory as sold, bytes; what a driver reports is up to a tenth less."""
    memory_bandwidth_bytes_per_s: float | None
    """Peak memory bandwidth, bytes per second."""
    compute_units: int | None
    """SMs (NVIDIA), CUs (AMD) or TensorCores (TPU)."""
    link: str | None
    """Scale-up link, such as `NVLink 4`."""
    link_bytes_per_s: float | None
    """Scale-up bandwidth of the device, both directions together, bytes per second."""
    pcie_generation: int | None
    """PCI Express generation."""
    compute_capability: str | None
    """CUDA compute capability; None for other makers."""
    peaks: Mapping[str, float]
    """dtype -> peak operations per second without sparsity."""
    sources: Mapping[str, str]
    """Figure, or dtype of a peak -> key of its source."""

    @property
    def link_bytes_per_s_per_direction(self) -> float | None:
        """Scale-up bandwidth in one direction, bytes per second."""
        return None if self.link_bytes_per_s is None else self.link_bytes_per_s / 2

    @property
    def has_faster_tf32(self) -> bool:
        """Whether its matrix units may multiply fp32 as TF32, which is faster."""
        return self.peaks.get("tf32", 0) > self.peaks.get("fp32", 0)

    def peak_flops(self, dtype: str) -> float:
        """Return the dense peak for a dtype under any spelling, in operations per second."""
        peak_name = dtypes.dtype(dtype).peak
        if peak_name not in self.peaks:
            raise NotMeasurable(
                f"no dense {dtypes.canonical(dtype)} peak is known for {self.name}",
                fix=f"known: {', '.join(self.peaks)}; or {_GIVE_PEAK}",
            )
        return self.peaks[peak_name]

    def source(self, figure: str) -> str:
        """Return title and document of a figure's source; `figure` is a field, or the dtype of a peak."""
        entry = load_data("devices")["sources"][self.sources[figure]]
        return f"{entry['title']}, {entry['document']}"


def device(name: str, *, memory_bytes: int | None = None) -> Device:
    """Return the device a name stands for, or raise NotMeasurable: there is no default device.

    A vague name such as `A100` gives the figures its models share, provided they share a peak. The memory
    a driver reports narrows the choice and must fit: a slice, or another model of that name, is refused.
    """
    candidates = [_catalog()[key] for key in _names_behind(name)]
    if memory_bytes is not None:
        candidates = [
            candidate
            for candidate in candidates
            if candidate.memory_bytes is None
            or _LEAST_REPORTED <= memory_bytes / candidate.memory_bytes <= _MOST_REPORTED
        ]
        if not candidates:
            raise NotMeasurable(
                f"{name!r} reports {memory_bytes} bytes of memory, which no device of that name has",
                fix=_GIVE_PEAK,
            )
    common = reduce(_shared, candidates)
    if not common.peaks:
        raise NotMeasurable(
            f"{name!r} does not say which: {common.name}", fix=f"name the model in full, or {_GIVE_PEAK}"
        )
    return common


def models(name: str) -> list[str]:
    """Return the names in the catalog that a name may stand for, none for a device it does not know."""
    try:
        return _names_behind(name)
    except NotMeasurable:
        return []


@cache
def fastest_memory_bytes_per_s() -> float:
    """Return the highest memory bandwidth of the catalog: no device reads or writes more."""
    return max(each.memory_bandwidth_bytes_per_s or 0.0 for each in _catalog().values())


@cache
def fastest_link_bytes_per_s() -> float:
    """Return the highest scale-up bandwidth of the catalog in one direction."""
    return max(each.link_bytes_per_s_per_direction or 0.0 for each in _catalog().values())


def names() -> list[str]:
    """Return the names in the catalog."""
    return list(_catalog())


def _names_behind(name: str) -> list[str]:
    plain = _plain(name)
    for own_name in _catalog():
        if _plain(own_name) == plain:
            return [own_name]
    for rule in load_data("devices")["match"]:
        if re.search(rule["pattern"], plain[:SEARCHED]):
            if keys := list(rule["devices"]):
                return keys
            raise NotMeasurable(f"no figures are known for {name!r}: {rule['why']}", fix=_GIVE_PEAK)
    hint = did_you_mean(name, _catalog())
    raise NotMeasurable(f"unknown device {name!r}", fix=f"{hint} Or {_GIVE_PEAK}" if hint else _GIVE_PEAK)


def _plain(name: str) -> str:
    return re.sub(r"[\s_\-/.]+", " ", name.lower()).strip()


def _shared(first: Device, second: Device) -> Device:
    peaks = {dtype: peak for dtype, peak in first.peaks.items() if second.peaks.get(dtype) == peak}
    changes: dict[str, Any] = {
        field.name: None
        for field in fields(Device)
        if getattr(first, field.name) != getattr(second, field.name) and field.name != "sources"
    }
    changes |= {"name": f"{first.name} or {second.name}", "peaks": MappingProxyType(peaks)}
    return replace(first, **changes)


@cache
def _catalog() -> dict[str, Device]:
    plain_fields = [field.name for field in fields(Device) if field.name not in ("peaks", "sources")]
    catalog = {}
    for row in load_data("devices")["device"]:
        own_sources = row.get("sources", {})
        peak_source = own_sources.get("peak_flops", row["source"])
        sources = {dtype: own_sources.get(dtype, peak_source) for dtype in row["peak_flops"]}
        sources |= {key: own_sources.get(key, row["source"]) for key in plain_fields if key in row}
        plain: dict[str, Any] = {key: row.get(key) for key in plain_fields}
        catalog[row["name"]] = Device(
            **plain,
            peaks=MappingProxyType({dtype: float(peak) for dtype, peak in row["peak_flops"].items()}),
            sources=MappingProxyType(sources),
        )
    return catalog


_WORD = re.compile(r"[a-z]+")


def accelerator_backend(text: str) -> str:
    """Return the backend in a text such as `cuda:nccl` that moves tensors of accelerators; empty for none.

    Beside a backend of the CPU, as in `cpu:gloo,cuda:nccl`, it does not say where tensors are.
    """
    words = _WORD.findall(text.lower())
    if any(word in _names("host_backend") for word in words):
        return ""
    return next((word for word in words if word in _names("backend")), "")


def operator_pattern() -> str:
    """Return the pattern of the names of operators that only run on an accelerator."""
    return "|".join(f"(?:{row['match']})" for row in load_data("accelerators")["operator"])


def _names(table: str) -> set[str]:
    return {name for row in load_data("accelerators")[table] for name in row["names"]}
