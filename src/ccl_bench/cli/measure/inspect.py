"""The command `ccl-bench inspect`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.cli import options

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Show the content of a run, what can be measured, what cannot and why, and problems in the data.

It lists traces, ranks, steps, devices, process groups, and each fact with its source. It reads every trace \
and tries every metric.

Exit status: 0; 2 wrong usage; 4 nothing can be read.
"""


def app(program: str) -> App:
    """Return the command."""
    example = f"{program} inspect examples/runs/llama-tiny-pp4-gloo"
    command = options.app("inspect", ABOUT, [example])
    command.default(inspect)
    return command


def inspect(
    run: Annotated[str, Parameter(metavar="", help="Directory, trace file or URL to look at.")],
    /,
    *,
    form: options.TextOrJson = "text",
    why: options.Why = False,
    workload_card: options.Card = None,
    reading: options.Reading = options.DEFAULT_READING,
) -> int:
    """Look at a run and print what is in it."""
    with reading.open(run, card=workload_card) as measured:
        inspected = measured.inspect()
    if form == "json":
        from ccl_bench.result.inspection import to_json

        sys.stdout.write(to_json(inspected).decode() + "\n")
    else:
        from ccl_bench.report import inspection
        from ccl_bench.report.console import show

        show(inspection.inspection_page(inspected, why=why))
    return 0
