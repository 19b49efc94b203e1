"""What the checks of a run's data find in tables that a test makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.checks import Checking

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ccl_bench.base.findings import Finding


def findings_in(tables: Mapping[str, object]) -> list[Finding]:
    """Return what the checks find that need none but these tables."""
    checking = Checking()
    checking.look(tables)
    return checking.findings
