"""Validations as text: every issue with its place and way out, and what they come to."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.report.console import Group, Text
from ccl_bench.report.inspection import issues
from ccl_bench.report.words import counted, plain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from ccl_bench.result.inspection import Validation


def page(validations: Sequence[Validation]) -> Group:
    """Return the issues of every place, and a last line that counts them."""
    parts: list[RenderableType] = []
    for validation in validations:
        if validation.issues:
            parts += [issues(validation.issues), Text()]
    for validation in validations:
        parts.append(_verdict(validation))
    return Group(*parts)


def _verdict(validation: Validation) -> Text:
    severities = [issue.severity for issue in validation.issues]
    counts = [
        counted(severities.count(name), name) for name in ("error", "warning", "note") if name in severities
    ]
    style = "red" if "error" in severities else "yellow" if "warning" in severities else "green"
    verdict = ", ".join(counts) or "nothing wrong"
    return Text.assemble(f"{plain(validation.place)} ({validation.kind}): ", (verdict, style))
