"""Public language models: shapes and parameter counts by their Hugging Face name."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.registry import did_you_mean
from ccl_bench.catalog.data_files import load_data


@dataclass(frozen=True, slots=True)
class Model:
    """A language model's architecture."""

    name: str
    """Hugging Face name."""
    parameters: int
    """All weights of the main model, count."""
    active_parameters: int
    """Weights one token meets, count; all of them in a dense model."""
    embedding_parameters: int
    """Weights of one vocabulary table, count."""
    position_parameters: int
    """Weights of a learned position table, count; 0 with rotary positions."""
    tied_embeddings: bool
    """The output projection is the input table."""
    layers: int
    """Transformer layers, count."""
    hidden: int
    """Width of the residual stream, elements."""
    heads: int
    """Query heads, count."""
    kv_heads: int
    """Key and value heads, count."""
    qk_head_dim: int
    """Width of one query or key head, elements."""
    v_head_dim: int
    """Width of one value head, elements."""
    vocabulary: int
    """Tokens in the vocabulary, count."""
    experts: int
    """Routed experts in a mixture layer, count; 0 in a dense model."""
    experts_per_token: int
    """Routed experts a token is sent to, count."""
    shared_experts: int
    """Experts every token passes, count."""
    context_length: int
    """Native context, tokens."""

    @property
    def lookup_parameters(self) -> int:
        """Weights looked up and never multiplied, count: a tied table is multiplied at the output."""
        table = 0 if self.tied_embeddings else self.embedding_parameters
        return table + self.position_parameters

    @property
    def source(self) -> str:
        """Title and document of the source."""
        data = load_data("models")
        row = next(row for row in data["model"] if row["name"] == self.name)
        entry = data["sources"][row["source"]]
        return f"{entry['title']}, {entry['document']}"


def model(name: str) -> Model:
    """Return the model called `name`: a Hugging Face name with or without its owner, in any case."""
    entry = _by_name().get(name.strip().lower())
    if entry is None:
        hint = did_you_mean(name, names())
        fix = "write model_flops_per_token into run_metadata.json, or the architecture into the card"
        raise NotMeasurable(
            f"unknown model {name!r}", fix=f"{hint} Or {fix}" if hint else fix, is_repairable=True
        )
    return entry


def names() -> list[str]:
    """Return the Hugging Face names in the catalog, aliases left out."""
    return [row["name"] for row in load_data("models")["model"]]


@cache
def _by_name() -> dict[str, Model]:
    models: dict[str, Model] = {}
    for row in load_data("models")["model"]:
        shape: dict[str, Any] = {
            "active_parameters": row["parameters"],
            "position_parameters": 0,
            "tied_embeddings": False,
            "experts": 0,
            "experts_per_token": 0,
            "shared_experts": 0,
        } | {key: value for key, value in row.items() if key not in ("aliases", "source")}
        entry = Model(**shape)
        for name in (row["name"], *row["aliases"]):
            models[name.lower()] = entry
            models.setdefault(name.lower().rpartition("/")[2], entry)
    return models
