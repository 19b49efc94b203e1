"""Observations of a run from its files and environment: ranks, devices, libraries."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.collect.environment.machine import is_unavailable
from ccl_bench.trace.discovery import HEAD_BYTES, discover_traces

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ccl_bench.collect.describe.torchtitan import EffectiveConfig

_BACKEND = re.compile(rb'"distributedInfo":\s*\{\s*"backend":\s*"([^"]+)"')


@dataclass(frozen=True, slots=True)
class Observations:
    """Observations of a run; None for unknown values."""

    world_size: int | None = None
    kinds: frozenset[str] = frozenset()
    """Formats of its traces."""
    backend: str = ""
    """Communication backend, as named in the traces."""
    configuration: EffectiveConfig | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)
    command: tuple[str, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    """Content of `run_metadata.json`."""

    @property
    def recording(self) -> Mapping[str, Any] | None:
        """How the library recorded a training loop; None if it did not."""
        recording = self.metadata.get("recording")
        return recording if isinstance(recording, dict) else None

    @property
    def is_jax(self) -> bool:
        """Whether JAX ran the program, and not PyTorch."""
        if self.recording is not None:
            return self.recording.get("profiler") == "jax"
        return bool(self.kinds & {"xplane", "jax_trace"}) and "kineto" not in self.kinds

    @property
    def accelerator(self) -> str:
        """Type of the computing unit in cards, such as `GPU`; empty if unknown."""
        if self.is_jax and self.recording:
            return str(self.recording.get("platform", "")).upper()
        return "GPU" if self.devices else "CPU" if self.torch else ""

    @property
    def device_name(self) -> str | None:
        """The product name of a device, or of the processor if there is none."""
        if self.is_jax and self.recording and self.accelerator != "CPU" and not self.devices:
            return str(self.recording.get("device", "")) or None
        if self.accelerator == "CPU":
            host = self.environment.get("host", {})
            return str(host.get("processor") or "") or None
        return self.devices[0]["name"] if self.devices else None

    @property
    def devices(self) -> list[dict[str, Any]]:
        """Accelerators of one node: as the driver lists them, else as torch does."""
        driver_devices = self.environment.get("devices")
        if isinstance(driver_devices, list):
            return driver_devices
        return list(self.torch.get("devices", []))

    @property
    def device_memory_bytes(self) -> int | None:
        """Memory of one device as torch reports it, else as the driver does."""
        for device in (*self.torch.get("devices", []), *self.devices):
            if "memory_bytes" in device:
                return int(device["memory_bytes"])
            if "memory_mib" in device:
                return int(device["memory_mib"]) << 20
        return None

    @property
    def software(self) -> Mapping[str, Any]:
        """Versions in the command's environment."""
        software = self.environment.get("software", {})
        return {} if is_unavailable(software) else software

    @property
    def torch(self) -> Mapping[str, Any]:
        """Versions and devices that torch reports."""
        torch = self.software.get("torch", {})
        return {} if is_unavailable(torch) else torch

    @property
    def variables(self) -> Mapping[str, str]:
        """Relevant environment variables."""
        return dict(self.environment.get("variables", {}))


def observe(
    target: Path,
    environment: Mapping[str, Any],
    metadata: Mapping[str, Any],
    configuration: EffectiveConfig | None,
) -> Observations:
    """Return the observations of the run in `target` and its environment."""
    traces = discover_traces(target).traces
    sizes = {trace.world_size for trace in traces if trace.world_size is not None}
    recorded_size = metadata.get("world_size")
    if not sizes and "recording" in metadata and isinstance(recorded_size, int):
        sizes = {recorded_size}  # by the program that recorded itself
    backend = ""
    for trace in traces:
        if trace.form.name == "kineto" and not backend:
            match = _BACKEND.search(storage.read_head(trace.path, HEAD_BYTES))
            backend = match[1].decode(errors="replace") if match else ""
    return Observations(
        world_size=sizes.pop() if len(sizes) == 1 else None,
        kinds=frozenset(trace.form.name for trace in traces),
        backend=backend,
        configuration=configuration,
        environment=environment,
        command=tuple(environment.get("command", ())),
        metadata=metadata,
    )
