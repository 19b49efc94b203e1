"""The command `ccl-metrics`: compute metrics of a run and print them."""

from __future__ import annotations

import shlex
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import App, Parameter

from ccl_bench import metrics
from ccl_bench.analysis.derived import DERIVED
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.text import harmless
from ccl_bench.cli import PROGRAM, options
from ccl_bench.cli.runner import say
from ccl_bench.report import catalogue
from ccl_bench.report import results as text
from ccl_bench.result import EXIT_STATUS, to_json
from ccl_bench.trace import formats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from ccl_bench.result import Result

ABOUT = """Compute metrics of a run from its traces, and print them.

A run is a directory with traces and a workload card, or a single trace file. For one metric, only the \
number is printed, so that scripts can read it; remarks go to stderr.

Exit status: 0 a value; 1 a metric failed; 2 wrong usage; 3 not applicable or not measurable; \
4 input missing or unreadable.
"""

EXAMPLES = (
    "{program} examples/runs/llama-tiny-pp4-gloo --metric coll_call_num",
    "{program} examples/runs/llama-tiny-pp4-gloo --all",
    "{program} --explain mfu",
)


def _completions(_context: object) -> list[str]:
    """Return the names of metrics, for a shell that completes one."""
    registry = metrics.load()
    return sorted([*registry.names(), *registry.aliases()])


Place = Annotated[str, Parameter(negative="", metavar="", help="Directory, trace file or URL to measure.")]
Trace = Annotated[
    str | None, Parameter(alias="-t", metavar="RUN", help="The run, for scripts that name it by an option.")
]
Metrics = Annotated[
    list[str] | None,
    Parameter(
        alias="-m",
        metavar="NAME",
        help="Metric to compute; repeat it for several.",
        completer=_completions,
    ),
]
All = Annotated[bool, Parameter(name="--all", alias="-a", help="Compute every metric.")]
Format = Annotated[
    Literal["value", "table", "json", "csv"] | None,
    Parameter(
        name="--format",
        alias="-f",
        converter=options.choice,
        help="By default, a value for one metric and a table for several.",
    ),
]
ListMetrics = Annotated[
    bool, Parameter(name="--list-metrics", alias="--list", help="List every name that --metric takes.")
]
Debug = Annotated[bool, Parameter(help="Show the traceback of every metric that fails.")]
Explain = Annotated[
    str | None, Parameter(metavar="NAME", help="Show the manual page of a metric.", completer=_completions)
]


def app(program: str) -> App:
    """Return the command, which calls itself `program` in messages."""
    command = options.app(program, ABOUT, [example.format(program=program) for example in EXAMPLES])
    command.usage = f"{program} [OPTIONS] RUN"

    @command.default
    def ccl_metrics(
        *run: Place,
        trace: Trace = None,
        metric: Metrics = None,
        every: All = False,
        form: Format = None,
        workload_card: options.Card = None,
        ceiling: options.Ceiling = None,
        reading: options.ReadingOptions = options.DEFAULT_READING,
        why: options.Why = False,
        debug: Debug = False,
        list_metrics: ListMetrics = False,
        explain: Explain = None,
    ) -> int:
        if list_metrics:
            return print_catalogue(form or "table")
        if explain is not None:
            return print_manual(explain)
        places = [*run, *([trace] if trace else ())]
        names = requested_metrics(metric or [], places, program, every=every)
        place = one_run(places)
        with reading.open(place, card=workload_card, ceiling=ceiling) as measured:
            results = measured.results(names)
        chosen = form or ("table" if every or len(names) > 1 else "value")
        sys.stdout.write(printed(results, chosen, every=every, why=why))
        sys.stdout.flush()
        for remark in remarks(results, chosen, every=every, why=why):
            say(program, remark)
        if debug or len(results) == 1:
            for error in measured.failures.values():
                sys.stderr.write(harmless("".join(traceback.format_exception(error))))
        return exit_status(results)

    return command


def requested_metrics(names: list[str], places: Sequence[str], program: str, *, every: bool) -> list[str]:
    """Return the names of the metrics to compute, each once; raise UsageError for an unknown one."""
    registry = metrics.load(None if every else names)
    if every:
        return registry.names()
    if names:
        return list(dict.fromkeys(map(registry.spelled, names)))
    # A word without an option may be meant as a metric.
    registry = metrics.load()
    absent = [word for word in places if not Path(word).exists()]
    meant = next((word for word in absent if word in registry or (places[1:] and "/" not in word)), None)
    if meant is None:
        raise UsageError(
            "no metric is named", fix="name one with --metric, or give --all; --list-metrics lists them"
        )
    run = next((word for word in places if word != meant), "RUN")
    raise UsageError(
        f"{meant} is not a run", fix=f"if it is a metric: {shlex.join([program, run, '--metric', meant])}"
    )


def one_run(places: Sequence[str]) -> str:
    """Return the run that is given; UsageError if there is none or more than one."""
    if not places:
        raise UsageError("no run is given", fix="name a directory, trace file or URL")
    if len(places) > 1:
        raise UsageError(
            f"{len(places)} runs are given: {', '.join(places)}",
            fix=f"measure them one by one, or compare them: {PROGRAM} compare {shlex.join(places)}",
        )
    return places[0]


def printed(results: Sequence[Result], form: str, *, every: bool, why: bool) -> str:
    """Return results as they are printed to stdout."""
    if form == "json":
        return to_json(list(results)).decode() + "\n"
    if form == "csv":
        return text.as_csv(results)
    if form == "value":
        return text.values(results)
    from ccl_bench.report.console import to_text  # rich, which a value does not need

    return to_text(text.every_metric(results, why=why) if every else text.table(results))


def remarks(results: Sequence[Result], form: str, *, every: bool, why: bool) -> Iterator[str]:
    """Yield the remarks on results, for stderr."""
    if every and form == "table" and not why and (counts := text.counts(results)):
        yield counts
    yield from text.remarks(results)
    for result in results:
        if result.value is None and form == "value":
            yield text.refusal(result)
        elif result.fix and form == "table" and not every:
            yield f"{result.metric}: fix: {result.fix}"


def exit_status(results: Sequence[Result]) -> int:
    """Return 0 if there is a value, else the highest status of the results.

    Where none of the run's traces could be read, it is that of input, not of a metric.
    """
    if any(result.value is not None for result in results):
        return 0
    unreadable = {"trace-unreadable", "file-unreadable", "file-malformed"}
    return max(
        InputError.exit_status
        if result.status == "not_measurable"
        and not result.provenance.traces
        and any(finding.code in unreadable for finding in result.findings)
        else EXIT_STATUS[result.status]
        for result in results
    )


def print_catalogue(form: str) -> int:
    """Print the list of metrics; every plug-in is loaded, so that the broken ones are named."""
    listed = catalogue.entries(metrics.load())
    if form == "table":
        from ccl_bench.report.console import show

        show(catalogue.table(listed))
    else:
        formatter = {"json": catalogue.as_json, "csv": catalogue.as_csv, "value": catalogue.names}[form]
        sys.stdout.write(formatter(listed))
    for registry in (metrics.METRICS, DERIVED, formats.load()):
        registry.load_plugins()
    return 0


def print_manual(name: str) -> int:
    """Print the manual page of one metric."""
    registry = metrics.load()
    sys.stdout.write(catalogue.manual_page(registry.get(name), registry.aliases()))
    return 0
