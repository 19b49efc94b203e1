"""Inspections and validations of runs as plain data, for reports and JSON."""

from __future__ import annotations

from dataclasses import dataclass, field

from ccl_bench.base.findings import Issue  # noqa: TC001  msgspec reads the types of fields
from ccl_bench.base.text import encode_json
from ccl_bench.result import Displayed
from ccl_bench.result.diagnosis import Verdict  # noqa: TC001

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True)
class InspectedTrace:
    """One trace file."""

    file: str
    """Path below the run."""
    format: str
    """Trace format."""
    size_bytes: int
    """Size on disk."""
    rank: int | None = None
    rank_source: str = ""
    """`file`, `map`, `name` or `unknown`."""
    window: int | None = None
    """Number of the recording window, if the path contains one."""
    steps: list[int] = field(default_factory=list)
    """Numbers of the steps in it."""
    step_source: str = ""
    """How the steps were found."""
    span_s: float = 0.0
    """From the first to the last recorded event, s."""
    kernels: int = 0
    copies: int = 0
    """Copies and memory sets of a device."""
    cpu_ops: int = 0
    communication_calls: int = 0
    is_readable: bool = True


@dataclass(frozen=True, slots=True)
class InspectedDevice:
    """One kind of device that the recording processes saw."""

    name: str
    """Empty if unknown."""
    memory_bytes: int | None
    multiprocessors: int | None
    count: int
    """Largest number of devices of this kind that one process saw."""


@dataclass(frozen=True, slots=True)
class InspectedGroup:
    """One process group."""

    description: str
    size: int | None
    ranks: list[int] | None
    """Global ranks of the members; None if unknown."""
    dimension: str
    """Parallelism dimension, or `unknown`."""
    users: int
    """Ranks whose traces have calls in it."""


@dataclass(frozen=True, slots=True)
class InspectedFact:
    """One fact and where it comes from."""

    value: int | float | str | bool
    source: str


@dataclass(frozen=True, slots=True)
class InspectedMetric:
    """Whether one metric has a value for the run."""

    metric: str
    unit: str
    status: str
    reason: str = ""
    fix: str = ""
    is_repairable: bool = False
    """Whether the user can add the missing data to this run."""


@dataclass(slots=True, repr=False)
class Inspection(Displayed):
    """The inspection of a run: contents, measurable metrics, and issues."""

    run: str
    """The run's address."""
    world_size: int | None = None
    ranks: list[int] = field(default_factory=list)
    """Ranks that have a trace."""
    missing_ranks: list[int] = field(default_factory=list)
    traces: list[InspectedTrace] = field(default_factory=list)
    devices: list[InspectedDevice] = field(default_factory=list)
    libraries: dict[str, list[str]] = field(default_factory=dict)
    """Libraries and versions that the traces record, such as `nccl_version`."""
    calls: dict[str, int] = field(default_factory=dict)
    """Communication calls of all traces by collective."""
    groups: list[InspectedGroup] = field(default_factory=list)
    facts: dict[str, InspectedFact] = field(default_factory=dict)
    files: dict[str, str] = field(default_factory=dict)
    """File → its kind, or why it is not used; without traces."""
    unknown_files: list[str] = field(default_factory=list)
    metrics: list[InspectedMetric] = field(default_factory=list)
    issues: list[Issue] = field(default_factory=list)
    model: str = ""
    """Name of the model, from the training configuration, else from the card."""
    choice: str = ""
    """The chosen steps, in words; empty for all."""
    verdict: Verdict | None = None
    """The step breakdown, if requested."""
    schema_version: int = SCHEMA_VERSION

    @property
    def errors(self) -> list[Issue]:
        """Errors, which make data unusable."""
        return [issue for issue in self.issues if issue.severity == "error"]


@dataclass(slots=True)
class Validation:
    """The issues of one place."""

    place: str
    kind: str
    """The kind of the place."""
    issues: list[Issue] = field(default_factory=list)


def to_json(inspected: Inspection | list[Validation]) -> bytes:
    """Return an inspection, or validations, as indented JSON."""
    return encode_json(inspected)
