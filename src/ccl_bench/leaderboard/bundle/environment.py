"""What a run ran on, as far as it explains numbers, from what `ccl-bench collect` wrote down."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.collect.environment.capture import FILE_NAME

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_LONGEST = 200
"""Characters of a value."""


def environment_of(folder: Path) -> dict[str, str]:
    """Return processor, system, driver and versions of libraries; no host, user, path or address."""
    try:
        said = msgspec.json.decode((folder / FILE_NAME).read_bytes(), type=dict[str, Any])
    except (OSError, msgspec.DecodeError):
        return {}
    return {name: str(value)[:_LONGEST] for name, value in _chosen(said) if value is not None}


def _chosen(said: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    host, software = _mapping(said.get("host")), _mapping(said.get("software"))
    yield from ((name, host.get(name)) for name in ("system", "processor", "cores", "memory_bytes"))
    devices = said.get("devices")
    if isinstance(devices, list) and devices:
        first = _mapping(devices[0])
        yield from (("device", first.get("name")), ("driver", first.get("driver_version")))
    yield "python", software.get("python")
    torch = _mapping(software.get("torch"))
    yield from ((name, torch.get(name)) for name in ("cuda", "hip", "nccl", "cudnn"))
    yield from _mapping(software.get("libraries")).items()


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
