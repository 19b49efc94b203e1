"""The command `ccl-bench what-if`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.cli import options

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Show what a step would take if something were otherwise, by replaying it with other durations.

TABLE holds one row for each operation of each rank and step (.parquet or .csv). The answer is how much \
longer a step takes than without stragglers, which rank, stage and operation is behind it, and what each \
scenario gains.

What changes is rank:R, stage:S, worker:R/S (rank R of stage S) or operation:NAME; commas join several.

Exit status: 0; 2 wrong usage; 3 the replay explains too little of the step; 4 where nothing can be read.
"""

Without = Annotated[
    list[str] | None,
    Parameter(
        metavar="WHAT",
        help="Let this take its ideal time, as the others do: no straggler; repeat it for more.",
    ),
]
Scale = Annotated[
    list[str] | None, Parameter(metavar="WHAT=FACTOR", help="Let this take its recorded time by a factor.")
]
Ideal = Annotated[
    list[str] | None,
    Parameter(metavar="WHICH", help="Let all operations take their ideal time, or compute, or comm."),
]


def app(program: str) -> App:
    """Return the command."""
    examples = [
        f"{program} what-if operations.parquet --without rank:1 --scale operation:forward-compute=0.8"
    ]
    made = options.app("what-if", ABOUT, examples)
    made.default(what_if)
    return made


def what_if(
    table: Annotated[str, Parameter(metavar="", help="Table of operations.")],
    /,
    *,
    without: Without = None,
    scale: Scale = None,
    ideal: Ideal = None,
    steps: options.Steps = options.EVERY_STEP,
    form: Annotated[
        Literal["text", "json"], Parameter(name="--format", alias="-f", help="Form of the answer.")
    ] = "text",
) -> int:
    """Answer scenarios of one table."""
    from ccl_bench.cli.progress import progress_bar
    from ccl_bench.report.console import show
    from ccl_bench.report.what_if import what_if_page
    from ccl_bench.whatif import answer_what_if, parse_scenarios, read_operation_table, to_json
    from ccl_bench.whatif.operation_table import SUFFIXES, is_operation_table

    choice = steps.choice
    if choice.marker or choice.skip:
        raise UsageError(
            "a table of operations has no ranges", fix="choose its steps by number, with --steps"
        )
    if not is_operation_table(table):
        problem = "is no table of operations: its name ends otherwise"
        raise InputError(problem, where=table, fix=f"name a file that ends in {' or '.join(SUFFIXES)}")
    read = read_operation_table(table, choice)
    scenarios = parse_scenarios(read, without or (), scale or (), ideal or ())
    with progress_bar(1, "replaying") as progress:
        found = answer_what_if(read, scenarios, progress)
    if form == "json":
        sys.stdout.write(to_json(found).decode() + "\n")
    else:
        show(what_if_page(found))
    return 0
