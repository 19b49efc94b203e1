"""The command `ccl-bench inspect`."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.cli import PROGRAM, options
from ccl_bench.report.console import show
from ccl_bench.report.inspection import inspection_page
from ccl_bench.result.inspection import to_json

ABOUT = """\
It lists traces, ranks, steps, devices, process groups, and each fact with its source. It reads every trace \
and tries every metric.

Exit status: 0; 2 wrong usage; 4 nothing can be read.
"""


app = options.app("inspect", ABOUT, [f"{PROGRAM} inspect examples/runs/llama-tiny-pp4-gloo"])


@app.default
def inspect(
    run: Annotated[str, Parameter(metavar="", help="Directory, trace file or URL to look at.")],
    /,
    *,
    form: options.TextOrJson = "text",
    why: options.Why = False,
    workload_card: options.Card = None,
    reading: options.ReadingOptions = options.DEFAULT_READING,
) -> int:
    """Look at a run and print what is in it."""
    with reading.open(run, card=workload_card) as measured:
        inspected = measured.inspect()
    if form == "json":
        sys.stdout.write(to_json(inspected).decode() + "\n")
    else:
        show(inspection_page(inspected, why=why))
    return 0
