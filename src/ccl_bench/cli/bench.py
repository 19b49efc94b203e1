"""The entry point `ccl-bench`; each of its commands is in a file."""

from __future__ import annotations

from ccl_bench.cli import PROGRAM, runner


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""
    return runner.run(PROGRAM, _call, arguments)


def _call(words: list[str]) -> int:
    from ccl_bench.cli import commands, options

    return options.call(commands.app(PROGRAM), words)
