"""Tables of operations that tests make: a pipeline whose times follow from a plan by hand."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

if TYPE_CHECKING:
    from pathlib import Path

FORWARD_S, BACKWARD_S, TRANSFER_S, OPTIMIZER_S = 1.0, 2.0, 0.125, 0.5


@dataclass
class MadeTable:
    """Two stages, GPipe order, one message in each direction for each microbatch."""

    ranks: int = 2
    microbatches: int = 3
    steps: int = 3
    slow: dict[tuple[int, int], float] = field(default_factory=dict)
    """Rank and stage → by what factor they compute more slowly."""
    wait_s: float = 0.0
    """Time that passes before each step's optimizer, which nothing explains."""

    def rows(self) -> list[dict[str, Any]]:
        """Return the rows; every step is alike, 100 s after the one before."""
        return [
            {**row, "dp_rank": rank, "step": step, "start_ts": row["start_ts"] + 100.0 * step}
            for step in range(self.steps)
            for rank in range(self.ranks)
            for row in self._one(rank)
        ]

    def _one(self, rank: int) -> list[dict[str, Any]]:
        """Return one rank's step, computed event by event."""
        first, second = (self.slow.get((rank, stage), 1.0) for stage in (0, 1))
        rows: list[dict[str, Any]] = []

        def add(stage: int, name: str, number: int, start: float, took: float, *, computes: bool) -> float:
            chunk = (
                {"mc": 0, "mb_id": number, "gmc": stage} if computes else {"mc": -1, "mb_id": -1, "gmc": -1}
            )
            row = {"stage": stage, "optype": name, "seq_id": number, "start_ts": start, "duration": took}
            rows.append(row | chunk)
            return start + took

        free = [0.0, 0.0]
        for number in range(self.microbatches):
            sent = add(0, "forward-compute", number, free[0], FORWARD_S * first, computes=True)
            met = max(sent, free[1])
            arrived = add(0, "forward-send", number, sent, met + TRANSFER_S - sent, computes=False)
            add(1, "forward-recv", number, free[1], arrived - free[1], computes=False)
            free[1] = add(1, "forward-compute", number, arrived, FORWARD_S * second, computes=True)
            free[0] = sent
        for number in range(self.microbatches):
            sent = add(1, "backward-compute", number, free[1], BACKWARD_S * second, computes=True)
            met = max(sent, free[0])
            arrived = add(1, "backward-send", number, sent, met + TRANSFER_S - sent, computes=False)
            add(0, "backward-recv", number, free[0], arrived - free[0], computes=False)
            free[0] = add(0, "backward-compute", number, arrived, BACKWARD_S * first, computes=True)
            free[1] = sent
        for stage in (0, 1):
            add(stage, "optimizer", 0, free[stage] + self.wait_s, OPTIMIZER_S, computes=False)
        return rows

    def write(self, path: Path) -> str:
        """Write the table, and return its path."""
        frame = pl.DataFrame(self.rows())
        _ = frame.write_csv(path) if path.suffix == ".csv" else frame.write_parquet(path)
        return str(path)
