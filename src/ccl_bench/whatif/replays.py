"""What a replay of a run or of a table of operations offers to scenarios and answers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from ccl_bench.base.findings import Finding

    Mask = NDArray[np.bool_]
    Times = NDArray[np.float64]

_BYTES = 1 << 28
"""Of one array of times; more variants are replayed one after the other."""


class Replays(ABC):
    """Replays of recorded operations with other times.

    A variant is an array of the times of all operations; a mask has one entry an operation.
    """

    name: str
    steps: Sequence[int]
    findings: Sequence[Finding]
    idealisation: str
    """What an ideal time is, in words."""
    kinds: tuple[str, ...]
    """Kinds of names that operations have, such as `rank`."""
    answered: tuple[str, ...]
    """Those of them that answers list."""
    recorded_s: Times
    """Length of each step as recorded, s."""

    @property
    @abstractmethod
    def recorded(self) -> Times:
        """The variant in which everything takes what it took."""

    @property
    @abstractmethod
    def ideal(self) -> Times:
        """The variant in which everything takes its ideal time."""

    @property
    @abstractmethod
    def is_compute(self) -> Mask:
        """Whether each operation computes; others move data."""

    @abstractmethod
    def labels(self, kind: str) -> list[NDArray[np.str_]]:
        """Return by what names of a kind each operation is known, "" where it has none; the last is shown."""

    @abstractmethod
    def matches(self, kind: str, name: str) -> Mask:
        """Return which operations a user means by a name of a kind."""

    @abstractmethod
    def without(self, mask: Mask) -> Times:
        """Return the variant in which some operations take their ideal time, as far as others show it."""

    @abstractmethod
    def scaled(self, mask: Mask, factor: float) -> Times:
        """Return the variant in which some operations take their own time by a factor."""

    @abstractmethod
    def ideal_but(self, mask: Mask) -> Times:
        """Return the variant in which all but some operations take their ideal time."""

    @property
    @abstractmethod
    def workers(self) -> dict[str, Mask]:
        """The operations of each worker, by rank and stage as `rank/stage`."""

    @abstractmethod
    def _replay(self, variants: Sequence[Times]) -> list[Times]:
        """Return the length of each step, s, for each of several variants."""

    def steps_s(
        self,
        variants: Iterable[Times],
        progress: Callable[[int, int], None] | None = None,
        total: int = 0,
    ) -> list[Times]:
        """Return the length of each step, s, for each variant; many are replayed in one pass."""
        at_once = max(1, _BYTES // max(1, 2 * self.recorded.nbytes))
        found: list[Times] = []
        waiting: list[Times] = []
        for variant in variants:
            waiting.append(variant)
            if len(waiting) == at_once:
                found += self._replay(waiting)
                waiting = []
                if progress:
                    progress(len(found), total)
        found += self._replay(waiting) if waiting else []
        if progress:
            progress(len(found), total)
        return found
