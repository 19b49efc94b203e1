"""The historical command: one metric as a number, the dicts of tools as JSON, or a report as a file.

python tools/main.py --trace RUN --metric NAME
python -m tools.main --workload-dir RUN --tools NAME...
python tools/main.py RUN --config train.toml
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from cyclopts import App

if not __package__:
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

import tools  # noqa: F401  puts the library of this checkout on the path
from ccl_bench.cli import metrics, runner

PROGRAM = "tools/main.py"


def main(arguments: list[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command, which calls itself `program` in messages, and return its exit status."""
    words = sys.argv[1:] if arguments is None else arguments
    options = {argument.partition("=")[0] for argument in words}
    if words and not words[0].startswith("-") and options & {"--metric", "-m", "--all", "-a"}:
        words = ["--trace", *words]
    if options & {"--workload-dir", "--tools"}:
        return _run(program, _selection, words)
    if "--config" in options or (words and not words[0].startswith("-")):
        return _run(program, _report, words)
    if _names_a_tool(words):
        return _run(program, _tool, words)
    status = metrics.main(words, program=program)
    if options & {"--help", "-h"}:
        for other in (_selection, _report):
            sys.stdout.write("\nAnother form:\n\n")
            _run(program, other, ["--help"])
    return status


def _run(program: str, app: Callable[[str], App], arguments: list[str]) -> int:
    """Run a form of the command that its words have chosen; return its exit status."""

    def call(words: list[str]) -> int:
        from ccl_bench.cli import options

        return options.call(app(program), words)

    return runner.run(program, call, arguments)


def _names_a_tool(words: list[str]) -> bool:
    """Whether the metric that is asked for is a tool, and no metric of that name is there."""
    from tools.folders import tool_called

    pairs = zip(words, [*words[1:], ""], strict=True)
    names = {word.partition("=")[2] or following for word, following in pairs if word.startswith("--metric")}
    if not any(map(tool_called, names)):
        return False
    from ccl_bench.metrics import load

    return not any(name in load() for name in names)


def _selection(program: str) -> App:
    from tools import selection

    return selection.app(program)


def _tool(program: str) -> App:
    from tools import selection

    return selection.app_of_tool(program)


def _report(program: str) -> App:
    from ccl_bench.cli.measure import report

    return report.historical(program)


if __name__ == "__main__":
    sys.exit(main())
