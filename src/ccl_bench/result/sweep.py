"""A serving sweep: one configuration under several loads, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Repeated:
    """A number that was measured once or several times."""

    median: float
    min: float
    max: float


@dataclass(frozen=True, slots=True)
class SweepPoint:
    """One load, with the medians over its repeats; None for what was not measured."""

    load: str
    """The load in words, such as `concurrency 64`."""
    concurrency: float | None
    """Most requests under way at once."""
    request_rate: float | None
    """Requests sent in one second."""
    repeats: int
    """Number of results at this load."""
    ttft_s: Repeated | None = None
    """Mean time to first token, s."""
    tpot_s: Repeated | None = None
    """Mean time per output token, s."""
    itl_s: Repeated | None = None
    """Mean inter-token latency, s."""
    interactivity: Repeated | None = None
    """1 / TPOT: output tokens per second of one user."""
    output_throughput: Repeated | None = None
    """Output tokens per second."""
    total_throughput: Repeated | None = None
    """Input and output tokens per second."""
    goodput: Repeated | None = None
    """Requests per second within the objectives."""
    failed: int = 0
    """Requests that failed or were cancelled, over all repeats."""


@dataclass(frozen=True, slots=True)
class SweepObjective:
    """The throughput at a TPOT that was stated and not measured."""

    tpot_s: float
    """The longest accepted time per output token, s."""
    interactivity: float
    """1 / TPOT, tokens/s per user."""
    throughput: float | None
    """Output tokens per second, per device if their number is known, interpolated; None out of range."""


@dataclass(frozen=True, slots=True)
class Sweep:
    """The points of one configuration, by rising load."""

    tool: str
    """Tool that drove the load, by the name of its format."""
    configuration: dict[str, str]
    """What all results state alike."""
    points: list[SweepPoint]
    input_tokens: float | None = None
    """Tokens of a prompt: as the results state, else their mean."""
    output_tokens: float | None = None
    """Tokens of an answer, likewise."""
    devices: int | None = None
    """Devices that serve."""
    devices_from: str = ""
    """Source of their number."""
    why_no_devices: str = ""
    """Why their number is unknown: throughput is then that of all devices."""
    objectives_s: dict[str, float] = field(default_factory=dict)
    """Quantity (`ttft`, `tpot`, `latency`) → longest accepted time, s."""
    front: list[int] = field(default_factory=list)
    """Points that no other dominates in throughput and interactivity, by rising interactivity."""
    knee: int | None = None
    """Point of the front from which on more of one costs most of the other."""
    objective: SweepObjective | None = None
    """The throughput at the stated TPOT."""

    def throughput(self, place: int) -> float | None:
        """Return the output tokens per second of a point, per device if their number is known."""
        rate = self.points[place].output_throughput
        return None if rate is None else rate.median / (self.devices or 1)
