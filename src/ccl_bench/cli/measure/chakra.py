"""The command `ccl-bench chakra`: Execution Traces linked to Kineto, as Chakra files."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.text import counted
from ccl_bench.chakra import export, export_communication
from ccl_bench.chakra.simulator import GROUPS, NETWORK, SYSTEM, refuse_existing_files, write_machine
from ccl_bench.cli import PROGRAM, options
from ccl_bench.evaluate.load import load_tables
from ccl_bench.report.console import show
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from ccl_bench.run import Run

ABOUT = """The Kineto trace of the same rank provides durations of operators and kernels of collectives. With
--communication, no Execution Trace is needed: calls have type, size, group, and the time between them.

Exit status: 0; 2 wrong usage, or a file already exists; 4 there is nothing to export.
"""


app = options.app("chakra", ABOUT, [f"{PROGRAM} chakra RUN -o chakra_traces"])


@app.default
def chakra(
    run: Annotated[str, Parameter(metavar="", help="Directory or URL of the run.")],
    /,
    *,
    output: Annotated[str, Parameter(alias="-o", metavar="DIR", help="Directory to write into.")],
    communication: Annotated[
        bool,
        Parameter(
            help="Export only communication, from traces that show when calls ran, with groups, network and "
            "system for ASTRA-sim."
        ),
    ] = False,
    force: Annotated[bool, Parameter(help="Overwrite existing files.")] = False,
) -> int:
    """Export a run."""
    exported = _communication if communication else _operators
    for remark in exported(open_run(run), Path(output), force=force):
        show(f"ccl-bench: note: {remark}", stream=sys.stderr)
    return 0


def _operators(run: Run, folder: Path, *, force: bool) -> list[str]:
    """Export the Execution Traces of a run, which list their groups themselves."""
    refuse_existing_files((folder / name for name in (NETWORK, SYSTEM)), force=force)
    exported = export(run, folder, force=force)
    for trace in exported:
        link = f"{trace.rate:.0%} of operators found in Kineto by {trace.rule}"
        content = f"{counted(trace.nodes, 'node')}, {counted(trace.collectives, 'collective')}"
        show(f"{trace.path}  {content}, {link}")
    inputs = load_tables(run, ("transfers", "devices")).inputs
    remarks = write_machine(run, folder, inputs, len({trace.rank for trace in exported}))
    show(f"{folder / NETWORK}\n{folder / SYSTEM}")
    return remarks


def _communication(run: Run, folder: Path, *, force: bool) -> list[str]:
    """Export the communication of a run."""
    exported, remarks = export_communication(run, folder, force=force)
    for each in exported:
        content = f"{counted(each.nodes, 'node')}, {counted(each.collectives, 'call')} with type and size"
        work = f", {each.untyped} without" if each.untyped else ""
        show(f"{each.path}  {content}{work}, {each.between_s:.4g} s between calls")
    show("\n".join(str(folder / name) for name in (GROUPS, NETWORK, SYSTEM)))
    return remarks
