"""The command `ccl-bench timeline`."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from ccl_bench.base.text import counted
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import say
from ccl_bench.report.formatting import size

ABOUT = """\
The critical path and the diagnoses are tracks of all ranks together. Each rank has tracks for steps, \
waiting in collectives, exposed communication, pipeline bubbles, and its kernels or operators. If there is \
too much for a viewer, short neighbours are merged, and a remark says so.

Exit status: 0; 2 wrong usage, or the file already exists; 4 there is nothing to show.
"""


app = options.app("timeline", ABOUT, [f"{PROGRAM} timeline examples/runs/llama-tiny-pp4-gloo -o run.json.gz"])


@app.default
def timeline(
    run: Annotated[str, Parameter(metavar="", help="Directory, trace file or URL of the run.")],
    /,
    *,
    output: Annotated[
        str, Parameter(alias="-o", metavar="FILE", help="File to write; compressed if it ends in .gz.")
    ],
    max_slices: Annotated[
        int | None, Parameter(metavar="N", help="Maximum number of slices in the file; 500,000 by default.")
    ] = None,
    sql: Annotated[
        str | None,
        Parameter(metavar="FILE", help="File for SQL queries that Perfetto answers about the timeline."),
    ] = None,
    workload_card: options.Card = None,
    reading: options.ReadingOptions = options.DEFAULT_READING,
    force: options.Force = False,
) -> int:
    """Write the timeline of a run."""
    from ccl_bench.timeline import PERFETTO, queries

    target = options.file_to_write(output, force=force)
    sql_file = None if sql is None else options.file_to_write(sql, force=force)
    with reading.open(run, card=workload_card) as measured:
        written = measured.timeline(target, most_slices=max_slices)
    counts = f"{counted(written.ranks, 'trace')}, {counted(written.slices, 'slice')}, {size(written.bytes)}"
    options.show_written(written.path, f"{counts}: open it at {PERFETTO}")
    if sql_file is not None:
        from ccl_bench.storage.files import replace_text

        replace_text(sql_file, queries())
        options.show_written(sql_file, "queries: paste one into the page Query (SQL) of Perfetto")
    for remark in (written.clocks, *written.left_out):
        say(PROGRAM, f"note: {remark}")
    return 0
