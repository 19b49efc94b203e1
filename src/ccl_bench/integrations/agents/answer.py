"""Answers for agents: limited in size, with findings and next calls, and quoted texts of files."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ccl_bench.base.findings import fix_of
from ccl_bench.base.text import encode_json, plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ccl_bench.base.findings import Issue
    from ccl_bench.result import ResultFinding

MOST_BYTES = 8_000
"""Largest size of an answer in bytes."""

_FINDINGS_BYTES = 1_800
_CALLS = 5
_CALL_CHARACTERS = 300
_RESERVE_BYTES = 200
"""Room for the names of an answer's parts."""

_TEXT_CHARACTERS = 200
_KEY_CHARACTERS = 100
_DEPTH = 6
_DIGITS = 9
_LIMITS = (
    *((entries, 400) for entries in (1_000, 300, 100, 60, 40)),
    *((25, 200), (15, 200), (10, 160), (6, 120), (4, 80), (2, 60), (1, 40)),
)
"""Entries of each list and mapping, and characters of each text, tried in this order until all fits."""

_SEVERITIES = ("error", "warning", "note")


def quoted(text: object, most: int = _TEXT_CHARACTERS) -> str:
    """Return text of a file between « and », on one line, with the middle of long text left out."""
    whole = str(text)
    if len(whole) > most:
        first = 2 * most // 3
        whole = f"{whole[:first]}…{len(whole) - most} left out…{whole[first - most :]}"
    line = plain(whole).replace("«", "<").replace("»", ">")
    return f"«{line}»" if line else ""


def size_bytes(value: object) -> int:
    """Return the length of a value as JSON."""
    return len(_json(value).encode())


def _json(value: object) -> str:
    return encode_json(value, indent=-1).decode()


def fitting(rows: Iterable[Any], most_bytes: int) -> list[Any]:
    """Return the first rows that together take at most so many bytes."""
    first_rows: list[Any] = []
    for row in rows:
        most_bytes -= size_bytes(row) + 1
        if most_bytes < 0:
            break
        first_rows.append(row)
    return first_rows


def shortened(body: Mapping[str, object], most_bytes: int) -> tuple[dict[str, object], bool]:
    """Return the parts of an answer, shortened to fit, and whether entries are missing."""
    whole = _cut(body, 1 << 40, 1 << 40)
    for entries, characters in _LIMITS:
        cut = _cut(body, entries, characters)
        if size_bytes(cut) <= most_bytes:
            return cut, cut != whole
    return {"answer": "more than fits"}, True


def _cut(body: Mapping[str, object], entries: int, characters: int) -> dict[str, object]:
    parts = {name: _entries(value, entries, characters, _DEPTH) for name, value in body.items()}
    return {name: value for name, value in parts.items() if value not in ("", [], {})}


def _entries(value: Any, entries: int, characters: int, depth: int) -> Any:
    """Return plain data with the first entries of each list and mapping, and shortened texts."""
    if isinstance(value, str):
        return value if len(value) <= characters else quoted(value.strip("«»"), characters)
    if isinstance(value, float):
        return float(f"{value:.{_DIGITS}g}") if math.isfinite(value) else None
    if value is None or isinstance(value, int):
        return value
    if not depth:
        return "deeper than an answer shows"
    rest = len(value) - entries
    if isinstance(value, dict):
        most = min(characters, _KEY_CHARACTERS)
        mapping = {
            k if len(k) <= most else quoted(k.strip("«»"), most): _entries(v, entries, characters, depth - 1)
            for k, v in [*value.items()][:entries]
        }
        return mapping | ({"left_out": rest} if rest > 0 else {})
    items = [_entries(each, entries, characters, depth - 1) for each in value[:entries]]
    return items + ([f"{rest} left out"] if rest > 0 else [])


def call(tool: str, **arguments: object) -> str:
    """Return a call in the notation of agents, such as `metric(run="a", name="mfu")`."""
    argument_text = ", ".join(f"{name}={_json(value)}" for name, value in arguments.items())
    return f"{tool}({argument_text})"


@dataclass(slots=True)
class Answer:
    """The answer of one tool."""

    body: Mapping[str, object]
    """The answer itself, as plain data in order of importance."""
    findings: Sequence[Issue | ResultFinding] = ()
    """Findings about the data behind it."""
    calls: list[str] = field(default_factory=list)
    """Suggested next calls."""
    narrower: str = ""
    """How to get the parts that an answer leaves out."""

    def text(self) -> str:
        """Return the answer as JSON of at most `MOST_BYTES`."""
        calls = [each for each in self.calls if len(each.encode()) <= _CALL_CHARACTERS][:_CALLS]
        rest: dict[str, object] = {"findings": _findings(self.findings), "next": calls}
        left_out = {"left_out": self.narrower or "use the command line for the rest"}
        room = MOST_BYTES - _RESERVE_BYTES - size_bytes(rest) - size_bytes(left_out)
        body, is_cut = shortened(self.body, room)
        return _json(body | (left_out if is_cut else {}) | rest)


def room_for_rows() -> int:
    """Return the size limit in bytes for rows of an answer, next to findings, calls and a few facts."""
    return MOST_BYTES - _FINDINGS_BYTES - _CALLS * _CALL_CHARACTERS - 1_200


def _findings(findings: Sequence[Issue | ResultFinding]) -> list[object]:
    """Return as many findings as fit, the most severe first, merged by code."""
    by_code: dict[str, list[Issue | ResultFinding]] = {}
    for each in sorted(findings, key=lambda each: _SEVERITIES.index(each.severity)):
        by_code.setdefault(each.code or each.message, []).append(each)
    rows = []
    for first, *others in by_code.values():
        row: dict[str, object] = {"severity": first.severity, "code": first.code}
        row["message"] = quoted(first.message, 240)
        if fix := fix_of(first.code):
            row["fix"] = fix
        if others:
            row["count"] = 1 + len(others)
        rows.append(row)
    fitting_rows = fitting(rows, _FINDINGS_BYTES - 100)
    rest = len(rows) - len(fitting_rows)
    return [
        *fitting_rows,
        *([f"{rest} more kinds of findings: ccl-bench inspect lists them"] if rest else []),
    ]
