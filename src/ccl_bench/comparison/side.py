"""One side of a comparison: the results of a run, and what its card says."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.comparison.fields import Fields
    from ccl_bench.result import Result


@dataclass(frozen=True, slots=True)
class Side:
    """One run of a comparison."""

    name: str
    """As given."""
    results: dict[str, Result]
    fields: Fields = field(default_factory=dict)
    """What its card and metadata say."""

    @property
    def traces(self) -> frozenset[str]:
        """Hashes of the trace files behind the results."""
        return frozenset(t.sha256 for result in self.results.values() for t in result.provenance.traces)

    @property
    def statements(self) -> frozenset[str]:
        """Hashes of card and metadata behind the results."""
        found = [each for result in self.results.values() for each in result.provenance.files.items()]
        return frozenset(digest for name, digest in found if _states(name))


def _states(name: str) -> bool:
    """Whether a file behind a result says what was run."""
    return name.endswith((".yaml", ".yml", ".toml", "run_metadata.json"))


def is_same_work(one: Side, other: Side) -> bool:
    """Whether two sides rest on the same recording, or on the same card and metadata."""
    return any(
        bool(mine) and mine == theirs
        for mine, theirs in ((one.traces, other.traces), (one.statements, other.statements))
    )
