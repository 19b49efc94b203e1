"""The facts of a run, merged from what people and launchers wrote.

Each fact comes from its first source; where sources contradict each other, a finding says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.facts import Fact, Facts, fact, first
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.catalog.devices import models
from ccl_bench.catalog.dtypes import dtype
from ccl_bench.run.documents import CARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.card import Card
    from ccl_bench.run.documents import RunDocuments
    from ccl_bench.side_files import RunMetadata, TrainConfig
    from ccl_bench.trace.formats import TraceFile

METADATA = "run_metadata.json"
CONFIG = "training configuration"

Source = dict[str, Fact[Any]]

TRACES = "distributedInfo of the traces"
COUNTED = "number of traces"

CODE = "facts-disagree"

ROUNDED = {"num_params": 0.05, "num_params_embedding": 0.05, "num_params_active": 0.05}
"""Facts that people round, with the share by which two sources may differ and still agree.

A model of 7B has 6.74 billion parameters, and one of 8B 8.03 billion.
"""


def fact_sources(documents: RunDocuments, traces: Sequence[TraceFile]) -> list[Source]:
    """Return the facts by source: metadata before card before catalog before configuration and traces."""
    seen = _from_traces(traces)
    others = [_from_metadata(documents.metadata), _from_card(documents.card), _from_catalog(documents.card)]
    world_size = first(*(source.get("world_size") for source in (*others, seen)))
    return [*others, _from_config(documents.config, world_size.value if world_size else None), seen]


def merge_facts(sources: Sequence[Source]) -> Facts:
    """Return the facts of a run, each from the first source that has it."""
    names = dict.fromkeys(name for source in sources for name in source)
    return Facts(**{name: first(*(source.get(name) for source in sources)) for name in names})


def contradictions(
    sources: Sequence[Source], documents: RunDocuments, traces: Sequence[TraceFile]
) -> list[Finding]:
    """Return a finding for each fact on which two sources do not agree.

    Unwritten defaults of the configuration contradict nothing, nor does the number of traces: some may lack.
    """
    assumed = _assumed(documents.config)
    names = dict.fromkeys(name for source in sources for name in source)
    findings = []
    for name in names:
        values = [source[name] for source in sources if name in source]
        compared = [f for f in values if not (f.source == CONFIG and name in assumed) and f.source != COUNTED]
        if any(not _agree(name, compared[0].value, other.value) for other in compared[1:]):
            values_in_words = " and ".join(f"{each.value} in {_worded(each.source)}" for each in compared)
            message = f"{name} is {values_in_words}; the first is used"
            touches = (fact_table(name),)
            findings.append(Finding(CODE, "warning", message, count=len(compared), touches=touches))
    sizes = sorted({trace.world_size for trace in traces if trace.world_size is not None})
    if len(sizes) > 1:
        message = f"the traces state that the job had {' and '.join(map(str, sizes))} ranks"
        touches = (fact_table("world_size"),)
        findings.append(Finding(CODE, "warning", message, count=len(sizes), touches=touches))
    return findings


def device_contradictions(inputs: Mapping[str, Any]) -> list[Finding]:
    """Return a finding if the devices that traces saw are not the one that is stated."""
    devices, facts = inputs.get("devices"), inputs["facts"]
    if devices is None or not facts.device:
        return []
    stated_models = set(models(facts.device.value))
    seen = {name: models(name) for name in devices["name"].unique().drop_nulls().sort() if name}
    is_known = stated_models and seen and all(seen.values())
    if not is_known or any(stated_models & {*names} for names in seen.values()):
        return []
    message = (
        f"device is {facts.device.value} in {_worded(facts.device.source)}, "
        f"but {' and '.join(seen)} in the traces, which are used"
    )
    return [Finding(CODE, "warning", message, count=2, touches=("devices",))]


def fact_table(name: str) -> str:
    """Return the name under which a finding about one fact affects the numbers that use the fact."""
    return f"facts.{name}"


def _worded(source: str) -> str:
    return f"the {source}" if source in {CARD, CONFIG} or source.startswith("catalog") else source


def _agree(name: str, one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        plain, other_plain = (re.sub(r"[\s_-]+", "", text.lower()) for text in (one, other))
        return plain == other_plain or (name == "precision" and _peak(one) == _peak(other) != "")
    if name in ROUNDED and isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= ROUNDED[name] * max(abs(one), abs(other))
    return one == other


def _peak(precision: str) -> str:
    """Return the dtype that peaks of devices are listed under for a precision; empty for an unknown one."""
    try:
        return dtype(precision).peak
    except NotMeasurable:
        return ""


def _assumed(config: TrainConfig | None) -> set[str]:
    """Return the facts of a configuration that are defaults, not written values."""
    if config is None:
        return set()
    axes = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
    written = {
        "global_batch_size": (config.training, ("global_batch_size", "local_batch_size")),
        "seq_len": (config.training, ("seq_len",)),
        "pp_schedule": (config.parallelism, ("schedule",)),
        **{axis: (config.parallelism, (axis,)) for axis in axes},
    }
    return {name for name, (part, fields) in written.items() if not {*fields} & {*part.model_fields_set}}


def _facts_of(source: str, **values: Any) -> Source:
    """Return the values that are given as facts of one source."""
    facts = {name: fact(value, source) for name, value in values.items()}
    return {name: value for name, value in facts.items() if value is not None}


def _from_metadata(metadata: RunMetadata | None) -> Source:
    if metadata is None:
        return {}
    return _facts_of(
        METADATA,
        world_size=metadata.world_size,
        global_batch_size=metadata.global_batch_size,
        seq_len=metadata.seq_len,
        tokens_per_step=metadata.tokens_per_step,
        model_flops_per_token=metadata.model_flops_per_token,
        gpu_peak_tflops=metadata.gpu_peak_tflops,
        gpu_hbm_bytes=metadata.gpu_hbm_bytes,
        **metadata.objectives,
    )


def _text(value: object) -> str | None:
    return None if value is None else str(value)


_AXES = {"tp", "pp", "cp", "ep"}


def _from_card(card: Card | None) -> Source:
    if card is None:
        return {}
    plan, model, sizes = card.parallelism, card.model, card.model.architecture
    device, serving = card.hardware.device, card.data.serving
    return _facts_of(
        CARD,
        world_size=card.world_size,
        global_batch_size=card.global_batch_size,
        batch_sizes=card.data.batch_sizes or None,
        seq_len=card.data.seq_len,
        request_rate=_text(serving.request_rate),
        **serving.model_dump(include={"num_prompts", "max_concurrency", "max_tokens"}),
        device=device.model if device.type is None or str(device.type).upper() != "CPU" else None,
        price_per_device_hour=card.hardware.price_per_device_hour,
        precision=_text(model.precision),
        phase=_text(model.phase),
        framework=card.framework.name,
        is_moe=True if model.is_moe or sizes.num_experts else model.is_moe,
        devices_per_node=device.devices_per_node,
        scale_up_gbps=card.hardware.network.bandwidth.scale_up,
        scale_out_gbps=card.hardware.network.bandwidth.scale_out,
        dp=plan.dp if plan.dp_replicate is None and plan.dp_shard is None else None,
        dp_replicate=plan.dp_replicate,
        dp_shard=plan.dp_shard,
        **plan.model_dump(include=_AXES),
        microbatches=card.microbatches,
        pp_schedule=plan.schedule,
        virtual_stages=plan.virtual_stages,
        num_params=sizes.num_params,
        num_params_embedding=sizes.num_params_embedding,
        num_experts=sizes.num_experts,
        num_params_active=sizes.num_params_active,
        num_layers=sizes.num_layers,
        num_heads=sizes.num_heads,
        head_dim=sizes.head_dim,
    )


def _from_catalog(card: Card | None) -> Source:
    """Return the architecture of a public model that the card names by its address."""
    if card is None or not card.hf_url:
        return {}
    from ccl_bench.catalog.models import model

    try:
        architecture = model("/".join(card.hf_url.rstrip("/").split("/")[-2:]))
    except NotMeasurable:
        return {}
    return _facts_of(
        f"catalog, {architecture.name}",
        is_moe=architecture.experts > 0,
        num_params=architecture.parameters,
        num_params_embedding=architecture.lookup_parameters,
        num_experts=architecture.experts or None,
        num_params_active=architecture.active_parameters if architecture.experts else None,
        num_layers=architecture.layers,
        num_heads=architecture.heads,
        head_dim=(architecture.qk_head_dim + architecture.v_head_dim) // 2,
    )


def _from_config(config: TrainConfig | None, world_size: int | None) -> Source:
    """Return the facts of the configuration; degrees and sizes of -1 are resolved if the ranks are known."""
    if config is None:
        return {}
    plan, training = config.parallelism, config.training
    batch, shards = training.global_batch_size, plan.dp_shard
    if world_size:
        batch, shards = config.global_batch_size(world_size), config.dp_shard(world_size)
    return _facts_of(
        CONFIG,
        global_batch_size=batch if batch and batch > 0 else None,
        seq_len=training.seq_len,
        phase="training",
        precision="fp8" if config.is_in_float8 else None,
        dp_replicate=plan.dp_replicate,
        dp_shard=shards if shards and shards > 0 else None,
        **plan.model_dump(include=_AXES),
        pp_schedule=plan.schedule if plan.pp and plan.pp > 1 else None,
    )


def _from_traces(traces: Sequence[TraceFile]) -> Source:
    sizes = {trace.world_size for trace in traces if trace.world_size is not None}
    if len(sizes) == 1:
        return _facts_of(TRACES, world_size=sizes.pop())
    ranks = {trace.rank for trace in traces if trace.form.of_rank}
    if not sizes and len(ranks) > 1 and ranks == set(range(len(ranks))):
        return _facts_of(COUNTED, world_size=len(ranks))
    return {}
