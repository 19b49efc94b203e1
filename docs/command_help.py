"""The programs, their commands, and the help of each."""

from __future__ import annotations

import io
from functools import cache
from typing import TYPE_CHECKING

from rich.console import Console

from ccl_bench.cli import commands
from ccl_bench.cli.measure import metrics as measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from cyclopts import App

PROGRAMS: dict[str, Callable[[], App]] = {
    "ccl-metrics": lambda: measure.app("ccl-metrics"),
    "ccl-bench": commands.app,
}


def subcommands(program: str) -> list[str]:
    """Return the commands that a program's help lists."""
    _, _, listed = help_of(program).partition("Commands:\n")
    lines = listed.partition("\n\n")[0].splitlines()
    return [line.split()[0] for line in lines if line.startswith("  ") and not line.startswith("   ")]


def help_of(command: str, width: int = 100) -> str:
    """Return the help of a command, this many columns wide."""
    program, *rest = command.split()
    shown = io.StringIO()
    _app(program).help_print(rest, console=Console(file=shown, width=width))
    return "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines()) + "\n"


@cache
def _app(program: str) -> App:
    return PROGRAMS[program]()
