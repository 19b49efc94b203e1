"""What a question leaves open, filled in: the commonest phase, its usual columns, the best first."""

from __future__ import annotations

import pkgutil
import tomllib
from functools import cache
from typing import TYPE_CHECKING

from ccl_bench.leaderboard.store.question import SORTED_BY

if TYPE_CHECKING:
    from ccl_bench.leaderboard.store.question import Question


def completed(question: Question, phases: dict[str, int]) -> Question:
    """Return the question with what it leaves open: phase, order and columns."""
    commonest = max(("training", "inference"), key=lambda phase: phases.get(phase, 0))
    is_known = bool(phases.get(commonest))
    phase = question.phase or (commonest if is_known and not question.workload else "any")
    usual = default_columns(phase)
    sort = question.sort or ("submitted_at" if phase == "any" and not question.workload else usual[0])
    together = question.together or ("no" if sort in SORTED_BY else "yes")
    chosen = question.columns or usual
    columns = chosen if sort in SORTED_BY or sort in chosen else [sort, *chosen]
    return question.model_copy(
        update={"phase": phase, "sort": sort, "together": together, "columns": list(dict.fromkeys(columns))}
    )


def default_columns(phase: str) -> list[str]:
    """Return the metrics that a table of a phase shows where nobody chose others."""
    return usual_columns()[phase]


@cache
def usual_columns() -> dict[str, list[str]]:
    """Return the same by phase."""
    return tomllib.loads((pkgutil.get_data(__package__, "columns.toml") or b"").decode())
