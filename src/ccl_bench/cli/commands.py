"""The commands of `ccl-bench`, each imported when it is called, and completion in shells."""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.metrics import PROGRAM as METRICS

if TYPE_CHECKING:
    from collections.abc import Collection

ABOUT = """Look at recorded runs and report them: their content, what can be measured, problems in the data.

ccl-metrics prints the numbers themselves.
"""

COMMANDS = {
    "demo": (
        "measure.demo:app",
        "Measure a run that comes with the package, print its verdict, and write its report and timeline.",
    ),
    "inspect": (
        "measure.inspect:app",
        "Show the content of a run, what can be measured, what cannot and why, and problems in the data.",
    ),
    "report": (
        "measure.report:app",
        "Report one run: problems in the data, step times, where time goes, communication, waiting, memory.",
    ),
    "compare": (
        "measure.compare:app",
        "Compare runs with a baseline, which comes first: what changed beyond noise, and where in the step.",
    ),
    "baseline": (
        "measure.baseline:app",
        "Keep the results of a run under a name, to compare later runs with: baseline:NAME.",
    ),
    "timeline": (
        "measure.timeline:app",
        (
            "Write a run as one timeline, all ranks on one clock, for Perfetto (ui.perfetto.dev) or "
            "chrome://tracing."
        ),
    ),
    "tables": (
        "measure.tables:app",
        "Write the tables behind the numbers, all ranks in one file each, as Parquet or CSV.",
    ),
    "diagnose": (
        "measure.diagnose:app",
        "Show where the time of a step goes, what costs time, and what a change would gain.",
    ),
    "what-if": (
        "measure.what_if:app",
        "Show how long a step would take if something changed, by replaying it with other durations.",
    ),
    "predict": (
        "measure.predict:app",
        "Predict the step of another configuration or network, with an interval that states how sure it is.",
    ),
    "search": (
        "record.search:app",
        "Search for the fastest configuration, measuring the one next that may gain most.",
    ),
    "hang": (
        "measure.hang:app",
        "Show which rank is missing, and where, in a job that hangs, from dumps of torch's Flight Recorder.",
    ),
    "validate": (
        "measure.validate:app",
        "Check runs, workload cards and side files, and report every mistake at once.",
    ),
    "new": ("record.new:app", "Make the folder of a workload: its scripts, its configuration and its card."),
    "collect": (
        "record.collect:app",
        "Record a command into a run directory, or gather files of an old one; show what can be measured.",
    ),
    "card": (
        "record.card:app",
        "Fill the workload card of a run from its traces and with your values; list what is missing.",
    ),
    "publish": (
        "publish.runs:publish_app",
        "Publish a run: its card, results, report as data, and provenance.",
    ),
    "import": (
        "publish.reported:app",
        "Import rows that others published into a board, as reported elsewhere, with their source.",
    ),
    "serve": (
        "publish.leaderboard:serve_app",
        "Serve published runs as a leaderboard until stopped with Ctrl-C.",
    ),
    "site": (
        "publish.leaderboard:site_app",
        "Write published runs as a leaderboard of files, for any web host or to open from a disk.",
    ),
    "index": (
        "publish.leaderboard:index_app",
        "Rebuild the index of published runs from their files, and check each file.",
    ),
    "withdraw": (
        "publish.runs:withdraw_app",
        "Withdraw a published run: it keeps its page and history, and is no longer ranked.",
    ),
    "approve": (
        "publish.runs:approve_app",
        "Approve a run that is in quarantine or was withdrawn; without a run, list those that wait.",
    ),
    "token": (
        "publish.leaderboard:token_app",
        "Create a token for a submitter and print it; it is shown once, and only its hash is stored.",
    ),
    "keygen": (
        "publish.trust:keygen_app",
        "Make a key pair to sign runs: NAME.key stays on this machine, NAME.pub is public.",
    ),
    "key": ("publish.trust:key_app", "Register the public key of a submitter, list keys, or revoke one."),
    "verify": (
        "publish.trust:verify_app",
        "Verify who published a bundle and that none of its files changed since, without a network.",
    ),
    "audit": ("publish.trust:audit_app", "Audit a leaderboard: its log, and every run against the log."),
    "review": (
        "publish.review:app",
        "Review a merge request to a board in git: check its bundles, rank them, and write a comment.",
    ),
    "backup": (
        "publish.leaderboard:backup_app",
        "Copy a leaderboard into a new directory while it is served: runs, traces, settings, index.",
    ),
    "worker": (
        "publish.leaderboard:worker_app",
        "Recompute published runs from their traces until stopped with Ctrl-C.",
    ),
    "chakra": (
        "measure.chakra:app",
        "Export the Execution Traces of a run as Chakra files, one for each rank.",
    ),
    "mcp": (
        "publish.integrations:mcp_app",
        "Serve runs to an agent over the Model Context Protocol, on stdin and stdout.",
    ),
    "watch": (
        "publish.integrations:watch_app",
        "Measure each recording window of a running training once, when it is complete.",
    ),
    "log": ("publish.integrations:log_app", "Log the results of a run to an experiment tracker."),
    "completion": (
        "commands:completion_app",
        "Print a script that completes commands, options and metrics in a shell.",
    ),
}
"""Command → where it is, and the first line of its help. Its module is imported only where it is wanted."""


def app(wanted: Collection[str] = tuple(COMMANDS)) -> App:
    """Return `ccl-bench` with its commands, of which only the wanted ones can be called."""
    main_command = options.app(PROGRAM, ABOUT, [f"{PROGRAM} inspect examples/runs/llama-tiny-pp4-gloo"])
    for name, (_, summary) in COMMANDS.items():
        main_command.command(_imported(name) if name in wanted else App(name=name, help=summary))
    return main_command


@cache
def _imported(name: str) -> App:
    place, summary = COMMANDS[name]
    module, _, attribute = place.partition(":")
    command: App = getattr(import_module(f"ccl_bench.cli.{module}"), attribute)
    command.help = f"{summary}\n\n{command.help}"
    return command


ABOUT_COMPLETION = """Put the line of the example into ~/.bashrc. For zsh, put it into ~/.zshrc after \
compinit. For fish, write ccl-bench completion fish | source into its configuration.
"""

completion_app = options.app("completion", ABOUT_COMPLETION, [f'eval "$({PROGRAM} completion bash)"'])


@completion_app.default
def completion(
    shell: Annotated[
        Literal["bash", "zsh", "fish"],
        Parameter(converter=options.choice, help="Shell that reads the script."),
    ],
    /,
) -> int:
    """Print the script for a shell."""
    from ccl_bench.cli.measure import metrics

    for name, command in (PROGRAM, app()), (METRICS, metrics.app(METRICS)):
        sys.stdout.write(command.generate_completion(shell=shell) + "\n")
        if shell == "zsh":  # a script that is evaluated is not registered by its #compdef line
            sys.stdout.write(f"compdef _cyclopts_{name} {name}\n")
    return 0
