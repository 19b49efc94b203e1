"""Filling of the workload card and `run_metadata.json` from observations.

Values that a person wrote stay; contradictions are reported.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.card import card_values, fill, read_card, template
from ccl_bench.catalog.devices import models
from ccl_bench.collect.environment.machine import communication_variables
from ccl_bench.side_files.metadata import FILE_NAME
from ccl_bench.storage.files import replace_object, replace_text, write_atomically

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ccl_bench.card import Card
    from ccl_bench.collect.describe.observations import Observations
    from ccl_bench.side_files import TrainConfig

_GBIT = 8
"""Gbit in a GB."""

_TRACES = {
    "kineto": "json",
    "execution_trace": "torch_et",
    "nsys": "nsys",
    "xplane": "xla_trace",
    "jax_trace": "json_tpu",
}
"""Format -> the kind of trace in cards."""
_DEGREES = "Model-executor.model_plan_parallelization"
_FRAMEWORKS = ("torchtitan", "megatron-lm", "deepspeed", "vllm", "sglang")
_DISTRIBUTIONS = {"megatron-lm": "megatron-core"}
_LIBRARIES = {"nccl": "NCCL", "gloo": "Gloo", "rccl": "RCCL", "ucc": "UCC", "mpi": "MPI"}


def observed_card_values(observations: Observations) -> dict[str, Any]:
    """Return the observed values by path in the card, without unknown fields."""
    values = {"version": 1, **_hardware(observations)}
    if observations.recording is not None:  # a program that recorded itself reported its training
        batch = observations.metadata.get("global_batch_size")
        values |= {
            "workload.model.phase": "training",
            "workload.model.granularity": "model_fwd_bwd_pass",
            "workload.model.iteration": observations.recording.get("steps"),
            "workload.data.batch_size": batch,
            "workload.data.batch_size_scope": "global" if batch else None,
            "workload.data.seq_len": observations.metadata.get("seq_len"),
        }
    if observations.world_size == 1:
        values |= one_rank_degrees()
    values |= {
        **_framework(observations),
        **_communication(observations),
        "metric_source.traces": [name for kind, name in _TRACES.items() if kind in observations.kinds],
        "metric_source.metrics_specific_trace": ["memory_snapshot"]
        * ("memory_snapshot" in observations.kinds),
    }
    if observations.configuration:
        values |= configured_card_values(observations.configuration.settings, observations.world_size)
    return {path: value for path, value in values.items() if value not in (None, "", {}, [])}


def one_rank_degrees() -> dict[str, int]:
    """Return the degrees of parallelism of a run with one rank."""
    return {f"{_DEGREES}.{axis}": 1 for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp")}


def _hardware(observations: Observations) -> dict[str, Any]:
    unit = "workload.hardware.xpu_spec"
    devices, torch = observations.devices, observations.torch
    ranks, nodes = observations.world_size, int(observations.variables.get("SLURM_NNODES", "0"))
    local = observations.variables.get("LOCAL_WORLD_SIZE", "")
    if ranks and nodes and ranks % nodes == 0:
        per_node: int | None = ranks // nodes
    else:
        per_node = int(local) if local.isdigit() else None
    memory = observations.device_memory_bytes
    # The NVLinks of one device in one direction together.
    links: dict[str, list[float]] = observations.environment.get("device_links", {})
    rates = next((rates for name, rates in links.items() if name.isdigit()), [])
    driver = f"rocm_{torch['hip']}" if torch.get("hip") else None
    return {
        f"{unit}.type": observations.accelerator,
        f"{unit}.model": observations.device_name,
        f"{unit}.total_count": ranks,
        f"{unit}.count_per_node": per_node,
        f"{unit}.memory_gb": round(memory / 1e9, 1) if memory and devices else None,
        "workload.hardware.network_topo.bandwidth_gbps.scale_up": (
            sum(rates) * _GBIT or None if devices else None
        ),
        "workload.hardware.driver_version": f"cuda_{torch['cuda']}" if torch.get("cuda") else driver,
    }


def _framework(observations: Observations) -> dict[str, Any]:
    section = "Model-executor.framework"
    versions = observations.software.get("libraries", {})
    words = " ".join(observations.command).lower()
    name = "torchtitan" if observations.configuration else next((n for n in _FRAMEWORKS if n in words), "")
    is_jax = observations.is_jax
    name = name or ("jax" if is_jax else "")
    if (
        not name
        and observations.torch
        and (observations.recording or observations.kinds & {"kineto", "execution_trace"})
    ):
        name = "pytorch"
    version = versions.get(_DISTRIBUTIONS.get(name, name))
    return {
        f"{section}.name": name,
        f"{section}.version": observations.torch.get("version") if name == "pytorch" else version,
        f"{section}.compiler_tool_selection": "xla" if is_jax else None,
    }


def _communication(observations: Observations) -> dict[str, Any]:
    section = "Model-executor.communication_library"
    backend = observations.backend.rpartition(":")[2].lower()
    name = next((name for key, name in _LIBRARIES.items() if key in backend), observations.backend)
    version = observations.torch.get("nccl") if name == "NCCL" else None
    return {
        f"{section}.name": name,
        f"{section}.version": version,
        f"{section}.env": communication_variables(observations.variables),
    }


def configured_card_values(settings: TrainConfig, world_size: int | None) -> dict[str, Any]:
    """Return the values in a torchtitan configuration; degrees of -1 need the number of ranks."""
    plan, training, model = settings.parallelism, settings.training, settings.model
    shards = settings.dp_shard(world_size) if world_size else plan.dp_shard
    has_pipeline = bool(plan.pp and plan.pp > 1)
    return {
        "workload.model.phase": "training",
        "workload.model.granularity": "model_fwd_bwd_pass",
        "workload.model.model_family": "-".join(filter(None, (model.name, model.flavor))),
        "workload.model.precision": str(training.mixed_precision_param or "") or None,
        "workload.model.iteration": training.steps,
        "workload.data.batch_size": settings.global_batch_size(world_size) if world_size else None,
        "workload.data.batch_size_scope": "global" if world_size else None,
        "workload.data.seq_len": training.seq_len,
        "workload.data.dataset": training.dataset,
        "Model-executor.framework.compiler_tool_selection": (
            "torch.compile" if settings.is_compiled else "plain_pytorch"
        ),
        f"{_DEGREES}.dp_replicate": plan.dp_replicate,
        f"{_DEGREES}.dp_shard": shards if shards and shards > 0 else None,
        f"{_DEGREES}.tp": plan.tp,
        f"{_DEGREES}.pp": plan.pp,
        f"{_DEGREES}.cp": plan.cp,
        f"{_DEGREES}.ep": plan.ep,
        f"{_DEGREES}.pp_mb": plan.microbatch_size if has_pipeline else None,
        f"{_DEGREES}.microbatches": settings.microbatches if has_pipeline else None,
        f"{_DEGREES}.pp_schedule": plan.schedule if has_pipeline else None,
    }


CARD_FILE_NAME = "workload_card.yaml"


def place_card(target: Path, given_card: Path | None, cards: list[Path]) -> Path:
    """Return the card of the run directory: existing, else a copy of `given_card` or `cards`, else empty."""
    card = target / CARD_FILE_NAME
    if given_card is not None and not (card.exists() and card.samefile(given_card)):
        source = given_card
    elif not card.exists() and cards:
        source = cards[0]
    else:
        if not card.exists():
            replace_text(card, template())
        return card
    with write_atomically(card) as temporary:
        shutil.copyfile(source, temporary)
        temporary.chmod(0o644)
    return card


_DEPENDS_ON = {
    "Model-executor.framework.version": "Model-executor.framework.name",
    "Model-executor.communication_library.version": "Model-executor.communication_library.name",
    "workload.hardware.xpu_spec.memory_gb": "workload.hardware.xpu_spec.model",
}
"""Field -> the field with the name of its subject."""


def fill_card(card: Path, observations: Observations) -> tuple[list[str], list[str]]:
    """Fill a card; return the filled fields, and the contradictions to observations."""
    values, remarks = fillable(read_card(card).value, observed_card_values(observations))
    try:
        return list(fill(card, values).filled), remarks
    except InputError as error:
        return [], [*remarks, str(error)]


def fillable(card: Card, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the observed values by path that may fill a card, and its contradictions to the others."""
    in_card = card_values(card)
    contradictions = {
        name: value
        for name, value in values.items()
        if name in in_card and not isinstance(value, list | dict) and not _agree(in_card[name], value)
    }
    remarks = [
        f"{CARD_FILE_NAME} states {name} = {in_card[name]}, but {value} was observed; "
        "the card was not changed"
        for name, value in contradictions.items()
    ]
    # The version of torchtitan is of no use if the card names another framework.
    return {
        name: value for name, value in values.items() if _DEPENDS_ON.get(name) not in contradictions
    }, remarks


