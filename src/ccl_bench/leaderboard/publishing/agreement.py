"""Whether what a bundle claims is what was recomputed: numbers up to rounding, everything else exactly.

A number is compared with what its rank rests on: how it was measured, and what is wrong with the data. Where
both sides are of the same version, details, findings and the series of the report are compared too.
"""

from __future__ import annotations

import math
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from ccl_bench import __version__
from ccl_bench.leaderboard.store.bundle import REPORT
from ccl_bench.leaderboard.store.rows import measured
from ccl_bench.result.report_data import from_json as report_from_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccl_bench.leaderboard.publishing.measuring import Answer
    from ccl_bench.leaderboard.store.bundle import Bundle
    from ccl_bench.result import Result
    from ccl_bench.result.inspection import InspectedIssue

TOLERANCE = 1e-9
"""Relative difference up to which two numbers are the same: sums in another order differ by less."""
_LEAST = 1e-12
"""Difference that is always rounding: about a number that cancels to zero."""
_SHOWN = 5
"""Differences that are told; the rest is counted."""


def differences(bundle: Bundle, answer: Answer) -> list[str]:
    """Return in words where a bundle claims something else than what was recomputed."""
    told = [*_of_results(bundle, answer), *_of_fields(bundle, answer), *_of_report(bundle, answer)]
    more = [f"and {len(told) - _SHOWN} more"] if len(told) > _SHOWN else []
    return told[:_SHOWN] + more


def _of_results(bundle: Bundle, answer: Answer) -> Iterator[str]:
    found = {result.metric: result for result in answer.results}
    is_same_version = bundle.provenance.tool_version == __version__
    for claimed in bundle.results:
        if why := _difference(claimed, found.get(claimed.metric), is_same_version=is_same_version):
            yield f"{claimed.metric}: {why}"


def _difference(claimed: Result, found: Result | None, *, is_same_version: bool) -> str:
    """Return how a claimed number differs; a number that is not claimed cannot be wrong."""
    if claimed.value is None:
        return ""
    if found is None or found.value is None:
        why = found.reason if found else "it was not computed"
        return f"claimed {claimed.value:g} {claimed.unit}, and there is none: {_short(why)}"
    if place_of_difference(claimed.value, found.value) is not None:
        return f"claimed {claimed.value:.9g}, recomputed {found.value:.9g} {claimed.unit}"
    if measured(claimed) != measured(found):
        return f"claimed as {_short(measured(claimed))}, measured as {_short(measured(found))}"
    if _findings(claimed) != _findings(found):
        return "the findings about the data are others"
    place = place_of_difference(claimed.details, found.details) if is_same_version else None
    return "" if place is None else f"its details differ at {_short(place)}"


def _findings(result: Result) -> Counter[tuple[str, str]]:
    """Return the findings that make a number doubtful."""
    return Counter((each.code, each.severity) for each in result.findings if each.severity != "note")


def _of_fields(bundle: Bundle, answer: Answer) -> Iterator[str]:
    stated = bundle.provenance.fields
    for name in sorted(stated.keys() | answer.fields.keys()):
        said, found = stated.get(name), answer.fields.get(name)
        if said != found:
            yield f"{name}: the bundle says {_short(said)}, card and traces say {_short(found)}"


def _of_report(bundle: Bundle, answer: Answer) -> Iterator[str]:
    if REPORT not in bundle.files or bundle.provenance.tool_version != __version__:
        return
    claimed = report_from_json(bundle.bytes(REPORT))
    place = place_of_difference(msgspec.to_builtins(claimed.series), msgspec.to_builtins(answer.series))
    if place is not None:
        yield f"the report differs at {_short(place)}"
    if _issues(claimed.inspection.issues) != _issues(answer.issues):
        yield "the report tells other findings about the data"


def _issues(found: Iterable[InspectedIssue]) -> Counter[tuple[str, str, int]]:
    """Return what is wrong with the data; what is wrong with the card alone carries no code."""
    return Counter((each.code, each.severity, each.count) for each in found if each.code)


def place_of_difference(claimed: object, found: object) -> str | None:
    """Return where two pieces of plain data differ, such as `per_rank.3`; None where they do not."""
    if isinstance(claimed, dict) and isinstance(found, dict):
        if claimed.keys() != found.keys():
            return str(min(map(str, claimed.keys() ^ found.keys())))
        pairs = ((str(key), claimed[key], found[key]) for key in claimed)
    elif isinstance(claimed, list | tuple) and isinstance(found, list | tuple):
        if len(claimed) != len(found):
            return "its length"
        pairs = ((str(index), *pair) for index, pair in enumerate(zip(claimed, found, strict=True)))
    else:
        return None if _is_same(claimed, found) else ""
    for name, one, other in pairs:
        if (place := place_of_difference(one, other)) is not None:
            return f"{name}.{place}".rstrip(".")
    return None


def _is_same(claimed: object, found: object) -> bool:
    if isinstance(claimed, float) and isinstance(found, int | float):
        return claimed == found or math.isclose(claimed, found, rel_tol=TOLERANCE, abs_tol=_LEAST)
    return type(claimed) is type(found) and claimed == found


def _short(value: object) -> str:
    return "nothing" if value is None else str(value)[:100]
