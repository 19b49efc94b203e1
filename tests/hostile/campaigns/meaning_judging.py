"""The verdict on a run of another meaning: whether each number that it changed shows that."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING, Any

import judging
import watching

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from judging import Results
    from watching import Answer, Watched

REPORTED, WITHOUT_EFFECT, BY_INSPECT = "reported", "without effect", "by inspect alone"
SILENT, TRACEBACK, REFUSED = "silent", "traceback", "refused in vain"
VERDICTS = (REPORTED, WITHOUT_EFFECT, BY_INSPECT, SILENT, TRACEBACK, REFUSED)

CLOSE = 1e-6


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of one run."""

    name: str
    numbers: list[str] = field(default_factory=list)
    """Each number that changed without a new finding; what was refused, or what broke, in other verdicts."""
    codes: list[str] = field(default_factory=list)
    """Findings of numbers that the undamaged run does not have."""


def judged(folder: Path, undamaged: Path, before: Results, watched: Watched, *, is_neutral: bool) -> Verdict:
    """Return the verdict on a damaged run."""
    answer = metrics(folder, watched)
    broken = [f"{b.promise}: {b.what}" for b in judging.breaches(answer, watching.MEMORY)]
    after = {} if answer.end else judging.results(answer)
    broken += [f"{b.promise}: {b.what}" for b in judging.dishonesty(judging.FACT, before, after)]
    codes = sorted({code for name in after for code, _ in _added(before.get(name, {}), after[name])})
    if broken:
        return Verdict(TRACEBACK, broken, codes)
    silent = [*_silent(before, after)]
    if silent:
        said = _inspected(folder, watched) - _inspected_undamaged(undamaged, watched)
        return Verdict(BY_INSPECT, silent, sorted(said)) if said else Verdict(SILENT, silent, codes)
    changed = [name for name in {**before, **after} if _changed(before.get(name), after.get(name))]
    if is_neutral and changed:
        return Verdict(REFUSED, changed, codes)
    return Verdict(REPORTED if changed else WITHOUT_EFFECT, changed, codes)


def metrics(folder: Path, watched: Watched) -> Answer:
    """Return what all metrics of a run come to."""
    words = ["--trace", str(folder), "--all", "--format", "json", "--no-cache", "--jobs", "1"]
    return watched.answer(["ccl-metrics", *words])


@cache
def _inspected_undamaged(folder: Path, watched: Watched) -> set[str]:
    return _inspected(folder, watched)


def _inspected(folder: Path, watched: Watched) -> set[str]:
    answer = watched.answer(["ccl-bench", "inspect", str(folder), "--format", "json", "--no-cache"])
    return {*_codes(json.loads(answer.out))} if answer.out.strip() else set()


def _codes(document: Any) -> Iterator[str]:
    if isinstance(document, dict):
        if isinstance(document.get("code"), str) and "severity" in document:
            yield document["code"]
        for value in document.values():
            yield from _codes(value)
    elif isinstance(document, list):
        for value in document:
            yield from _codes(value)


def _changed(before: dict[str, Any] | None, after: dict[str, Any] | None) -> bool:
    was, value = (before or {}).get("value"), (after or {}).get("value")
    if was is None or value is None:
        return was is not value
    return not math.isclose(was, value, rel_tol=CLOSE, abs_tol=1e-12)


def _silent(before: Results, after: Results) -> Iterator[str]:
    for name, found in after.items():
        was = before.get(name, {})
        if found["value"] is not None and _changed(was, found) and not _added(was, found):
            yield f"{name}: {was.get('value')} -> {found['value']}"


def _added(before: dict[str, Any], after: dict[str, Any]) -> set[tuple[str, str]]:
    """Return what findings say of a number that they do not say of the undamaged one, by code and file."""
    had, has = ({(f["code"], f["file"]) for f in found.get("findings", ())} for found in (before, after))
    return has - had
