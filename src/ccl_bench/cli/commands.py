"""The commands of `ccl-bench`, and completion in shells."""

from __future__ import annotations

import sys
from functools import cache
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


@cache
def app(program: str) -> App:
    """Return `ccl-bench` with its commands."""
    main_command = options.app(program, ABOUT, [f"{program} inspect examples/runs/llama-tiny-pp4-gloo"])
    main_command.command(demo.app(program))
    main_command.command(inspect.app(program))
    main_command.command(report.app(program))
    main_command.command(compare.app(program))
    main_command.command(baseline.app(program))
    main_command.command(timeline.app(program))
    main_command.command(tables.app(program))
    main_command.command(diagnose.app(program))
    main_command.command(what_if.app(program))
    main_command.command(hang.app(program))
    main_command.command(validate.app(program))
    main_command.command(new.app(program))
    main_command.command(collect.app(program))
    main_command.command(runs.publish_command(program))
    main_command.command(leaderboard.serve_command(program))
    main_command.command(leaderboard.site_command(program))
    main_command.command(leaderboard.index_command(program))
    main_command.command(runs.withdraw_command(program))
    main_command.command(runs.approve_command(program))
    main_command.command(leaderboard.token_command(program))
    main_command.command(trust.keygen_command(program))
    main_command.command(trust.key_command(program))
    main_command.command(trust.verify_command(program))
    main_command.command(trust.audit_command(program))
    main_command.command(leaderboard.backup_command(program))
    main_command.command(leaderboard.worker_command(program))
    main_command.command(chakra.app(program))
    main_command.command(integrations.mcp_command(program))
    main_command.command(integrations.watch_command(program))
    main_command.command(integrations.log_command(program))
    main_command.command(completion_command(program))
    return main_command


ABOUT_COMPLETION = """Print a script that completes commands, options and metrics in a shell.

Put the line of the example into ~/.bashrc. For zsh, put it into ~/.zshrc after compinit. For fish, write \
ccl-bench completion fish | source into its configuration.
"""

METRICS = "ccl-metrics"


def completion_command(program: str) -> App:
    """Return the command."""
    completion_app = options.app("completion", ABOUT_COMPLETION, [f'eval "$({program} completion bash)"'])

    @completion_app.default
    def completion(
        shell: Annotated[
            Literal["bash", "zsh", "fish"],
            Parameter(converter=options.choice, help="Shell that reads the script."),
        ],
        /,
    ) -> int:
        from ccl_bench.cli.measure import metrics

        for name, command in (program, app(program)), (METRICS, metrics.app(METRICS)):
            sys.stdout.write(command.generate_completion(shell=shell) + "\n")
            if shell == "zsh":  # a script that is evaluated is not registered by its #compdef line
                sys.stdout.write(f"compdef _cyclopts_{name} {name}\n")
        return 0

    return completion_app
