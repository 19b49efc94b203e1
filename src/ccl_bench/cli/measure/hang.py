"""The command `ccl-bench hang`."""

from __future__ import annotations

import sys
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.cli import PROGRAM, options
from ccl_bench.report.console import show
from ccl_bench.report.hang import hang_page
from ccl_bench.result.hang import to_json

ABOUT = """\
In each process group, the calls of all ranks are compared. The first call that a member lacks, or that \
differs between members, is where to look. A place that only follows from another one is marked. A rank \
without a dump, or with an empty, damaged or older one, is reported too.

Record with TORCH_FR_BUFFER_SIZE=2000, TORCH_NCCL_DUMP_ON_TIMEOUT=1 and \
TORCH_FR_DUMP_TEMP_FILE=DIR/comm_lib_trace_rank_ in the environment: NCCL's watchdog writes the dumps.

Exit status: 0, also if a rank is missing; 2 wrong usage; 3 the run has no dump of a known rank; 4 nothing \
can be read.
"""


app = options.app("hang", ABOUT, [f"{PROGRAM} hang /tmp/dumps"])


@app.default
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
    reading = options.ReadingOptions(jobs=jobs, no_cache=no_cache, engine=engine, memory=memory)
    with reading.open(run) as measured:
        result = measured.hang()
    if form == "json":
        sys.stdout.write(to_json(result).decode() + "\n")
    else:
        show(hang_page(result))
    return 0
