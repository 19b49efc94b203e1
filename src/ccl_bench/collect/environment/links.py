"""How devices and nodes are connected: topology matrix, device links, network adapters and their rates."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from ccl_bench.collect.environment.sources import Absent, output_of

_INFINIBAND, _NETWORK = Path("/sys/class/infiniband"), Path("/sys/class/net")

_DEVICE = re.compile(r"^GPU (\d+):")
_LINK = re.compile(r"^\s+Link (\d+): ([\d.]+) GB/s")


def matrix() -> list[str]:
    """Return the lines of the topology matrix of the node."""
    return [line.rstrip() for line in output_of("nvidia-smi", "topo", "-m").splitlines()]


def of_devices() -> dict[str, list[float]]:
    """Return the rate of each NVLink of each device in one direction, GB/s (10^9 bytes)."""
    return parsed_links(output_of("nvidia-smi", "nvlink", "--status"))


def parsed_links(text: str) -> dict[str, list[float]]:
    """Return device index -> rates of its links, from what `nvidia-smi nvlink --status` printed."""
    found: dict[str, list[float]] = {}
    device = ""
    for line in text.splitlines():
        if head := _DEVICE.match(line):
            device = head[1]
            found[device] = []
        elif device and (link := _LINK.match(line)):
            found[device].append(float(link[2]))
    if not any(found.values()):
        raise Absent("nvidia-smi lists no active NVLink")
    return found


def networks() -> list[dict[str, Any]]:
    """Return the network adapters with their rates as the kernel states them, Gbit/s."""
    found = [*infiniband_ports(_INFINIBAND), *interfaces(_NETWORK)]
    if not found:
        raise Absent("the kernel states the rate of no network adapter")
    return found


def infiniband_ports(folder: Path) -> list[dict[str, Any]]:
    """Return the ports of InfiniBand and RoCE adapters; `rate` reads like `200 Gb/sec (4X HDR)`."""
    found = []
    for rate in sorted(folder.glob("*/ports/*/rate")):
        number = re.match(r"[\d.]+", _text(rate))
        if number:
            kind = _text(rate.with_name("link_layer")) or "InfiniBand"
            found.append({"name": rate.parts[-4], "kind": kind, "rate_gbps": float(number[0])})
    return found


def interfaces(folder: Path) -> list[dict[str, Any]]:
    """Return network interfaces that are up and state a rate; `speed` is in Mbit/s, -1 where unknown."""
    found = []
    for speed in sorted(folder.glob("*/speed")):
        number = _text(speed)
        if number.isdigit() and int(number) > 0 and _text(speed.with_name("operstate")) == "up":
            found.append({"name": speed.parts[-2], "kind": "Ethernet", "rate_gbps": int(number) / 1000})
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
