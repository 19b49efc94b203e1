"""The entry point `ccl-metrics`; the command itself is in `measure`."""

from __future__ import annotations

from ccl_bench.cli import runner

PROGRAM = "ccl-metrics"


def main(arguments: list[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command and return its exit status."""

    def call(words: list[str]) -> int:
        from ccl_bench.cli import options
        from ccl_bench.cli.measure import metrics

        return options.call(metrics.app(program), words)

    return runner.run(program, call, arguments)
