"""The facts of a run, each from its first source, and where sources contradict each other."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ccl_bench.analysis.facts import Fact, Facts, fact, first
from ccl_bench.base.errors import NotMeasurable
from ccl_bench.base.findings import Finding
from ccl_bench.catalog.devices import models
from ccl_bench.catalog.dtypes import dtype
from ccl_bench.run.stated import CARD, CONFIG, METADATA

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ccl_bench.card import Card
    from ccl_bench.run.stated import Stated
    from ccl_bench.side_files import RunMetadata, TrainConfig
    from ccl_bench.trace.format import TraceFile

Source = dict[str, Fact[Any]]

TRACES = "distributedInfo of the traces"
COUNTED = "number of traces"

CODE = "facts-disagree"

ROUNDED = {"num_params": 0.05, "num_params_embedding": 0.05, "num_params_active": 0.05}
"""Facts that people round, with the share by which two sources may differ and still agree."""


def fact_sources(stated: Stated, traces: Sequence[TraceFile]) -> list[Source]:
    """Return what each source says: metadata before card before catalog before configuration and traces."""
    seen = _from_traces(traces)
    others = [_from_metadata(stated.metadata), _from_card(stated.card), _from_catalog(stated.card)]
    world_size = first(*(source.get("world_size") for source in (*others, seen)))
    return [*others, _from_config(stated.config, world_size.value if world_size else None), seen]


def merge_facts(sources: Sequence[Source]) -> Facts:
    """Return the facts of a run, each from the first source that has it."""
    names = dict.fromkeys(name for source in sources for name in source)
    return Facts(**{name: first(*(source.get(name) for source in sources)) for name in names})


def contradictions(sources: Sequence[Source], stated: Stated, traces: Sequence[TraceFile]) -> list[Finding]:
    """Return a finding for each fact on which two sources do not agree.

    A default of the training configuration that nobody wrote contradicts nothing, and neither does the
    number of traces: a rank may lack its trace.
    """
    assumed = _assumed(stated.config)
    names = dict.fromkeys(name for source in sources for name in source)
    found = []
    for name in names:
        said = [source[name] for source in sources if name in source]
        counted = [f for f in said if not (f.source == CONFIG and name in assumed) and f.source != COUNTED]
        if any(not _agree(name, counted[0].value, other.value) for other in counted[1:]):
            found.append(_contradiction(name, counted))
    sizes = sorted({trace.world_size for trace in traces if trace.world_size is not None})
    if len(sizes) > 1:
        message = f"the traces say that the job had {' and '.join(map(str, sizes))} ranks"
        found.append(Finding(CODE, "warning", message, count=len(sizes), touches=(touched("world_size"),)))
    return found


def _contradiction(name: str, said: Sequence[Fact[Any]]) -> Finding:
    values = " and ".join(f"{each.value} in {_place(each.source)}" for each in said)
    message = f"{name} is {values}; the first counts"
    return Finding(CODE, "warning", message, count=len(said), touches=(touched(name),))


def device_contradictions(inputs: Mapping[str, Any]) -> list[Finding]:
    """Return a finding where the devices that traces saw are not the one that is stated."""
    devices, facts = inputs.get("devices"), inputs["facts"]
    if devices is None or not facts.device:
        return []
    stated = set(models(facts.device.value))
    seen = {name: models(name) for name in devices["name"].unique().drop_nulls().sort() if name}
    is_known = stated and seen and all(seen.values())
    if not is_known or any(stated & {*known} for known in seen.values()):
        return []
    message = (
        f"device is {facts.device.value} in {_place(facts.device.source)}, "
        f"and the traces saw {' and '.join(seen)}; the traces count"
    )
    return [Finding(CODE, "warning", message, count=2, touches=("devices",))]


def touched(name: str) -> str:
    """Return what a finding about one fact touches: the numbers that asked for it."""
    return f"facts.{name}"


def _place(source: str) -> str:
    return f"the {source}" if source in {CARD, CONFIG} or source.startswith("catalog") else source


def _agree(name: str, one: object, other: object) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return _plain(one) == _plain(other) or (name == "precision" and _peak(one) == _peak(other) != "")
    if name in ROUNDED and isinstance(one, int | float) and isinstance(other, int | float):
        return abs(one - other) <= ROUNDED[name] * max(abs(one), abs(other))
    return one == other


def _peak(precision: str) -> str:
    """Return the dtype that peaks of devices are listed under for a precision; empty for an unknown one."""
    try:
        return dtype(precision).peak
    except NotMeasurable:
        return ""


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", "", text.lower())


def _assumed(config: TrainConfig | None) -> set[str]:
    """Return the facts of a configuration that are defaults, because nobody wrote them."""
    if config is None:
        return set()
    written = {
        "global_batch_size": (config.training, ("global_batch_size", "local_batch_size")),
        "seq_len": (config.training, ("seq_len",)),
        "pp_schedule": (config.parallelism, ("schedule",)),
        **{axis: (config.parallelism, (axis,)) for axis in _AXES},
    }
    return {name for name, (part, fields) in written.items() if not {*fields} & {*part.model_fields_set}}


_AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")


def _known(source: str, **values: Any) -> Source:
    """Return the values that are given as facts of one source."""
    facts = {name: fact(value, source) for name, value in values.items()}
    return {name: found for name, found in facts.items() if found is not None}


def _from_metadata(metadata: RunMetadata | None) -> Source:
    if metadata is None:
        return {}
    return _known(
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


def _from_card(card: Card | None) -> Source:
    if card is None:
        return {}
    plan, model, sizes = card.parallelism, card.model, card.model.architecture
    device = card.hardware.device
    return _known(
        CARD,
        world_size=card.world_size,
        global_batch_size=card.global_batch_size,
        seq_len=card.data.seq_len,
        device=device.model if device.type is None or str(device.type).upper() != "CPU" else None,
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
        tp=plan.tp,
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        microbatches=card.microbatches,
        pp_schedule=plan.schedule,
        virtual_stages=plan.virtual_stages,
        num_params=sizes.num_params,
        num_params_embedding=sizes.num_params_embedding,
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
        found = model("/".join(card.hf_url.rstrip("/").split("/")[-2:]))
    except NotMeasurable:
        return {}
    return _known(
        f"catalog, {found.name}",
        is_moe=found.experts > 0,
        num_params=found.parameters,
        num_params_embedding=found.lookup_parameters,
        num_params_active=found.active_parameters if found.experts else None,
        num_layers=found.layers,
        num_heads=found.heads,
        head_dim=(found.qk_head_dim + found.v_head_dim) // 2,
    )


def _from_config(config: TrainConfig | None, world_size: int | None) -> Source:
    """Return what the configuration says; degrees and sizes of -1 are resolved where the ranks are known."""
    if config is None:
        return {}
    plan, training = config.parallelism, config.training
    batch, shards = training.global_batch_size, plan.dp_shard
    if world_size:
        batch, shards = config.global_batch_size(world_size), config.dp_shard(world_size)
    return _known(
        CONFIG,
        global_batch_size=batch if batch and batch > 0 else None,
        seq_len=training.seq_len,
        phase="training",
        precision="fp8" if config.is_in_float8 else None,
        dp_replicate=plan.dp_replicate,
        dp_shard=shards if shards and shards > 0 else None,
        tp=plan.tp,
        pp=plan.pp,
        cp=plan.cp,
        ep=plan.ep,
        pp_schedule=plan.schedule if plan.pp and plan.pp > 1 else None,
    )


def _from_traces(traces: Sequence[TraceFile]) -> Source:
    said = {trace.world_size for trace in traces if trace.world_size is not None}
    if len(said) == 1:
        return _known(TRACES, world_size=said.pop())
    ranks = {trace.rank for trace in traces if trace.form.of_rank}
    if not said and len(ranks) > 1 and ranks == set(range(len(ranks))):
        return _known(COUNTED, world_size=len(ranks))
    return {}
