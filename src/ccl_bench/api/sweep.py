"""A serving sweep in Python: points, Pareto front, knee, and the throughput at an interactivity."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.analysis.serving.sweep import throughput_at

if TYPE_CHECKING:
    from ccl_bench.result.sweep import Sweep, SweepPoint


class ServingSweep:
    """One configuration under several loads; `data` holds the complete outcome."""

    def __init__(self, data: Sweep) -> None:
        self.data = data

    def __repr__(self) -> str:
        loads = ", ".join(point.load for point in self.points)
        return f"<ServingSweep of {len(self.points)} points: {loads}>"

    @property
    def points(self) -> list[SweepPoint]:
        """The points by rising load."""
        return self.data.points

    @property
    def front(self) -> list[SweepPoint]:
        """The points of the Pareto front, by rising interactivity."""
        return [self.points[place] for place in self.data.front]

    @property
    def knee(self) -> SweepPoint | None:
        """The knee of the front; None if it has none."""
        return None if self.data.knee is None else self.points[self.data.knee]

    def at(self, *, interactivity: float) -> float | None:
        """Return the output tokens per second at an interactivity in tokens/s per user.

        It is per GPU if their number is known (`data.devices`). Between points of the front it is
        interpolated, both axes logarithmic; None out of their range.
        """
        return throughput_at(self.data, interactivity)
