"""Display of runs and answers in notebooks: the output of commands, as HTML."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

from ccl_bench.result import PAGES, Result
from ccl_bench.result.diagnosis import Diagnosed, Verdict
from ccl_bench.result.inspection import Inspection
from ccl_bench.result.what_if import CriticalPath, WhatIf

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ccl_bench.api.measured_run import MeasuredRun

_COLUMNS = 120
_FACTS = ("world_size", "device", "framework", "dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
_PRE = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace;line-height:1.35\">{code}</pre>"


def as_html(*content: RenderableType) -> str:
    """Return the output of a command as HTML; texts from traces are escaped."""
    from rich.console import Console

    console = Console(
        file=io.StringIO(),
        force_jupyter=False,
        record=True,
        width=_COLUMNS,
        highlight=False,
        markup=False,
        emoji=False,
    )
    for part in content:
        console.print(part)
    return re.sub(" +$", "", console.export_html(inline_styles=True, code_format=_PRE), flags=re.MULTILINE)


def run_html(measured: MeasuredRun) -> str:
    """Return the facts of a run without reading its traces, and its verdict if computed."""
    from ccl_bench.base.text import counted
    from ccl_bench.report.console import Group, Text, aligned, heading, indented
    from ccl_bench.report.formatting import plain, ranges, size
    from ccl_bench.report.verdict import verdict_sentence

    traces = measured.traces
    formats = ", ".join(dict.fromkeys(trace.form.name for trace in traces))
    volume = size(sum(trace.size for trace in traces))
    facts = {name: getattr(measured.facts, name) for name in _FACTS}
    rows = [
        ("traces", f"{counted(len(traces), f'{formats} file')}, {volume}"),
        ("ranks", ranges(measured.ranks) or "from the traces"),
        *((name, str(fact.value)) for name, fact in facts.items() if fact is not None),
    ]
    verdict = measured.known_verdict
    sentence = verdict_sentence(verdict) if verdict else "verdict(), metrics(), report(...) read the traces"
    lines: tuple[RenderableType, ...] = (
        Text(plain(sentence), "" if verdict else "dim"),
        aligned(("", ""), rows),
    )
    return as_html(Group(heading(plain(measured.place)), *(indented(line) for line in lines)))


def register() -> None:
    """Register the display of answers in notebooks."""
    PAGES[Result] = _result
    PAGES[Inspection] = _inspection
    PAGES[Diagnosed] = _diagnosed
    PAGES[Verdict] = _verdict
    PAGES[WhatIf] = _what_if
    PAGES[CriticalPath] = _critical_path


def _result(result: Result) -> str:
    from ccl_bench.report.results import result_page

    return as_html(result_page(result))


def _inspection(inspection: Inspection) -> str:
    from ccl_bench.report.inspection import inspection_page

    return as_html(inspection_page(inspection))


def _diagnosed(diagnosed: Diagnosed) -> str:
    from ccl_bench.report.diagnosis import diagnose_page

    return as_html(diagnose_page(diagnosed))


def _verdict(verdict: Verdict) -> str:
    from ccl_bench.report.verdict import verdict_sentence

    return as_html(verdict_sentence(verdict))


def _what_if(what_if: WhatIf) -> str:
    from ccl_bench.report.what_if import what_if_page

    return as_html(what_if_page(what_if))


def _critical_path(path: CriticalPath) -> str:
    from ccl_bench.report.what_if import critical_path_page

    return as_html(critical_path_page(path))
