"""The historical command: one metric as a number, the dicts of tools as JSON, or a report as a file.

python tools/main.py --trace RUN --metric NAME
python -m tools.main --workload-dir RUN --tools NAME[,NAME...]
python tools/main.py RUN --config train.toml
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts import App

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import tools  # noqa: F401  puts the library of this checkout on the path
from ccl_bench.cli import metrics, runner

PROGRAM = "tools/main.py"


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    options = {argument.partition("=")[0] for argument in given}
    if options & {"--workload-dir", "--tools"}:
        return runner.run(PROGRAM, _selection, given)
    if "--config" in options or (given and not given[0].startswith("-")):
        return runner.run(PROGRAM, _report, given)
    status = metrics.main(given, program=PROGRAM)
    if options & {"--help", "-h"}:
        for other in (_selection, _report):
            sys.stdout.write("\nAnother form:\n\n")
            runner.run(PROGRAM, other, ["--help"])
    return status


def _selection() -> App:
    from tools import selection

    return selection.app(PROGRAM)


def _report() -> App:
    from ccl_bench.cli.measure import report

    return report.historical(PROGRAM)


if __name__ == "__main__":
    sys.exit(main())
