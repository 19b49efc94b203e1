"""The command `ccl-bench validate`."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.cli import PROGRAM, options
from ccl_bench.evaluate import validate as validation
from ccl_bench.report.console import show
from ccl_bench.report.inspection import validation_page
from ccl_bench.result.inspection import to_json

ABOUT = """For a run, it checks the card, the side files and the set of ranks, and reads every trace.

Exit status: 0 no error, with or without warnings; 2 wrong usage; 4 an error.
"""


app = options.app("validate", ABOUT, [f"{PROGRAM} validate examples/runs/llama-tiny-pp4-gloo"])
app.usage = f"{PROGRAM} validate [OPTIONS] PATH..."


@app.default
def validate(
    *path: Annotated[
        str,
        Parameter(negative="", metavar="", help="Runs, traces, workload cards, configurations, side files."),
    ],
    form: options.TextOrJson = "text",
    jobs: options.Jobs = None,
    no_cache: options.NoCache = False,
    memory: options.Memory = None,
) -> int:
    """Check each path and print what is wrong."""
    if not path:
        raise UsageError("PATH is missing", fix="name the run or file to check")
    reading, validations = options.ReadingOptions(memory=memory), []
    for place in path:
        with reading.in_use() as progress:
            validations.append(
                validation.validate(place, jobs=jobs, use_cache=not no_cache, progress=progress)
            )
    if form == "json":
        sys.stdout.write(to_json(validations).decode() + "\n")
    else:
        show(validation_page(validations))
    has_errors = any(issue.severity == "error" for one in validations for issue in one.issues)
    return InputError.exit_status if has_errors else 0
