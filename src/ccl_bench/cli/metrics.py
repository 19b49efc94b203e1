"""`ccl-metrics`: the numbers of a run. The entry point; the command itself is in `measure`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.cli import runner

if TYPE_CHECKING:
    from cyclopts import App

PROGRAM = "ccl-metrics"


def main(arguments: list[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command and return its exit status."""
    return runner.run(program, lambda: _app(program), arguments)


def _app(program: str) -> App:
    from ccl_bench.cli.measure import metrics

    return metrics.app(program)
