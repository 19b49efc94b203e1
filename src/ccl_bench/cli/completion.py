"""The command `ccl-bench completion`."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ccl_bench.cli import options

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Print what makes a shell complete commands, options and metrics of ccl-bench and ccl-metrics.

Put the line of the example into ~/.bashrc; into ~/.zshrc with zsh, after compinit; for fish write \
ccl-bench completion fish | source into its configuration.
"""

METRICS = "ccl-metrics"


def app(program: str) -> App:
    """Return the command."""
    made = options.app("completion", ABOUT, [f'eval "$({program} completion bash)"'])

    @made.default
    def completion(
        shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Shell that reads the script.")], /
    ) -> int:
        from ccl_bench.cli import commands, measure

        for name, command in (program, commands.app(program)), (METRICS, measure.app(METRICS)):
            sys.stdout.write(command.generate_completion(shell=shell) + "\n")
            if shell == "zsh":  # a script that is evaluated is not registered by its #compdef line
                sys.stdout.write(f"compdef _cyclopts_{name} {name}\n")
        return 0

    return made
