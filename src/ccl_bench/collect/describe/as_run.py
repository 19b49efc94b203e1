"""The configuration of a run in its directory: with what the command line set besides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.collect.gather import copying, finding
from ccl_bench.collect.workloads.toml_text import toml_text
from ccl_bench.storage import replacing

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.collect.describe.configuration import Configuration


def kept(configuration: Configuration, output: Path) -> None:
    """Put a configuration into the run as it counted; one that counted as it is, is copied."""
    if not configuration.is_overridden:
        copying.copied(finding.Left(configuration.path.parent, configurations=[configuration.path]), output)
        return
    header = f"# {configuration.path.name}, and over it the options of the command line.\n\n"
    with replacing(output / configuration.path.name) as temporary:
        temporary.write_text(header + toml_text(configuration.tables), encoding="utf-8")
        temporary.chmod(0o644)
