"""The command `--workload-dir RUN --tools NAME[,NAME...]`: the dicts of tools, and of metrics, as JSON."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

import tools
from ccl_bench.cli import options
from ccl_bench.errors import UsageError
from ccl_bench.registry import did_you_mean
from tools.answers import answer, origin, results_of

if TYPE_CHECKING:
    from cyclopts import App

ABOUT = """Compute what tools and metrics say of a run, and print it as JSON, one dict for each.

Exit status: 0 with at least one value; 2 wrong usage; 3 no value; 4 input missing or unreadable.
"""

Directory = Annotated[str, Parameter(metavar="RUN", help="Directory of the run.")]
Names = Annotated[
    list[str],
    Parameter(name="--tools", metavar="NAME[,NAME...]", help="Tools and metrics; repeat or use commas."),
]


def app(program: str) -> App:
    """Return the command."""
    made = options.app(program, ABOUT, ["python -m tools.main --workload-dir RUN --tools throughput,overlap"])
    made.default(run_tools)
    return made


def tool_names() -> list[str]:
    """Return the names of the tools, which are the packages beside this module."""
    return sorted(module.name for module in pkgutil.iter_modules(tools.__path__) if module.ispkg)


def run_tools(
    *,
    workload_dir: Directory,
    names: Names,
    workload_card: options.Card = None,
    profile_mode: options.ProfileMode = "auto",
) -> int:
    """Print the dict of each named tool or metric."""
    chosen = [name for given in names for name in given.split(",") if name]
    _check(chosen)
    answers = {name: _answer(name, workload_dir, workload_card, profile_mode) for name in chosen}
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(answers), indent=2).decode() + "\n")
    return 0 if any(_has_number(found) for found in answers.values()) else 3


def _check(names: list[str]) -> None:
    """Raise UsageError for a name that is neither a tool nor a metric."""
    from ccl_bench import metrics

    registry = metrics.load()
    known = [*tool_names(), *registry.names(), *registry.aliases()]
    for name in names:
        if name not in known:
            fix = did_you_mean(name, known) or f"known tools: {', '.join(tool_names())}"
            raise UsageError(f"unknown tool or metric {name!r}", fix=fix)


def _answer(name: str, place: str, card: str | None, mode: str) -> dict[str, Any]:
    if name in tool_names():
        found: dict[str, Any] = importlib.import_module(f"tools.{name}").metric_cal(place, card, mode)
        return found
    result = results_of([name], place, card, mode)[name]
    unit = {"unit": result.unit}
    return {**answer(name, result), **unit, **result.details, **origin([result])}


def _has_number(found: dict[str, Any]) -> bool:
    return any(isinstance(value, int | float) for value in found.values())
