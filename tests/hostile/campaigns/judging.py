"""Whether what a damaged run came to is honest, beside what the undamaged one comes to.

Damage is of one of three kinds. What is `hidden` from nobody must show: each number is the undamaged one,
or is refused, or carries a finding that the undamaged one does not. What is `neutral`, such as events in
another order, must change nothing. What changes a `fact`, such as a digit of a duration, makes another
trace that is as good as the first: it need only be answered, within bounds.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    from watching import Answer

MUST_SHOW, NEUTRAL, FACT = "must show", "neutral", "fact"

ENDS = {0, 3, 4}
"""Exit statuses of a command that was used rightly."""

CLOSE = 1e-9

MISTAKE = "this is an error in the program"
"""In the way out of a metric that ended with an error of Python; others fail by what a file states."""

Results = dict[str, dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Breach:
    """One promise that was not kept."""

    promise: str
    what: str


def results(answer: Answer) -> Results:
    """Return the results that a command printed, by metric; none where it refused the whole run."""
    return {found["metric"]: found for found in json.loads(answer.out)} if answer.out.strip() else {}


def breaches(answer: Answer, memory: int) -> Iterator[Breach]:
    """Yield what no command may do, whatever it is given."""
    if answer.end:
        yield Breach(answer.end, f"after {answer.seconds:.0f} s")
        return
    if answer.status not in ENDS or "Traceback" in answer.err:
        reported = [line for line in answer.err.strip().splitlines() if line.strip()]
        yield Breach("traceback or status", f"{answer.status}: {' | '.join(reported[-3:])}")
    if answer.peak > memory:
        yield Breach("memory", f"{answer.peak >> 20} MiB")


def dishonesty(kind: str, before: Results, after: Results) -> Iterator[Breach]:
    """Yield each metric of which the result after damage is not what its kind allows."""
    for name, found in after.items():
        if found["status"] == "failed" and MISTAKE in found["fix"]:
            yield Breach("failed", f"{name}: {found['reason']}")
        elif found["value"] is not None and not math.isfinite(found["value"]):
            yield Breach("silent", f"{name} is {found['value']}")
        elif kind != FACT and _is_wrong(kind, before.get(name, {}), found):
            yield Breach(
                "silent" if kind == MUST_SHOW else "not neutral",
                f"{name}: {before.get(name, {}).get('value')} became {found['value']}",
            )


def _is_wrong(kind: str, before: dict[str, Any], after: dict[str, Any]) -> bool:
    was, value = before.get("value"), after["value"]
    if was is not None and value is not None and math.isclose(was, value, rel_tol=CLOSE, abs_tol=1e-15):
        return False
    if kind == NEUTRAL:
        return was is not None or value is not None
    known = {_reported(finding) for finding in before.get("findings", ())}
    return value is not None and all(_reported(finding) in known for finding in after["findings"])


def _reported(finding: dict[str, Any]) -> tuple[str, str, str]:
    return finding["code"], finding["file"], finding["message"]
