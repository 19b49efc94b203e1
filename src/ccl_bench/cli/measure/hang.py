"""The command `ccl-bench hang`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.cli import options

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Show which rank is missing, and where, in a job that hangs, from dumps of torch's Flight Recorder.

In each process group, the calls of all ranks are compared. The first call that a member lacks, or that \
differs between members, is where to look. A place that only follows from another one is marked. A rank \
without a dump, or with an empty, damaged or older one, is reported too.

Record with TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1 and \
TORCH_FR_DUMP_TEMP_FILE=DIR/comm_lib_trace_rank_ in the environment: NCCL's watchdog writes the dumps.

Exit status: 0, also if a rank is missing; 2 wrong usage; 3 the run has no dump of a known rank; 4 nothing \
can be read.
"""


def app(program: str) -> App:
    """Return the command."""
    command = options.app("hang", ABOUT, [f"{program} hang /tmp/dumps"])
    command.default(hang)
    return command


def hang(
    run: Annotated[str, Parameter(metavar="", help="Directory or URL of the dumps, or of a run with some.")],
    /,
    *,
    form: options.TextOrJson = "text",
    jobs: options.Jobs = None,
    no_cache: options.NoCache = False,
    engine: options.Engine = "auto",
    memory: options.Memory = None,
) -> int:
    """Show why a job hangs."""
    reading = options.Reading(jobs=jobs, no_cache=no_cache, engine=engine, memory=memory)
    with reading.open(run) as measured:
        result = measured.hang()
    if form == "json":
        from ccl_bench.result.hang import to_json

        sys.stdout.write(to_json(result).decode() + "\n")
    else:
        from ccl_bench.report.console import show
        from ccl_bench.report.hang import hang_page

        show(hang_page(result))
    return 0
