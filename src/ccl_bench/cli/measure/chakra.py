"""The command `ccl-bench chakra`: Execution Traces linked to Kineto, as Chakra files."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.counting import counted
from ccl_bench.cli import options

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Export the Execution Traces of a run as Chakra files, one for each rank.

Operators get their durations, and collectives their kernels, from the Kineto trace of the same rank.

Exit status: 0; 2 wrong usage, or a file already exists; 4 where there is nothing to export.
"""


def app(program: str) -> App:
    """Return the command."""
    made = options.app("chakra", ABOUT, [f"{program} chakra RUN -o chakra_traces"])
    made.default(chakra)
    return made


def chakra(
    run: Annotated[str, Parameter(metavar="", help="Directory or URL of the run.")],
    /,
    *,
    output: Annotated[str, Parameter(alias="-o", metavar="DIR", help="Directory to write into.")],
    force: Annotated[bool, Parameter(help="Overwrite existing files.")] = False,
) -> int:
    """Export a run."""
    from ccl_bench.chakra import export
    from ccl_bench.report.console import show
    from ccl_bench.run import open_run

    for written in export(open_run(run), Path(output), force=force):
        link = f"{written.rate:.0%} of operators found in Kineto by {written.rule}"
        held = f"{counted(written.nodes, 'node')}, {counted(written.collectives, 'collective')}"
        show(f"{written.path}  {held}, {link}")
    return 0
