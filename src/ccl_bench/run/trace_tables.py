"""What reading one trace of a run gave: its tables, and facts about it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ccl_bench.base.findings import Finding
    from ccl_bench.base.lazy_imports import pl
    from ccl_bench.trace.formats import TraceFile


@dataclass(frozen=True, slots=True)
class Sketch:
    """A sample of what was recorded in a trace, the same in every copy: the smallest hashes of its rows."""

    rows: int
    by_clock: bytes
    """Hashes of start and duration, sorted, 8 bytes each; empty if the times are no recorded ones."""
    by_first: bytes
    """The same, with starts counted from the first: a copy may have another clock."""


@dataclass(slots=True)
class TraceTables:
    """The outcome of one trace."""

    trace: TraceFile
    tables: dict[str, pl.DataFrame] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    sha256: str = ""
    rank: int | None = None
    """Rank as the whole file says, else as its name or a map says."""
    world_size: int | None = None
    attributes: dict[str, str] = field(default_factory=dict)
    on_device: bool | None = None
    """Whether the trace holds work of a device; None if nothing that is wanted depends on it."""
    sign_of_device: str = ""
    """What shows that a trace without kernels is of a device all the same; empty if nothing does."""
    communicates: bool | None = None
    """Whether communication is recognised in it; None if it does not say that there should be any."""
    steps_from: str = ""
    """How its steps were found; empty if nothing wanted has any."""
    filled: frozenset[str] = frozenset()
    """Tables in which the trace has rows, among those behind the wanted tables."""
    devices: frozenset[str] = frozenset()
    """Names of the devices that the recording process saw."""
    span_ns: tuple[int, int] | None = None
    """Start and end of what was recorded, on the clock of its host; None if nothing wanted has times."""
    sketch: Sketch | None = None
    """Sample of what was recorded when; None if nothing wanted has it."""
    whole_steps: frozenset[int] | None = None
    """Steps that are whole in a file that was cut short; None if it was not."""
    further: list[dict[str, pl.DataFrame]] = field(default_factory=list)
    """What `tables` hold of the first device, for each further one that the process worked on."""
    recorded_steps: tuple[int, ...] = ()
    """Numbers of its steps before some were chosen; empty if none were."""
    range_names: tuple[str, ...] = ()
    """Names of its ranges, the most frequent first, where none is what the chosen marker names.

    If a program was chosen that it does not hold, the names of its programs.
    """
