"""The commands of `ccl-bench`, each imported when it is called."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from cyclopts import App, Group

from ccl_bench.cli import PROGRAM, options

if TYPE_CHECKING:
    from collections.abc import Sequence

ABOUT = """Measure recorded runs: where the time of a step goes, what to change, and what that would gain.

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
    "diagnose": (
        "measure.diagnose:app",
        "Show where the time of a step goes, what costs time, and what a change would gain.",
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
    "hang": (
        "measure.hang:app",
        "Show which rank is missing, and where, in a job that hangs, from dumps of torch's Flight Recorder.",
    ),
    "collect": (
        "record.collect:app",
        "Record a command into a run directory, or gather files of an old one; show what can be measured.",
    ),
    "new": ("record.new:app", "Make the folder of a workload: its scripts, its configuration and its card."),
    "card": (
        "record.card:app",
        "Fill the workload card of a run from its traces and with your values; list what is missing.",
    ),
    "validate": (
        "measure.validate:app",
        "Check runs, workload cards and side files, and report every mistake at once.",
    ),
    "compare": (
        "measure.compare:app",
        "Compare runs with a baseline, which comes first: what changed beyond noise, and where in the step.",
    ),
    "baseline": (
        "measure.baseline:app",
        "Keep the results of a run under a name, to compare later runs with: baseline:NAME.",
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
    "publish": (
        "publish.runs:publish_app",
        "Publish a run: its card, results, report as data, and provenance.",
    ),
    "serve": (
        "publish.leaderboard:serve_app",
        "Serve published runs as a leaderboard until stopped with Ctrl-C.",
    ),
    "board import": (
        "publish.reported:app",
        "Import rows that others published into a board, as reported elsewhere, with their source.",
    ),
    "board site": (
        "publish.leaderboard:site_app",
        "Write published runs as a leaderboard of files, for any web host or to open from a disk.",
    ),
    "board review": (
        "publish.review:app",
        "Review a merge request to a board in git: check its bundles, rank them, and write a comment.",
    ),
    "board token": (
        "publish.leaderboard:token_app",
        "Create a token for a submitter and print it; it is shown once, and only its hash is stored.",
    ),
    "board key": (
        "publish.trust:key_app",
        "Register the public key of a submitter, list keys, or revoke one.",
    ),
    "board approve": (
        "publish.runs:approve_app",
        "Approve a run that is in quarantine or was withdrawn; without a run, list those that wait.",
    ),
    "board withdraw": (
        "publish.runs:withdraw_app",
        "Withdraw a published run: it keeps its page and history, and is no longer ranked.",
    ),
    "board worker": (
        "publish.leaderboard:worker_app",
        "Recompute published runs from their traces until stopped with Ctrl-C.",
    ),
    "board index": (
        "publish.leaderboard:index_app",
        "Rebuild the index of published runs from their files, and check each file.",
    ),
    "board audit": (
        "publish.trust:audit_app",
        "Audit a leaderboard: its log, and every run against the log.",
    ),
    "board backup": (
        "publish.leaderboard:backup_app",
        "Copy a leaderboard into a new directory while it is served: runs, traces, settings, index.",
    ),
    "sign new": (
        "publish.trust:keygen_app",
        "Make a key pair to sign runs: NAME.key stays on this machine, NAME.pub is public.",
    ),
    "sign verify": (
        "publish.trust:verify_app",
        "Verify who published a bundle and that none of its files changed since, without a network.",
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
    "chakra": (
        "measure.chakra:app",
        "Export the Execution Traces of a run as Chakra files, one for each rank.",
    ),
    "completion": (
        "completion:app",
        "Print a script that completes commands, options, metrics and paths in a shell.",
    ),
}
"""Command → where it is, and the first line of its help. Its module is imported only where it is wanted."""


GROUPS = {
    "Measure": ("demo", "inspect", "report", "diagnose", "timeline", "tables", "hang"),
    "Record": ("collect", "new", "card", "validate"),
    "Compare and predict": ("compare", "baseline", "what-if", "predict", "search"),
    "Publish": ("publish", "serve", "board", "sign"),
    "For other programs": ("mcp", "watch", "log", "chakra", "completion"),
}
"""What the help lists under which title."""

FAMILIES = {
    "board": (
        "Keep a board: its rows, who may publish, its pages as files, its log and its copies.",
        f"{PROGRAM} board token leaderboard-data ada",
    ),
    "sign": (
        "Make a key pair to sign runs, or verify who signed a published one.",
        f"{PROGRAM} sign verify downloaded --key ada.pub",
    ),
}
"""Name of several commands → the first line of its help, and an example."""

ALIASES = {
    **{name.removeprefix("board "): name for name in COMMANDS if name.startswith("board ")},
    "keygen": "sign new",
    "verify": "sign verify",
}
"""Earlier name of a command → its name. They work, and are listed nowhere."""


def current(words: list[str]) -> list[str]:
    """Return the words of a command line with the command under its present name."""
    return [*ALIASES[words[0]].split(), *words[1:]] if words and words[0] in ALIASES else words


_TITLES = {title: Group(title, sort_key=place) for place, title in enumerate(GROUPS)}


def app(words: Sequence[str] | None = None) -> App:
    """Return `ccl-bench` with its commands, of which only those in `words`, or all, can be called."""
    main_command = options.app(
        PROGRAM, ABOUT, [f"{PROGRAM} inspect RUN", f"{PROGRAM} report RUN -o report.html"]
    )
    for title, names in GROUPS.items():
        for place, name in enumerate(names):
            command = _family(name, words) if name in FAMILIES else _command(name, words)
            command.group, command.sort_key = _TITLES[title], place
            main_command.command(command)
    return main_command


def _family(name: str, words: Sequence[str] | None) -> App:
    """Return a command that has commands of its own."""
    about, example = FAMILIES[name]
    family = options.app(name, about, [example])
    members = [member for member in COMMANDS if member.startswith(f"{name} ")]
    for place, member in enumerate(members):
        command = _command(member, words)
        command.sort_key = place
        family.command(command)
    return family


def _command(name: str, words: Sequence[str] | None) -> App:
    if words is None or set(name.split()) <= set(words):
        return _imported(name)
    return App(name=name.split()[-1], help=COMMANDS[name][1])


@cache
def _imported(name: str) -> App:
    place, summary = COMMANDS[name]
    module, _, attribute = place.partition(":")
    command: App = getattr(import_module(f"ccl_bench.cli.{module}"), attribute)
    command.help = f"{summary}\n\n{command.help}"
    return command
