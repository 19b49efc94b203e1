"""The command `ccl-bench what-if`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import progress_bar
from ccl_bench.report.console import show
from ccl_bench.report.what_if import what_if_page
from ccl_bench.result.what_if import to_json
from ccl_bench.whatif import TableReplays, answer_what_if, parse_scenarios, read_operation_table
from ccl_bench.whatif.operation_table import is_operation_table

if TYPE_CHECKING:
    from ccl_bench.whatif import Replays

ABOUT = """\
RUN holds traces of all ranks; a table of operations (.parquet or .csv) has one row for each operation of \
each rank and step. The answer is how much longer a step takes than without stragglers, which rank, stage \
and operation causes this, and what each scenario gains.

WHAT is rank:R, stage:S or operation:NAME; for a run also kernel:NAME, comm:COLLECTIVE and dimension:NAME; \
for a table also worker:R/S (rank R of stage S). Commas join several, as in rank:3,7.

Exit status: 0; 2 wrong usage; 3 the replay explains too little of the step; 4 nothing can be read.
"""

Without = Annotated[
    list[str] | None,
    Parameter(
        metavar="WHAT",
        help="Give this its ideal time, as if it were no straggler; repeat it for more.",
    ),
]
Scale = Annotated[
    list[str] | None, Parameter(metavar="WHAT=FACTOR", help="Multiply the recorded time of this by a factor.")
]
Ideal = Annotated[
    list[str] | None,
    Parameter(metavar="WHICH", help="Give all operations their ideal time, or only compute, or only comm."),
]
Overlap = Annotated[
    list[str] | None,
    Parameter(
        metavar="COLLECTIVE", help="Overlap a collective with compute, as far as the step is long enough."
    ),
]
Network = Annotated[
    list[str] | None,
    Parameter(metavar="B=GB/s,alpha=µs", help="Move collectives of known size to another network."),
]


app = options.app(
    "what-if",
    ABOUT,
    [f"{PROGRAM} what-if operations.parquet --without rank:1 --scale operation:forward-compute=0.8"],
)


@app.default
def what_if(
    run: Annotated[
        str, Parameter(metavar="", help="Directory, trace file or URL of the run, or table of operations.")
    ],
    /,
    *,
    without: Without = None,
    scale: Scale = None,
    ideal: Ideal = None,
    overlap: Overlap = None,
    network: Network = None,
    workload_card: options.Card = None,
    reading: options.ReadingOptions = options.DEFAULT_READING,
    form: options.TextOrJson = "text",
) -> int:
    """Answer scenarios of one run or table."""
    replays: Replays
    if is_operation_table(run):
        choice = reading.steps.choice
        if choice.is_by_name or choice.skip:
            raise UsageError(
                "a table of operations has no ranges", fix="choose its steps by number, with --steps"
            )
        replays = TableReplays(read_operation_table(run, choice))
    else:
        with reading.open(run, card=workload_card) as measured:
            replays = measured.replays
    scenarios = parse_scenarios(replays, *(each or () for each in (without, scale, ideal, overlap, network)))
    with progress_bar(1, "replaying") as progress:
        answer = answer_what_if(replays, scenarios, progress)
    if form == "json":
        sys.stdout.write(to_json(answer).decode() + "\n")
    else:
        show(what_if_page(answer))
    return 0
