"""Display of runs and answers: the output of commands, as HTML for notebooks and as text for `print`."""

from __future__ import annotations

import io
import re
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from ccl_bench.result import PAGES, TEXTS

if TYPE_CHECKING:
    from rich.console import RenderableType

    from ccl_bench.result.diagnosis import Verdict
    from ccl_bench.run import Run

_COLUMNS = 120
_FACTS = ("world_size", "device", "framework", "dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
_PRE = "<pre style=\"font-family:Menlo,'DejaVu Sans Mono',Consolas,monospace;line-height:1.35\">{code}</pre>"


def as_html(*content: RenderableType) -> str:
    """Return the output of a command as HTML; texts from traces are escaped."""
    from ccl_bench.report.console import HarmlessConsole

    console = HarmlessConsole(
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


def run_html(run: Run, place: str, verdict: Verdict | None) -> str:
    """Return the facts of a run without reading its traces, and its verdict if that is known already."""
    from ccl_bench.base.text import counted, plain
    from ccl_bench.report.console import Group, Text, aligned, heading, indented
    from ccl_bench.report.formatting import ranges, size
    from ccl_bench.report.verdict import verdict_sentence

    traces = run.traces
    formats = ", ".join(dict.fromkeys(trace.form.name for trace in traces))
    volume = size(sum(trace.size for trace in traces))
    facts = {name: getattr(run.facts, name) for name in _FACTS}
    rows = [
        ("traces", f"{counted(len(traces), f'{formats} file')}, {volume}"),
        ("ranks", ranges(run.ranks) or "from the traces"),
        *((name, str(fact.value)) for name, fact in facts.items() if fact is not None),
    ]
    sentence = verdict_sentence(verdict) if verdict else "verdict(), metrics(), report(...) read the traces"
    lines: tuple[RenderableType, ...] = (
        Text(plain(sentence), "" if verdict else "dim"),
        aligned(("", ""), rows),
    )
    return as_html(Group(heading(plain(place)), *(indented(line) for line in lines)))


_PAGE_OF = {
    "Result": ("ccl_bench.report.results", "result_page"),
    "Inspection": ("ccl_bench.report.inspection", "inspection_page"),
    "Diagnosed": ("ccl_bench.report.diagnosis", "diagnose_page"),
    "Verdict": ("ccl_bench.report.verdict", "verdict_sentence"),
    "Prediction": ("ccl_bench.report.prediction", "prediction_page"),
    "WhatIf": ("ccl_bench.report.what_if", "what_if_page"),
    "CriticalPath": ("ccl_bench.report.what_if", "critical_path_page"),
}
"""Name of the class of an answer → module and function of its page, imported when the first one is shown."""


def register() -> None:
    """Register the display of answers in notebooks and by `print`."""
    for kind, (module, page) in _PAGE_OF.items():
        PAGES[kind] = partial(_shown, module, page)
        TEXTS[kind] = partial(_printed, module, page)


def _shown(module: str, page: str, answer: object) -> str:
    return as_html(getattr(import_module(module), page)(answer))


def _printed(module: str, page: str, answer: object) -> str:
    from ccl_bench.report.console import to_text

    content = getattr(import_module(module), page)(answer)
    return content if isinstance(content, str) else to_text(content, width=_COLUMNS).rstrip("\n")
