"""The command `ccl-bench diagnose`."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.cli import options

if TYPE_CHECKING:
    from collections.abc import Iterable

    from cyclopts import App

    from ccl_bench.result.diagnosis import Diagnosed

ABOUT = """Show where the time of a step goes, what costs time, and what a change would gain.

Each diagnosis is a rule. ccl-bench removes the cause from the recorded run and replays the run: the gain is \
the time that a step saves. Gains of several diagnoses are not added. Gains below the noise of the steps \
are not reported.

A LIMIT is NAME (the diagnosis is reported at all) or NAME:SHARE (its gain is a larger share of the step), \
such as late_ranks:5%.

Exit status: 0; 2 wrong usage; 3 there is no verdict, or a limit cannot be judged; 4 nothing can be \
read; 5 a limit is crossed.
"""

CROSSED = 5

_LIMIT = re.compile(r"(?P<name>\w+)(?::(?P<share>\d+\.?\d*|\.\d+)(?P<percent>\s*%)?)?")

FailOn = Annotated[
    list[str] | None,
    Parameter(metavar="LIMIT", help="Limit with status 5 if it is crossed; repeat it for several."),
]


def app(program: str) -> App:
    """Return the command."""
    run = "examples/runs/llama-tiny-pp4-gloo"
    examples = [f"{program} diagnose {run}", f"{program} diagnose --explain late_ranks"]
    command = options.app("diagnose", ABOUT, examples)
    command.usage = f"{program} diagnose [OPTIONS] RUN"
    command.default(diagnose)
    return command


def diagnose(
    run: Annotated[str | None, Parameter(metavar="", help="Directory, trace file or URL of the run.")] = None,
    /,
    *,
    explain: Annotated[
        str | None, Parameter(metavar="NAME", help="Show the manual page of a diagnosis.")
    ] = None,
    list_: Annotated[bool, Parameter(name="--list", help="List every diagnosis.")] = False,
    why: options.Why = False,
    fail_on: FailOn = None,
    workload_card: options.Card = None,
    reading: options.Reading = options.DEFAULT_READING,
    form: options.TextOrJson = "text",
) -> int:
    """Diagnose one run."""
    if list_ or explain is not None:
        return _manual(explain)
    if run is None:
        raise UsageError("no run is given", fix="name a directory, trace file or URL")
    limits = [_limit(text) for text in fail_on or ()]
    with reading.open(run, card=workload_card) as measured:
        diagnosed = measured.diagnose()
    _show(diagnosed, form, why=why)
    return _judged(diagnosed, limits)


def _manual(name: str | None) -> int:
    """Print the manual page of a rule, or the list of all rules."""
    from ccl_bench import diagnosis

    registry = diagnosis.load()
    if name is not None:
        from ccl_bench.catalog.assumptions import assumed_in
        from ccl_bench.diagnosis.diagnose import inputs_behind
        from ccl_bench.report.catalogue import assumptions_text

        rule = registry.get(name)
        assumed = assumptions_text(assumed_in(inputs_behind(rule)))
        sys.stdout.write(f"{rule.name}\n  kind: {rule.kind}\n\n{rule.manual}\n\n{assumed}")
        return 0
    from ccl_bench.report.console import show
    from ccl_bench.report.diagnosis import diagnosis_catalogue

    show(diagnosis_catalogue((rule.name, rule.kind, rule.summary) for rule in registry))
    return 0


def _show(diagnosed: Diagnosed, form: str, *, why: bool) -> None:
    if form == "json":
        from ccl_bench.result.diagnosis import to_json

        sys.stdout.write(to_json(diagnosed).decode() + "\n")
        return
    from ccl_bench.report.console import show
    from ccl_bench.report.diagnosis import diagnose_page

    show(diagnose_page(diagnosed, why=why))


def _limit(text: str) -> tuple[str, float]:
    """Return the rule and the share of the step that a limit names."""
    from ccl_bench import diagnosis

    parts = _LIMIT.fullmatch(text.strip())
    if parts is None:
        raise UsageError(f"{text!r} is no limit", fix="write NAME or NAME:SHARE, such as late_ranks:5%")
    share = float(parts["share"] or 0)
    share = share / 100 if parts["percent"] else share
    if share > 1:
        raise UsageError(f"{text!r} is more than the whole step", fix=f"write {text}% for percent")
    return diagnosis.load().canonical(parts["name"]), share


def _judged(diagnosed: Diagnosed, limits: Iterable[tuple[str, float]]) -> int:
    """Return 5 where a limit is crossed, 3 without an answer or where a limit cannot be judged, else 0."""
    status = 0 if diagnosed.verdict or diagnosed.diagnoses else NotMeasurable.exit_status
    for name, share in limits:
        for each in diagnosed.diagnoses:
            if each.name == name and (not share or (each.share is not None and each.share > share)):
                return CROSSED
        unknown = any(each.name == name and each.share is None for each in diagnosed.diagnoses)
        if unknown or (diagnosed.why_no_gains and name in diagnosed.silent):
            status = NotMeasurable.exit_status
    return status
