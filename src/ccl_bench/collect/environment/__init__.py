"""What a run ran on: host, devices, links, software, variables and the state of the working directory.

Every source is optional. One that is absent says why; nothing is guessed.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from ccl_bench import __version__
from ccl_bench.collect.environment import devices, host, links, software, sources, variables, working_tree
from ccl_bench.run import ENVIRONMENT

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FILE_NAME = ENVIRONMENT
SCHEMA_VERSION = 1


def captured(
    command: Sequence[str], folder: Path, environment: Mapping[str, str], *, at: datetime | None = None
) -> dict[str, Any]:
    """Return what `command`, started in `folder` with these variables, runs on, as plain JSON data."""
    asked = {
        "host": host.described,
        "devices": devices.listed,
        "topology": links.matrix,
        "device_links": links.of_devices,
        "networks": links.networks,
        "software": lambda: software.of_command(command, folder, environment),
        "git": lambda: working_tree.described(folder),
    }
    return {
        "schema_version": SCHEMA_VERSION,
        "ccl_bench": __version__,
        "captured_at": (at or datetime.now(UTC)).isoformat(timespec="seconds"),
        "command": list(command),
        "folder": str(folder),
        **{name: sources.said(source) for name, source in asked.items()},
        "variables": variables.relevant(environment),
    }
