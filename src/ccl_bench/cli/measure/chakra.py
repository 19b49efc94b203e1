"""The command `ccl-bench chakra`: Chakra files of a run, and simulations of it with ASTRA-sim."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import UsageError
from ccl_bench.base.text import counted
from ccl_bench.chakra import export, export_communication, write_simulation
from ccl_bench.chakra.communication import GROUPS
from ccl_bench.cli import PROGRAM, options
from ccl_bench.report.console import show
from ccl_bench.report.simulation import simulation_page
from ccl_bench.run import open_run
from ccl_bench.whatif import compare_simulation

if TYPE_CHECKING:
    from ccl_bench.run import Run

ABOUT = """The Kineto trace of the same rank provides durations of operators and kernels of collectives. With
--communication, no Execution Trace is needed: calls have type, size, group, and the time between them.
--astra-sim writes all that ASTRA-sim needs to simulate the steps of the run, with the script that starts it,
and --astra-sim-result compares its output with the run.

Exit status: 0; 2 wrong usage, or a file already exists; 4 there is nothing to export, or the output is
not that of a finished simulation of this run.
"""


app = options.app("chakra", ABOUT, [f"{PROGRAM} chakra RUN -o chakra_traces"])


@app.default
def chakra(
    run: Annotated[str, Parameter(metavar="", help="Directory or URL of the run.")],
    /,
    *,
    output: Annotated[
        str | None, Parameter(alias="-o", metavar="DIR", help="Directory to write into.")
    ] = None,
    communication: Annotated[
        bool,
        Parameter(help="Export only communication, from traces that show when calls ran, with its groups."),
    ] = False,
    astra_sim: Annotated[
        bool, Parameter(help="Write workload, groups, network, system and memory for ASTRA-sim.")
    ] = False,
    astra_sim_result: Annotated[
        str | None,
        Parameter(metavar="FILE", help="Compare the output of ASTRA-sim with the run, and write nothing."),
    ] = None,
    force: Annotated[bool, Parameter(help="Overwrite existing files.")] = False,
) -> int:
    """Export a run, or compare a simulation of it."""
    if communication + astra_sim + (astra_sim_result is not None) > 1:
        fix = "give one of --communication, --astra-sim and --astra-sim-result"
        raise UsageError("these options write or read different files", fix=fix)
    if astra_sim_result is not None:
        comparison = compare_simulation(open_run(run), astra_sim_result)
        show(simulation_page(comparison))
        return _noted(comparison.remarks)
    if output is None:
        raise UsageError("no directory to write into is given", fix="give one with --output DIR")
    exported = _simulation if astra_sim else _communication if communication else _operators
    return _noted(exported(open_run(run), Path(output), force=force))


def _noted(remarks: tuple[str, ...]) -> int:
    for remark in remarks:
        show(f"ccl-bench: note: {remark}", stream=sys.stderr)
    return 0


def _operators(run: Run, folder: Path, *, force: bool) -> tuple[str, ...]:
    """Export the Execution Traces of a run, which list their groups themselves."""
    for trace in export(run, folder, force=force):
        link = f"{trace.rate:.0%} of operators found in Kineto by {trace.rule}"
        content = f"{counted(trace.nodes, 'node')}, {counted(trace.collectives, 'collective')}"
        show(f"{trace.path}  {content}, {link}")
    return ()


def _communication(run: Run, folder: Path, *, force: bool) -> tuple[str, ...]:
    """Export the communication of a run."""
    for each in export_communication(run, folder, force=force):
        content = f"{counted(each.nodes, 'node')}, {counted(each.collectives, 'call')} with type and size"
        work = f", {each.untyped} without" if each.untyped else ""
        show(f"{each.path}  {content}{work}, {each.between_s:.4g} s between calls")
    show(str(folder / GROUPS))
    return ()


def _simulation(run: Run, folder: Path, *, force: bool) -> tuple[str, ...]:
    """Write the folder for ASTRA-sim."""
    written = write_simulation(run, folder, force=force)
    by_rank = {rank.rank: rank for rank in written.workload.ranks}
    for path, rank in zip(written.paths, by_rank.values(), strict=False):
        calls = sum(piece.call is not None for piece in rank.pieces)
        nodes = f"{counted(len(rank.pieces), 'node')}, {counted(calls, 'call')}"
        show(f"{path}  {nodes}, {counted(len(rank.windows), 'step')} of {rank.recorded_ns / 1e9:.4g} s")
    show("\n".join(map(str, written.paths[len(by_rank) :])))
    return written.remarks
