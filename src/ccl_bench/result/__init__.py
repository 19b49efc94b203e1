"""Results as plain data: `Result` is one metric's answer for one run, with findings and provenance.

The modules define other answers: `inspection`, `diagnosis`, `what_if`, `hang`, `report_data` and
`drill_down`. `details` types the details of metrics, `step_choice` is a choice of steps.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from ccl_bench.base.errors import CclBenchError, NotApplicable, NotMeasurable
from ccl_bench.base.text import encode_json, json_decoder
from ccl_bench.result.step_choice import StepChoice  # noqa: TC001  msgspec reads the types of fields

if TYPE_CHECKING:
    from collections.abc import Callable

SCHEMA_VERSION = 1

WHOLE_TRACE = "whole trace"
"""The window of a value if a trace marks no steps, so that the whole trace counts as one."""

Status = Literal["ok", "not_applicable", "not_measurable", "failed"]

EXIT_STATUS: dict[Status, int] = {"ok": 0, "not_applicable": 3, "not_measurable": 3, "failed": 1}


PAGES: dict[str, Callable[[Any], str]] = {}
"""Name of the class of an answer → function that renders it for notebooks; a higher package registers it."""


TEXTS: dict[str, Callable[[Any], str]] = {}
"""Name of the class of an answer → function that renders it for `print`; a higher package registers it."""

_MOST_SHOWN = 8
"""Elements of a list or mapping that `repr` shows."""


class Displayed:
    """An answer that `print` and notebooks display with its registered renderers."""

    __slots__ = ()

    def _repr_html_(self) -> str | None:
        page = PAGES.get(type(self).__name__)
        return page(self) if page else None

    def __str__(self) -> str:
        text = TEXTS.get(type(self).__name__)
        return text(self) if text else repr(self)

    def __repr__(self) -> str:
        return _short(self)


def _short(value: Any) -> str:
    """Return `repr` with four digits of each number, few elements of long lists, and no empty fields."""
    if isinstance(value, float):
        return f"{value:.4g}"
    if is_dataclass(value):
        shown = ((each.name, getattr(value, each.name)) for each in fields(value))
        inner = (f"{name}={_short(each)}" for name, each in shown if each not in (None, "", [], {}))
        return f"{type(value).__name__}({', '.join(inner)})"
    if isinstance(value, dict):
        pairs = [f"{key!r}: {_short(each)}" for key, each in islice(value.items(), _MOST_SHOWN)]
        return f"{{{', '.join(pairs + ['…'] * (len(value) > _MOST_SHOWN))}}}"
    if isinstance(value, list | tuple):
        items = [_short(each) for each in value[:_MOST_SHOWN]] + ["…"] * (len(value) > _MOST_SHOWN)
        return f"[{', '.join(items)}]" if isinstance(value, list) else f"({', '.join(items)})"
    return repr(value)


@dataclass(frozen=True, slots=True)
class ResultFinding:
    """A finding about the data behind the value."""

    code: str
    severity: str
    """`note`, `warning` or `error`."""
    message: str
    file: str = ""
    rank: int | None = None
    count: int = 1


@dataclass(frozen=True, slots=True)
class TraceProvenance:
    """One trace file behind the value."""

    file: str
    """Path relative to the run."""
    sha256: str
    """Hash of the file on disk."""
    size: int
    """Size on disk, bytes."""
    format: str
    """Trace format."""
    reader_revision: int
    """Revision of the reader of that format."""
    rank: int | None = None
    """Rank, if known."""
    iteration: int | None = None
    """Recording window, if there are several."""


@dataclass(frozen=True, slots=True)
class Provenance:
    """Provenance of the value: program versions and input files."""

    tool_version: str
    """Version of ccl-bench."""
    metric_revision: int
    """Revision of the metric's definition."""
    traces: list[TraceProvenance] = field(default_factory=list)
    """The trace files."""
    facts: dict[str, str] = field(default_factory=dict)
    """Fact that the metric used → its source."""
    files: dict[str, str] = field(default_factory=dict)
    """Card, metadata or side file behind the value, relative to the run → its SHA-256."""
    steps: StepChoice | None = None
    """The chosen steps of the value; None if it uses all of them, or none."""


@dataclass(frozen=True, slots=True, repr=False)
class Result(Displayed):
    """One metric's answer for one run."""

    metric: str
    status: Status
    unit: str
    better: Literal["higher", "lower", "neither"]
    value: float | None = None
    """In `unit`; None unless the status is `ok`."""
    reason: str = ""
    """Why there is no value."""
    fix: str = ""
    """The fix that gives one."""
    is_repairable: bool = False
    """Whether the user can add the missing data to this run: a fact, other traces, a complete file."""
    window: str = ""
    """How the steps were found."""
    ranks: list[int] = field(default_factory=list)
    """Ranks used."""
    details: dict[str, Any] = field(default_factory=dict)
    findings: list[ResultFinding] = field(default_factory=list)
    provenance: Provenance = field(default_factory=lambda: Provenance("", 0))
    schema_version: int = SCHEMA_VERSION


def to_json(results: list[Result]) -> bytes:
    """Return results as indented JSON."""
    return encode_json(results)


KIND = "predicted"
"""`kind` of everything that was calculated for a configuration that did not run."""


class _Marked(msgspec.Struct):
    metric: Any = None
    kind: Any = None


_DECODER = json_decoder(list[Result])
_MARKS = json_decoder(list[_Marked])


def from_json(text: bytes) -> list[Result]:
    """Return the results in `text`; raise msgspec.ValidationError if they are invalid or predicted."""
    results = _DECODER.decode(text)
    for each in _MARKS.decode(text):
        if each.kind == KIND:
            raise msgspec.ValidationError(f"{each.metric} is predicted, and a result is measured")
    return results


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of a list of results."""
    return msgspec.json.schema(list[Result])


def status_of(error: CclBenchError) -> Status:
    """Return the status that an error gives a result."""
    if isinstance(error, NotApplicable):
        return "not_applicable"
    return "not_measurable" if isinstance(error, NotMeasurable) else "failed"
