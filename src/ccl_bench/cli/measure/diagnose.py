"""The command `ccl-bench diagnose`."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from ccl_bench import diagnosis
from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.catalog.assumptions import assumed_in
from ccl_bench.cli import PROGRAM, options
from ccl_bench.diagnosis.diagnose import inputs_behind
from ccl_bench.report.catalogue import assumptions_text
from ccl_bench.report.console import show
from ccl_bench.report.diagnosis import diagnose_page, diagnosis_catalogue
from ccl_bench.result.diagnosis import to_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ccl_bench.result.diagnosis import Diagnosed

ABOUT = """\
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


app = options.app(
    "diagnose",
    ABOUT,
    [f"{PROGRAM} diagnose examples/runs/llama-tiny-pp4-gloo", f"{PROGRAM} diagnose --explain late_ranks"],
)
app.usage = f"{PROGRAM} diagnose [OPTIONS] RUN"


@app.default
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
    reading: options.ReadingOptions = options.DEFAULT_READING,
    form: options.TextOrJson = "text",
) -> int:
    """Diagnose one run."""
    if explain is not None:
        rule = diagnosis.load().get(explain)
        assumed = assumptions_text(assumed_in(inputs_behind(rule)))
        sys.stdout.write(f"{rule.name}\n  kind: {rule.kind}\n\n{rule.manual}\n\n{assumed}")
        return 0
    if list_:
        show(diagnosis_catalogue((rule.name, rule.kind, rule.summary) for rule in diagnosis.load()))
        return 0
    if run is None:
        raise UsageError("no run is given", fix="name a directory, trace file or URL")
    limits = [parse_limit(text) for text in fail_on or ()]
    with reading.open(run, card=workload_card) as measured:
        diagnosed = measured.diagnose()
    if form == "json":
        sys.stdout.write(to_json(diagnosed).decode() + "\n")
    else:
        show(diagnose_page(diagnosed, why=why))
    return exit_status(diagnosed, limits)


def parse_limit(text: str) -> tuple[str, float]:
    """Return the rule and the share of the step that a limit names; UsageError if it names none."""
    parts = _LIMIT.fullmatch(text.strip())
    if parts is None:
        raise UsageError(f"{text!r} is no limit", fix="write NAME or NAME:SHARE, such as late_ranks:5%")
    share = float(parts["share"] or 0)
    share = share / 100 if parts["percent"] else share
    if share > 1:
        raise UsageError(f"{text!r} is more than the whole step", fix=f"write {text}% for percent")
    return diagnosis.load().canonical(parts["name"]), share


def exit_status(diagnosed: Diagnosed, limits: Iterable[tuple[str, float]]) -> int:
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
