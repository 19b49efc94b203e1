"""The command `--workload-dir RUN --tools NAME[,NAME...]`: the dicts of tools, and of metrics, as JSON."""

from __future__ import annotations

import importlib
import pkgutil
import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

import tools
from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.cli import options
from tools.answers import Answers, answer, answers_of, origin

if TYPE_CHECKING:
    from cyclopts import App

    from ccl_bench.result.step_choice import StepChoice

ABOUT = """Compute what tools and metrics say of a run, and print it as JSON, one dict for each.

Exit status: 0 with at least one value; 2 wrong usage; 3 no value; 4 input missing or unreadable.
"""

ALL = "all"

Directory = Annotated[str, Parameter(metavar="RUN", help="Directory of the run.")]
Names = Annotated[
    list[str],
    Parameter(
        name="--tools",
        metavar="NAME[,NAME...]",
        help="Tools and metrics, or all for every tool; repeat or use commas.",
    ),
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
    steps: options.Steps = options.EVERY_STEP,
) -> int:
    """Print the dict of each named tool or metric."""
    chosen = _chosen(names)
    _check(chosen)
    answers = _answers(chosen, workload_dir, workload_card, profile_mode, steps.choice)
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


def _chosen(names: list[str]) -> list[str]:
    """Return the names one by one, each once; `all` stands for every tool."""
    given = [name for text in names for name in text.split(",") if name]
    if not given:
        raise UsageError("no tool is named", fix=f"one of: {', '.join(tool_names())}, or all")
    every = [tool_names() if name == ALL else [name] for name in given]
    return list(dict.fromkeys(name for some in every for name in some))


def _answers(
    names: list[str], place: str, card: str | None, mode: str, choice: StepChoice
) -> dict[str, dict[str, Any]]:
    """Return the dict of each named tool or metric; the run is read once for all."""
    modules = {name: importlib.import_module(f"tools.{name}") for name in names if name in tool_names()}
    wanted = [m for name in names for m in (modules[name].METRICS if name in modules else [name])]
    tables = [table for module in modules.values() for table in getattr(module, "TABLES", ())]
    found = answers_of(dict.fromkeys(wanted), place, card, mode, choice, tables=dict.fromkeys(tables))
    return {
        name: modules[name].described(found) if name in modules else _metric(found, name) for name in names
    }


def _metric(found: Answers, name: str) -> dict[str, Any]:
    result = found.results[name]
    return {**answer(name, result), "unit": result.unit, **result.details, **origin([result])}


def _has_number(found: dict[str, Any]) -> bool:
    return any(isinstance(value, int | float) for value in found.values())
