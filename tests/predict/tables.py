"""Tables of trials for tests."""

from __future__ import annotations

import polars as pl

from ccl_bench.predict.trials import complete_trials

DENSE = {
    "layers": 8,
    "hidden": 1024,
    "heads": 8,
    "vocabulary": 32_000,
    "gpu": "A100-SXM4-80GB",
    "gpus_per_node": 4,
}


def rows(*configurations: dict[str, object], **shared: object) -> pl.DataFrame:
    """Return rows of trials of one model, with the settings of each and those that all share."""
    values = [{"seq_len": 1024, "micro_batch": 1, **DENSE, **shared, **each} for each in configurations]
    table = pl.DataFrame(values, infer_schema_length=None)
    return complete_trials(table, "table").rows
