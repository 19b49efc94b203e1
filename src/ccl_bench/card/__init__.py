"""The workload card: a person's description of a run; reading it reports every mistake at once."""

from ccl_bench.base.findings import Issue, Severity
from ccl_bench.card.assignments import assigned, field_meaning, field_path, read_value
from ccl_bench.card.fields import AcceleratorType, BatchScope, Phase, Precision
from ccl_bench.card.filling import (
    Filling,
    card_text,
    card_values,
    fill,
    filled,
    template,
    write_card,
    yaml_scalar,
)
from ccl_bench.card.model import Card
from ccl_bench.card.reading import (
    card_in_mapping,
    card_in_text,
    is_card,
    is_card_file,
    json_schema,
    read_card,
)
from ccl_bench.card.yaml_tree import Reading

__all__ = [
    "AcceleratorType",
    "BatchScope",
    "Card",
    "Filling",
    "Issue",
    "Phase",
    "Precision",
    "Reading",
    "Severity",
    "assigned",
    "card_in_mapping",
    "card_in_text",
    "card_text",
    "card_values",
    "field_meaning",
    "field_path",
    "fill",
    "filled",
    "is_card",
    "is_card_file",
    "json_schema",
    "read_card",
    "read_value",
    "template",
    "write_card",
    "yaml_scalar",
]
