"""What one trace of a run came to: its tables, and what is known of it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.base.findings import Finding
    from ccl_bench.base.lazy_polars import pl
    from ccl_bench.trace.format import TraceFile

CUT_SHORT = frozenset({"file-truncated", "file-broken-off"})
"""Findings after which nobody knows how much of a trace is missing."""


UNREAD = frozenset({"trace-unreadable", "worker-died"})
"""Findings of traces of which nothing is known."""


@dataclass(slots=True)
class TraceTables:
    """What one trace came to."""

    trace: TraceFile
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    sha256: str = ""
    rank: int | None = None
    """Rank as the whole file says, else as its name or a map says."""
    world_size: int | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    on_device: bool | None = None
    """Whether the trace holds work of a device; None where nothing that is wanted depends on it."""
    sign_of_device: str = ""
    """What shows that a trace without kernels is of a device all the same; empty where nothing does."""
    communicates: bool | None = None
    """Whether communication is recognised in it; None where it does not say that there should be any."""
    steps_from: str = ""
    """How its steps were found; empty where nothing wanted has any."""
    filled: frozenset[str] = frozenset()
    """Tables that the trace has rows in, of those behind what is wanted."""
    devices: frozenset[str] = frozenset()
    """Names of the devices that the recording process saw."""
    span_ns: tuple[int, int] | None = None
    """Start and end of what was recorded, on the clock of its host; None where nothing wanted has times."""
    whole_steps: frozenset[int] | None = None
    """Steps that are whole in a file that was cut short; None where it was not."""
    further: list[dict[str, pl.DataFrame]] = field(default_factory=list)
    """What `tables` hold of the first device, for each further one that the process worked on."""
    recorded_steps: tuple[int, ...] = ()
    """Numbers of its steps before some were chosen; empty where none were."""
    range_names: tuple[str, ...] = ()
    """Names of its ranges, the most frequent first, where none is what the chosen marker names."""
