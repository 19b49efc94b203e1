"""The command `ccl-bench validate`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.cli import options

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Check runs, workload cards and side files, and report every mistake at once.

For a run, it checks the card, the side files and the set of ranks, and reads every trace.

Exit status: 0 no error, with or without warnings; 2 wrong usage; 4 an error.
"""


def app(program: str) -> App:
    """Return the command."""
    command = options.app("validate", ABOUT, [f"{program} validate examples/runs/llama-tiny-pp4-gloo"])
    command.usage = f"{program} validate [OPTIONS] PATH..."
    command.default(validate)
    return command


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
    from ccl_bench.evaluate.validate import validate

    if not path:
        raise UsageError("PATH is missing", fix="name the run or file to check")
    reading, validations = options.Reading(memory=memory), []
    for place in path:
        with reading.in_use() as progress:
            validations.append(validate(place, jobs=jobs, use_cache=not no_cache, progress=progress))
    if form == "json":
        from ccl_bench.result.inspection import to_json

        sys.stdout.write(to_json(validations).decode() + "\n")
    else:
        from ccl_bench.report import inspection
        from ccl_bench.report.console import show

        show(inspection.validation_page(validations))
    has_errors = any(issue.severity == "error" for one in validations for issue in one.issues)
    return InputError.exit_status if has_errors else 0
