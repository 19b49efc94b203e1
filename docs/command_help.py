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


def subcommands(command: str) -> list[str]:
    """Return the commands below a program or command, each with its own, in the order of the help."""
    program, *rest = command.split()
    app = _app(program)
    for word in rest:
        app = app[word]
    direct = [f"{command} {name}" for name in app if not name.startswith("-")]
    return [each for name in direct for each in (name, *subcommands(name))]


def help_of(command: str, width: int = 100) -> str:
    """Return the help of a command, this many columns wide."""
    program, *rest = command.split()
    shown = io.StringIO()
    _app(program).help_print(rest, console=Console(file=shown, width=width))
    return "\n".join(line.rstrip() for line in shown.getvalue().strip().splitlines()) + "\n"


@cache
def _app(program: str) -> App:
    return PROGRAMS[program]()
