"""What the interface for programs answers with."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field


class NumberAnswer(BaseModel):
    """One number of one run."""

    value: float
    unit: str
    better: Literal["higher", "lower", "neither"]
    revision: int = Field(description="Of the metric's definition.")
    measured: str = Field(description="How, as far as numbers measured otherwise do not compare.")
    errors: int = Field(description="Findings about the data that are errors: such a number is not ranked.")
    doubts: int = Field(description="Findings beyond notes that touch the number.")
    place: int | None = Field(description="Rank among comparable runs, 1 is best; null where not ranked.")
    ranked: int | None = Field(description="Runs that it is ranked among.")


class RunAnswer(BaseModel):
    """One published run."""

    id: str = Field(description="SHA-256 of the bundle.")
    state: Literal["self_reported", "verified", "withdrawn", "superseded"]
    submitted_at: str = Field(description="ISO 8601, UTC.")
    submitter: str
    superseded_by: str | None
    name: str = Field(description="Name of the run's directory.")
    workload: str = Field(description="Key of the workload: runs with the same one did the same work.")
    workload_label: str
    phase: str | None
    model: str | None
    precision: str | None
    batch_size: int | None = Field(description="Sequences in a step over all ranks.")
    seq_len: int | None = Field(description="Tokens.")
    hardware: str | None = Field(description="Model of the device.")
    device_count: int | None
    node_count: int | None
    framework: str | None
    framework_version: str | None
    communication_library: str | None
    communication_version: str | None
    dp_replicate: int | None
    dp_shard: int | None
    tp: int | None
    pp: int | None
    cp: int | None
    ep: int | None
    tool_version: str = Field(description="Version of ccl-bench.")
    trace_url: str | None
    has_report: bool
    numbers: dict[str, NumberAnswer] = Field(description="Metric to number.")


class RunsAnswer(BaseModel):
    """One page of runs."""

    total: int = Field(description="Runs on all pages.")
    page: int
    size: int
    runs: list[RunAnswer]


class EventAnswer(BaseModel):
    """One change of a run's state."""

    state: str
    at: str
    by: str
    note: str
    superseded_by: str | None


class RunDetails(BaseModel):
    """One published run with everything in its bundle."""

    run: RunAnswer
    card: dict[str, Any] = Field(description="Fields of the card that are written, by name.")
    results: list[dict[str, Any]] = Field(
        description="The results, as ccl-metrics --format json prints them."
    )
    provenance: dict[str, Any]
    history: list[EventAnswer]


class WorkloadAnswer(BaseModel):
    """What runs have in common that are ranked together."""

    key: str
    label: str
    runs: int = Field(description="Listed runs.")
    fields: dict[str, Any]


class Health(BaseModel):
    """Whether the server answers."""

    status: Literal["ok"]
    version: str
    runs: int = Field(description="Runs in the index, in any state.")


class Refusal(BaseModel):
    """Why a call was refused."""

    detail: str
    fix: str = ""
