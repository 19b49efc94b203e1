"""The command `ccl-bench demo`: from traces to answers, on a run that comes with the package."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

import ccl_bench
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.cli import PROGRAM, options
from ccl_bench.report.console import Text, heading, indented, show
from ccl_bench.report.diagnosis import diagnose_page

ABOUT = """\
The run is one forward pass of a GPT on eight A100, recorded with torch.profiler. --run chooses another one.

Exit status: 0; 2 wrong usage; 4 the examples are not installed.
"""

RUN = "megatron-tp8-a100"

FOLDER = "ccl-bench-demo"

_PACKAGE = Path(ccl_bench.__file__).resolve().parent
_PLACES = (_PACKAGE / "examples", _PACKAGE.parent.parent / "examples" / "runs")
"""Where the example runs are: in the installed package, or in the checkout that it is used from."""


app = options.app("demo", ABOUT, [f"{PROGRAM} demo"])


@app.default
def demo(
    *,
    run: Annotated[str, Parameter(metavar="NAME", help="Example run to measure.")] = RUN,
    output: Annotated[
        str, Parameter(alias="-o", metavar="DIR", help=f"Folder of report and timeline; {FOLDER} by default.")
    ] = FOLDER,
) -> int:
    """Show what the program makes of an example run."""
    runs = example_runs()
    if run not in runs:
        fix = did_you_mean(run, runs) or f"one of: {', '.join(runs)}"
        raise UsageError(f"there is no example run {run!r}", fix=fix)
    is_below = runs[run].is_relative_to(Path.cwd())
    place, folder = str(runs[run].relative_to(Path.cwd()) if is_below else runs[run]), Path(output)
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a directory", fix="name another with -o")
    with options.DEFAULT_READING.open(place) as measured:
        observed = measured.observed
        if observed.diagnosed is not None:
            show(diagnose_page(observed.diagnosed), Text())
        folder.mkdir(parents=True, exist_ok=True)
        report = measured.report(folder / "report.html")
        timeline = measured.timeline(folder / "timeline.json.gz").path
    written = [
        ("report", f"{report}", "open it in a browser"),
        ("timeline", f"{timeline}", "open it in ui.perfetto.dev"),
    ]
    show(heading("Written"), *(indented(Text(f"{name:<9} {path}  ({how})")) for name, path, how in written))
    quoted = shlex.quote(place)
    commands = [
        "ccl-bench report RUN --output report.html",
        f"ccl-bench what-if {quoted} --without rank:0",
        "ccl-bench collect -- torchrun train.py",
    ]
    show(Text(), heading("Next"), *(indented(Text(each)) for each in commands))
    return 0


def example_runs() -> dict[str, Path]:
    """Return the example runs by name; raise InputError if the package was installed without them."""
    for place in _PLACES:
        if place.is_dir():
            return {path.name: path for path in sorted(place.iterdir()) if path.is_dir()}
    fix = "install a wheel of ccl-bench, or use a checkout"
    raise InputError("the example runs are not installed", where=str(_PLACES[0]), fix=fix)
