"""The commands of `ccl-bench`, and completion in shells."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from ccl_bench.cli import options
from ccl_bench.cli.measure import (
    baseline,
    chakra,
    compare,
    demo,
    diagnose,
    hang,
    inspect,
    report,
    tables,
    timeline,
    validate,
    what_if,
)
from ccl_bench.cli.publish import integrations, leaderboard, runs, trust
from ccl_bench.cli.record import collect, new

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Look at recorded runs and report them: their content, what can be measured, problems in the data.

ccl-metrics prints the numbers themselves.
"""


def app(program: str) -> App:
    """Return `ccl-bench` with its commands."""
    made = options.app(program, ABOUT, [f"{program} inspect examples/runs/llama-tiny-pp4-gloo"])
    made.command(demo.app(program))
    made.command(inspect.app(program))
    made.command(report.app(program))
    made.command(compare.app(program))
    made.command(baseline.app(program))
    made.command(timeline.app(program))
    made.command(tables.app(program))
    made.command(diagnose.app(program))
    made.command(what_if.app(program))
    made.command(hang.app(program))
    made.command(validate.app(program))
    made.command(new.app(program))
    made.command(collect.app(program))
    made.command(runs.publish_command(program))
    made.command(leaderboard.serve_command(program))
    made.command(leaderboard.site_command(program))
    made.command(leaderboard.index_command(program))
    made.command(runs.withdraw_command(program))
    made.command(runs.approve_command(program))
    made.command(leaderboard.token_command(program))
    made.command(trust.keygen_command(program))
    made.command(trust.key_command(program))
    made.command(trust.verify_command(program))
    made.command(trust.audit_command(program))
    made.command(leaderboard.backup_command(program))
    made.command(leaderboard.worker_command(program))
    made.command(chakra.app(program))
    made.command(integrations.mcp_command(program))
    made.command(integrations.watch_command(program))
    made.command(integrations.log_command(program))
    made.command(completion_command(program))
    return made


ABOUT_COMPLETION = """Print a script that completes commands, options and metrics in a shell.

Put the line of the example into ~/.bashrc. For zsh, put it into ~/.zshrc after compinit. For fish, write \
ccl-bench completion fish | source into its configuration.
"""

METRICS = "ccl-metrics"


def completion_command(program: str) -> App:
    """Return the command."""
    made = options.app("completion", ABOUT_COMPLETION, [f'eval "$({program} completion bash)"'])

    @made.default
    def completion(
        shell: Annotated[Literal["bash", "zsh", "fish"], Parameter(help="Shell that reads the script.")], /
    ) -> int:
        from ccl_bench.cli.measure import metrics

        for name, command in (program, app(program)), (METRICS, metrics.app(METRICS)):
            sys.stdout.write(command.generate_completion(shell=shell) + "\n")
            if shell == "zsh":  # a script that is evaluated is not registered by its #compdef line
                sys.stdout.write(f"compdef _cyclopts_{name} {name}\n")
        return 0

    return made
