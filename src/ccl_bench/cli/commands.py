"""The commands of `ccl-bench`, put together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.cli import (
    chakra,
    collecting,
    comparing,
    completion,
    curating,
    indexing,
    inspecting,
    new,
    operating,
    options,
    publishing,
    reporting,
    serving,
    site,
    timeline,
    validating,
)

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
    made.command(comparing.app(program))
    made.command(timeline.app(program))
    made.command(validating.app(program))
    made.command(new.app(program))
    made.command(collecting.app(program))
    made.command(publishing.app(program))
    made.command(serving.app(program))
    made.command(site.app(program))
    made.command(indexing.app(program))
    made.command(curating.withdrawing(program))
    made.command(curating.approving(program))
    made.command(operating.making_tokens(program))
    made.command(operating.working(program))
    made.command(chakra.app(program))
    made.command(completion.app(program))
    return made
