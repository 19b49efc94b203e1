"""Make scripts/get_<metric>.sh for every name of every metric, and remove links to metrics that are gone."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
TARGET = "get_metric.sh"

sys.path.insert(0, str(FOLDER.parent / "src"))

from ccl_bench import metrics  # noqa: E402


def wanted() -> set[str]:
    """Return the names that links must have: one for each metric, variant and alias."""
    registry = metrics.load()
    return {f"get_{name}.sh" for name in (*registry.names(), *registry.aliases())}


def present() -> set[str]:
    """Return the names of the links that there are."""
    return {path.name for path in FOLDER.glob("get_*.sh") if path.is_symlink()}


def main() -> None:
    """Bring the links up to date."""
    for name in sorted(present() - wanted()):
        (FOLDER / name).unlink()
    for name in sorted(wanted() - present()):
        (FOLDER / name).symlink_to(TARGET)


if __name__ == "__main__":
    main()
