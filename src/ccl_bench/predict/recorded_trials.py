"""Trials from recorded runs: the configuration that each states, and the step time that its traces show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.lazy_imports import pl
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.predict.trials import Trials, complete_trials, read_trials
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ccl_bench.run import Run

METRIC = "iteration_wall_clock_time"
"""The metric that is a trial's step time."""


def gathered_trials(places: Sequence[str], study: str | None = None) -> Trials:
    """Return the trials of tables, sets of the catalog, and recorded runs (folders) together.

    InputError names the table, or the run that states no configuration or shows no step time.
    """
    parts = [_trial_of_run(place) if Path(place).is_dir() else read_trials(place) for place in places]
    if study is not None:
        parts = [part.of_study(study) for part in parts]
    rows = pl.concat([part.rows for part in parts], how="diagonal_relaxed")
    remarks = tuple(dict.fromkeys(remark for part in parts for remark in part.remarks))
    return Trials(rows, ", ".join(part.source for part in parts), remarks)


def configuration_of_run(run: Run) -> dict[str, object]:
    """Return what a run states of its configuration, by the columns of a table of trials."""
    facts = {name: fact.value for name, fact in run.facts}
    card = run.documents.card
    degrees = {name: int(str(facts[name])) for name in ("dp", "dp_replicate", "dp_shard") if name in facts}
    dp = degrees.get("dp") or degrees.get("dp_replicate", 1) * degrees.get("dp_shard", 1)
    batch, microbatches = facts.get("global_batch_size"), facts.get("microbatches")
    size = None
    if isinstance(batch, int) and isinstance(microbatches, int) and batch % (dp * microbatches) == 0:
        size = batch // (dp * microbatches)
    if size is None and card is not None:
        size = card.parallelism.microbatch_size
    heads, width = facts.get("num_heads"), facts.get("head_dim")
    shape = card.model.architecture if card is not None else None
    hidden = shape.hidden_size if shape is not None else None
    if hidden is None and isinstance(heads, int) and isinstance(width, int):
        hidden = heads * width
    return {
        **{name: facts.get(name) for name in ("framework", "seq_len", "tp", "pp", "cp", "ep")},
        "gpu": facts.get("device"),
        "gpus": facts.get("world_size"),
        "gpus_per_node": facts.get("devices_per_node"),
        "dp": dp,
        "global_batch": batch,
        "micro_batch": size,
        "model": card.model.model_family if card is not None else None,
        "layers": facts.get("num_layers"),
        "heads": heads,
        "hidden": hidden,
        "vocabulary": shape.vocab_size if shape is not None else None,
    }


def table_of(rows: Iterable[dict[str, object]], source: str) -> Trials:
    """Return configurations as trials; InputError names what one lacks."""
    texts = [{name: None if value is None else str(value) for name, value in row.items()} for row in rows]
    return complete_trials(pl.DataFrame(texts, infer_schema_length=None), source)


def _trial_of_run(place: str) -> Trials:
    run = open_run(place)
    result = evaluate(run, [METRIC])[0]
    if result.value is None:
        raise InputError(f"the run shows no step time: {result.reason}", where=place, fix=result.fix)
    row = configuration_of_run(run)
    missing = [name for name in ("global_batch", "micro_batch", "seq_len") if row[name] is None]
    if missing:
        raise UsageError(
            f"{place}: no {missing[0].replace('_', ' ')} is stated",
            fix="write batch_size, seq_len and microbatches (or pp_mb) into the card of the run",
        )
    return table_of([{**row, "step_s": result.value}], place)
