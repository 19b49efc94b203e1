"""The command `--workload-dir RUN --tools NAME...`: the dicts of tools, and of metrics, as JSON."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
from cyclopts import Parameter

from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.catalog.metric_names import suggestion
from ccl_bench.cli import options
from tools.answers import Answers, answer, answers_of, need_place, origin
from tools.folders import called, described_tools, tool_called, tool_names

if TYPE_CHECKING:
    from cyclopts import App

    from ccl_bench.result.step_choice import StepChoice

ABOUT = """Compute what tools and metrics say of a run, and print it as JSON, one dict for each.

Exit status: 0 with at least one value; 2 wrong usage; 3 no value; 4 input missing or unreadable.
"""

ABOUT_TOOL = """Run one tool that is a folder beside this program, and print its number or its dict.

Exit status: 0 a value; 2 wrong usage; 3 no value and the reason on stderr; 4 input missing or unreadable.
"""

ALL = "all"

Directory = Annotated[str, Parameter(metavar="RUN", help="Directory of the run.")]
Names = Annotated[
    list[str],
    Parameter(
        name="--tools",
        metavar="NAME...",
        help="Tools and metrics, with spaces or commas between them, or all for every tool.",
        consume_multiple=True,
    ),
]
Name = Annotated[str, Parameter(metavar="NAME", help="Tool to run.")]


def app(program: str) -> App:
    """Return the command that runs several tools."""
    command = options.app(
        program, ABOUT, ["python -m tools.main --workload-dir RUN --tools throughput overlap"]
    )
    command.default(run_tools)
    return command


def app_of_tool(program: str) -> App:
    """Return the command that runs one tool as if it were a metric."""
    command = options.app(program, ABOUT_TOOL, [f"python {program} --trace RUN --metric overlap"])
    command.default(run_tool)
    return command


def run_tools(
    *,
    workload_dir: Directory,
    names: Names,
    workload_card: options.Card = None,
    profile_mode: options.ProfileMode = "auto",
    steps: options.StepOptions = options.EVERY_STEP,
) -> int:
    """Print the dict of each named tool or metric."""
    answers = _answers(_chosen(names), workload_dir, workload_card, profile_mode, steps.choice)
    sys.stdout.write(_json(answers))
    return 0 if any(_has_number(values) for values in answers.values()) else 3


def run_tool(
    *,
    trace: Directory,
    metric: Name,
    workload_card: options.Card = None,
    profile_mode: options.ProfileMode = "auto",
    steps: options.StepOptions = options.EVERY_STEP,
) -> int:
    """Print the number of one tool alone, or the dict of one that returns more."""
    metric = tool_called(metric)
    values = _answers([metric], trace, workload_card, profile_mode, steps.choice)[metric]
    if not _has_number(values):
        raise NotMeasurable(f"{metric}: {values.get(f'{metric}_reason', 'it returned no number')}")
    sys.stdout.write(f"{values[metric]}\n" if [*values] == [metric] else _json(values))
    return 0


def _chosen(names: list[str]) -> list[str]:
    """Return the names one by one as they are registered, each once; `all` stands for every tool."""
    single_names = [name for text in names for name in text.split(",") if name]
    if not single_names:
        raise UsageError("no tool is named", fix=f"one of: {', '.join(tool_names())}, or all")
    every = [tool_names() if name.casefold() == ALL else [_spelled(name)] for name in single_names]
    return list(dict.fromkeys(name for some in every for name in some))


def _spelled(name: str) -> str:
    """Return a name as its tool, else its metric, spells it; UsageError if there is neither."""
    from ccl_bench import metrics

    registry = metrics.load()
    if tool := tool_called(name):
        return tool
    if name in registry:
        return registry.spelled(name)
    known_names = [*tool_names(), *registry.names(), *registry.aliases()]
    fix = suggestion(name) or did_you_mean(name, known_names) or f"known tools: {', '.join(tool_names())}"
    raise UsageError(f"unknown tool or metric {name!r}", fix=fix)


def _answers(
    names: list[str], place: str, card: str | None, mode: str, choice: StepChoice
) -> dict[str, dict[str, Any]]:
    """Return the dict of each named tool or metric; the run is read once for all that say what they need."""
    need_place(place)
    alone = [name for name in names if name in tool_names()]
    modules = described_tools(alone)
    alone = [name for name in alone if name not in modules]
    metric_names = [m for name in names for m in (modules[name].METRICS if name in modules else [name])]
    metric_names = [name for name in metric_names if name not in alone]
    tables = [table for module in modules.values() for table in getattr(module, "TABLES", ())]
    read = (
        answers_of(dict.fromkeys(metric_names), place, card, mode, choice, tables=tables)
        if metric_names
        else None
    )
    answers = {}
    for name in names:
        if name in alone or read is None:
            answers[name] = called(name, place, card, mode)
        else:
            answers[name] = modules[name].described(read) if name in modules else _metric(read, name)
    return answers


def _metric(answers: Answers, name: str) -> dict[str, Any]:
    result = answers.results[name]
    return {**answer(name, result), "unit": result.unit, **result.details, **origin([result])}


def _json(content: dict[str, Any]) -> str:
    return msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n"


def _has_number(values: dict[str, Any]) -> bool:
    return any(isinstance(value, int | float) for value in values.values())
