"""`ccl-bench`: everything about runs beside their numbers. The entry point; each command is in a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.cli import PROGRAM, runner

if TYPE_CHECKING:
    from cyclopts import App


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return runner.run(PROGRAM, _app, arguments)


def _app() -> App:
    from ccl_bench.cli import commands

    return commands.app(PROGRAM)
