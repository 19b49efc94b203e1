"""Scenarios: which operations would take another time, as a user writes them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from ccl_bench.whatif.graph import Times
    from ccl_bench.whatif.operation_table import OperationTable

    Mask = NDArray[np.bool_]

KINDS = ("rank", "stage", "worker", "operation")

IDEALS = ("all", "compute", "comm")

_SCALE = re.compile(r"(?P<what>[^=]+)=(?P<factor>[^=]+)")
_WHAT_FIX = "write KIND:NAME, KIND being rank, stage, worker or operation, such as rank:1 or worker:1/3"
_LARGEST_FACTOR = 1e6


@dataclass(frozen=True)
class Scenario:
    """Operations that take their ideal time, or their own time by a factor."""

    name: str
    mask: Mask
    """Which operations change."""
    factor: float | None = None
    """None where they take their ideal time."""

    def durations(self, recorded: Times, ideal: Times) -> Times:
        """Return how long operations take, `[operation, step]`, s."""
        changed = ideal if self.factor is None else self.factor * recorded
        return np.where(self.mask[:, None], changed, recorded)


def parse_scenarios(
    table: OperationTable,
    without: Iterable[str] = (),
    scale: Iterable[str] = (),
    ideal: Iterable[str] = (),
) -> list[Scenario]:
    """Return the scenarios that were asked for; raise UsageError where one is not understood.

    Several parts of one scenario stand together with commas: `rank:1,stage:3`.
    """
    found = [Scenario(f"without {text}", _mask(table, text)) for text in without]
    for text in scale:
        parts = _SCALE.fullmatch(text)
        factor = _factor(parts["factor"]) if parts else None
        if parts is None or factor is None:
            fix = f"write what changes and a factor from 0 to {_LARGEST_FACTOR:g}, such as operation:gc=0.5"
            raise UsageError(f"{text!r} is no change of durations", fix=fix)
        found.append(Scenario(f"{parts['what']} × {factor:g}", _mask(table, parts["what"]), factor))
    for text in ideal:
        if text not in IDEALS:
            raise UsageError(
                f"{text!r} has no ideal time", fix=f"write {', '.join(IDEALS[:-1])} or {IDEALS[-1]}"
            )
        chosen = {"compute": table.is_compute, "comm": ~table.is_compute}
        found.append(Scenario(f"ideal {text}", chosen.get(text, np.ones(table.graph.size, dtype=np.bool_))))
    return found


def _factor(text: str) -> float | None:
    try:
        factor = float(text)
    except ValueError:
        return None
    return factor if math.isfinite(factor) and 0 <= factor <= _LARGEST_FACTOR else None


def _mask(table: OperationTable, text: str) -> Mask:
    """Return which operations any of the parts of a text names."""
    masks = [_part(table, part.strip()) for part in text.split(",")]
    found: Mask = np.logical_or.reduce(masks)
    return found


def _part(table: OperationTable, text: str) -> Mask:
    kind, _, name = text.partition(":")
    if kind not in KINDS or not name:
        raise UsageError(f"{text!r} names no operations", fix=did_you_mean(kind, KINDS) or _WHAT_FIX)
    labels = _labels(table, kind)
    mask: Mask = np.logical_or.reduce([column == name for column in labels])
    if not mask.any():
        known = sorted({str(each) for column in labels for each in column})
        fix = did_you_mean(name, known) or f"there are {', '.join(known[:20])}"
        raise UsageError(f"the table has no {kind} {name!r}", fix=fix)
    return mask


def _labels(table: OperationTable, kind: str) -> list[NDArray[np.str_]]:
    """Return by what names of a kind each operation is known."""
    ranks, stages = table.rank.astype(np.str_), table.stage.astype(np.str_)
    if kind == "worker":
        return [np.char.add(np.char.add(ranks, "/"), stages)]
    if kind == "operation":
        return [table.operation, table.shown_operation]
    return [ranks if kind == "rank" else stages]


def labels(table: OperationTable, kind: str) -> NDArray[np.str_]:
    """Return the rank, stage, worker (`rank/stage`) or operation of each operation, as answers name it."""
    return _labels(table, kind)[-1]
