"""The command `ccl-bench compare`."""

from __future__ import annotations

import os
import sys
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.api import comparison
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import say
from ccl_bench.report.comparison.text import verdicts
from ccl_bench.report.console import show
from ccl_bench.report.render import Form, form_of

ABOUT = """\
A run is a directory or trace file, a file of results as ccl-metrics --all --format json writes it, or \
baseline:NAME. Runs that did different work are not compared; the output lists the fields of their cards \
that differ.

The ending of the file's name selects the format: .html is a page with charts, .md a summary, .json data; \
without a file it is text.

A LIMIT is 5% (no metric gets worse by more), METRIC:5% (gets worse by more), METRIC>5% (rises by more) or \
METRIC<-5% (falls by more); without % it is in the metric's unit. A change that may be noise crosses no limit.

Exit status: 0; 2 wrong usage; 3 the runs are not comparable, or a limit cannot be judged; 4 nothing can \
be read; 5 a limit is crossed.
"""


app = options.app(
    "compare",
    ABOUT,
    [
        f"{PROGRAM} compare before after --fail-on 'iteration_wall_clock_time>5%'",
        f"{PROGRAM} compare examples/runs/llama-tiny-pp4-gloo examples/runs/llama-tiny-fsdp2-tp2-gloo",
    ],
)
app.usage = f"{PROGRAM} compare [OPTIONS] BASELINE RUN..."


def _percent(_type: object, value: float) -> None:
    if not 0 <= value <= 100:
        raise ValueError("must be from 0 to 100")


Runs = Annotated[
    str, Parameter(negative="", metavar="", help="Runs or files of results, the baseline first.")
]
Metrics = Annotated[
    list[str] | None, Parameter(alias="-m", metavar="NAME", help="Metric to compare; all by default.")
]
Study = Annotated[
    list[str] | None,
    Parameter(metavar="FIELD", help="Field of the card that may differ although it defines the workload."),
]
FailOn = Annotated[
    list[str] | None,
    Parameter(
        metavar="LIMIT", help="Limit on a change, with status 5 if it is crossed; repeat it for several."
    ),
]
Tolerance = Annotated[
    float,
    Parameter(
        metavar="PERCENT",
        help="Smaller changes are neither better nor worse; 1 by default.",
        validator=_percent,
    ),
]


@app.default
def compare(
    *run: Runs,
    metric: Metrics = None,
    study: Study = None,
    fail_on: FailOn = None,
    tolerance: Tolerance = 1.0,
    output: options.Output = None,
    form: Annotated[
        Form | None,
        Parameter(
            name="--format",
            alias="-f",
            converter=options.choice,
            help="Format of the output, whatever the file's name.",
        ),
    ] = None,
    reading: options.ReadingOptions = options.DEFAULT_READING,
    force: options.Force = False,
) -> int:
    """Compare runs."""
    real = [os.path.realpath(place) for place in run]
    first = dict(zip(reversed(real), reversed(run), strict=True))
    for place in (place for path, place in first.items() if real.count(path) > 1):
        say(PROGRAM, f"note: {place} is compared with itself, so nothing can differ: give another run")
    target = options.file_to_write(output, force=force) if output else None
    output_form = form or (form_of(output) if output else "text")
    with reading.in_use() as progress:
        compared = comparison.compare(
            *run,
            metric=metric,
            study=study or (),
            fail_on=fail_on or (),
            tolerance=tolerance / 100,
            progress=progress,
            **reading.arguments,
        )
    if target:
        compared.report(target, form=output_form)
        show(verdicts(compared.data))
        options.show_written(target)
    elif output_form == "text":
        show(compared.page())
    else:
        sys.stdout.write(compared.written(output_form))
    return compared.data.exit_status
