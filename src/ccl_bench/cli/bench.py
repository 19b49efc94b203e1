"""The entry point `ccl-bench`; each of its commands is in a file."""

from __future__ import annotations

from ccl_bench.cli import PROGRAM, runner


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit status."""

    def call(words: list[str]) -> int:
        from ccl_bench.cli import commands, options  # cyclopts, whose errors `runner` turns into messages

        words = commands.current(words)
        return options.call(commands.app(words), words)

    return runner.run(PROGRAM, call, arguments)
