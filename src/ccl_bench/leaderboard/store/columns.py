"""The columns of a run that come from its card, declared once.

The table of runs, its rows, queries and their filters, exports, the HTTP API and the pages read this list.
A new column is an entry here and a migration.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CardColumn:
    """One column of the table of runs."""

    name: str
    field: str
    """Field of the card."""
    type: type[str] | type[int] = str
    description: str | None = None
    """Meaning, if the name does not show it."""
    filter_label: str = ""
    """Name of its filter on pages; empty without a filter."""
    filter_description: str = ""


CARD_COLUMNS = (
    CardColumn("phase", "model.phase"),
    CardColumn("model", "model.model_family", str, None, "Model", "Models: any of these."),
    CardColumn("precision", "model.precision", str, None, "Precision", "Number formats: any of these."),
    CardColumn(
        "batch_size",
        "data.global_batch_size",
        int,
        "Sequences per step over all ranks.",
        "Batch",
        "Sequences per step over all ranks.",
    ),
    CardColumn("seq_len", "data.seq_len", int, "Tokens.", "Sequence", "Tokens of a sequence."),
    CardColumn("input_len", "data.input_len", int, None, "Prompt tokens", "Tokens of a prompt."),
    CardColumn("output_len", "data.output_len", int, None, "Output tokens", "Tokens of an answer."),
    CardColumn("concurrency", "data.serving.max_concurrency", int, "Requests under way at once."),
    CardColumn(
        "hardware",
        "hardware.device.model",
        str,
        "Model of the device.",
        "Hardware",
        "Models of the device: any of these.",
    ),
    CardColumn(
        "device_count", "hardware.device.device_count", int, None, "Devices", "Number of devices of the run."
    ),
    CardColumn("node_count", "hardware.device.node_count", int, None, "Nodes", "Number of nodes of the run."),
    CardColumn("framework", "framework.name", str, None, "Framework", "Frameworks: any of these."),
    CardColumn("framework_version", "framework.version"),
    CardColumn(
        "communication_library",
        "communication_library.name",
        str,
        None,
        "Communication",
        "Communication libraries: any of these.",
    ),
    CardColumn("communication_version", "communication_library.version"),
    *(
        CardColumn(axis, f"parallelism.{axis}", int, None, axis, description)
        for axis, description in (
            ("dp_replicate", "Data-parallel degree that replicates weights."),
            ("dp_shard", "Data-parallel degree that shards weights."),
            ("tp", "Tensor-parallel degree."),
            ("pp", "Pipeline-parallel degree."),
            ("cp", "Context-parallel degree."),
            ("ep", "Expert-parallel degree."),
        )
    ),
)

AXES = tuple(column.name for column in CARD_COLUMNS if column.field.startswith("parallelism."))
"""Degrees of parallelism."""

FILTERS = tuple(column for column in CARD_COLUMNS if column.filter_label)
TEXT_FILTERS = tuple(column.name for column in FILTERS if column.type is str)
"""Columns of text that a query can filter by."""
NUMBER_FILTERS = tuple(column.name for column in FILTERS if column.type is int)
"""Columns of numbers that a query can filter by."""
FILTER_LABELS = {column.name: column.filter_label for column in FILTERS}

SORTED_BY = (
    *TEXT_FILTERS,
    *NUMBER_FILTERS,
    "submitted_at",
    "submitter",
    "name",
    "state",
)
"""Fields that runs can be sorted by, besides metrics."""

EXPORT_FIELDS = (
    *("id", "state", "submitted_at", "submitter", "name", "workload"),
    *(column.name for column in CARD_COLUMNS),
    *("variant", "tool_version", "trace_url", "signed_by", "source"),
)
"""Columns of a CSV before those of metrics."""
