"""The commands of `ccl-bench`, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.cli import chakra, completion, inspecting, options, reporting, validating

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Look at recorded runs and report them: what is in them, what can be measured, what is wrong.

ccl-metrics prints the numbers themselves.
"""


def app(program: str) -> App:
    """Return `ccl-bench` with its commands."""
    made = options.app(program, ABOUT, [f"{program} inspect examples/runs/llama-tiny-pp4-gloo"])
    made.command(inspecting.app(program))
    made.command(reporting.app(program))
    made.command(validating.app(program))
    made.command(chakra.app(program))
    made.command(completion.app(program))
    return made