def _agree(card_value: object, value: object) -> bool:
    """Whether two values agree.

    Names may differ in case and punctuation, one may contain the other, and both may mean a device.
    """
    if isinstance(card_value, bool) or isinstance(value, bool):
        return card_value == value
    if isinstance(card_value, int | float) and isinstance(value, int | float):
        return (
            abs(card_value - value) <= 0.1 * abs(value) if isinstance(value, float) else card_value == value
        )
    card_text, observed_text = _letters_and_digits(card_value), _letters_and_digits(value)
    is_same_device = {*models(str(card_value))} & {*models(str(value))}
    return card_text in observed_text or observed_text in card_text or bool(is_same_device)


def _letters_and_digits(value: object) -> str:
    return "".join(letter for letter in str(value).lower() if letter.isalnum())


def fill_metadata(target: Path, observations: Observations) -> list[str]:
    """Add observations to the metadata of the run; return the contradictions.

    They are sizes that traces do not contain, or that several files contain, and include settings that the
    command line changed, which the configuration file lacks.
    """
    path, metadata = target / FILE_NAME, observations.metadata
    ranks, configuration = observations.world_size, observations.configuration
    sizes = {"world_size": ranks}
    if configuration and ranks:
        sizes["global_batch_size"] = configuration.settings.global_batch_size(ranks)
        sizes["seq_len"] = configuration.settings.training.seq_len
    sizes["gpu_hbm_bytes"] = observations.device_memory_bytes
    values = {name: size for name, size in sizes.items() if size}
    added = {name: value for name, value in values.items() if metadata.get(name) is None}
    if added:
        replace_object(path, {**metadata, **added})
    return [
        f"{FILE_NAME} states {name} = {metadata[name]}, but {value} was observed; the file was not changed"
        for name, value in values.items()
        if name not in added and metadata[name] != value
    ]
