"""The entry point `ccl-metrics`; the command itself is in `measure`."""

from __future__ import annotations

from ccl_bench.cli import kept_output, runner

PROGRAM = "ccl-metrics"


def main(arguments: list[str] | None = None, *, program: str = PROGRAM) -> int:
    """Run the command and return its exit status."""

    def call(words: list[str]) -> int:
        question = kept_output.question_of(program, words) if arguments is None else None
        if question and (output := kept_output.load_output(question)):
            return runner.print_output(program, output)
        from ccl_bench.cli import options
        from ccl_bench.cli.measure import metrics

        return options.call(metrics.app(program, question), words)

    return runner.run(program, call, arguments)
