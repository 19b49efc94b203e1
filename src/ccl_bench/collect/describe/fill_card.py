"""Fill the workload card and `run_metadata.json` of a run with what was observed.

What a person wrote stays; a contradiction is reported.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.card import fill, read_card, template
from ccl_bench.card.fields import Section, key_of
from ccl_bench.collect.environment.capture import communication_variables
from ccl_bench.side_files.metadata import FILE_NAME
from ccl_bench.storage import write_atomically
from ccl_bench.storage.files import replace_text

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.collect.describe.observations import Observations
    from ccl_bench.side_files import TrainConfig

_GBIT = 8
"""Gbit in a GB."""

_TRACES = {"kineto": "json", "execution_trace": "torch_et", "nsys": "nsys"}
_FRAMEWORKS = ("torchtitan", "megatron-lm", "deepspeed", "vllm", "sglang")
_DISTRIBUTIONS = {"megatron-lm": "megatron-core"}
_LIBRARIES = {"nccl": "NCCL", "gloo": "Gloo", "rccl": "RCCL", "ucc": "UCC", "mpi": "MPI"}


def observed_card_values(seen: Observations) -> dict[str, Any]:
    """Return what was observed, by path in the card; fields of which nothing is known are left out."""
    values = {
        "version": 1,
        **_hardware(seen),
        **_recorded(seen),
        **_framework(seen),
        **_communication(seen),
        **_sources(seen),
    }
    if seen.configuration:
        values |= configured_card_values(seen.configuration.settings, seen.world_size)
    return {path: value for path, value in values.items() if value not in (None, "", {}, [])}


def _hardware(seen: Observations) -> dict[str, Any]:
    unit = "workload.hardware.xpu_spec"
    devices = seen.devices
    nodes = int(seen.variables.get("SLURM_NNODES", "0")) or None
    per_node = _per_node(seen, nodes)
    memory = seen.device_memory_bytes
    return {
        f"{unit}.type": "GPU" if devices else "CPU" if seen.torch else None,
        f"{unit}.model": devices[0]["name"] if devices else None,
        f"{unit}.total_count": seen.world_size,
        f"{unit}.count_per_node": per_node,
        f"{unit}.memory_gb": round(memory / 1e9, 1) if memory and devices else None,
        "workload.hardware.network_topo.bandwidth_gbps.scale_up": _scale_up_gbps(seen) if devices else None,
        "workload.hardware.driver_version": _driver(seen),
    }


def _per_node(seen: Observations, nodes: int | None) -> int | None:
    if seen.world_size and nodes and seen.world_size % nodes == 0:
        return seen.world_size // nodes
    local = seen.variables.get("LOCAL_WORLD_SIZE", "")
    return int(local) if local.isdigit() else None


def _scale_up_gbps(seen: Observations) -> float | None:
    """Return the sum of one device's NVLinks in one direction."""
    links: dict[str, list[float]] = seen.environment.get("device_links", {})
    rates = next((rates for name, rates in links.items() if name.isdigit()), [])
    return sum(rates) * _GBIT or None


def _driver(seen: Observations) -> str | None:
    if seen.torch.get("cuda"):
        return f"cuda_{seen.torch['cuda']}"
    return f"rocm_{seen.torch['hip']}" if seen.torch.get("hip") else None


def _framework(seen: Observations) -> dict[str, Any]:
    place = "Model-executor.framework"
    versions = seen.software.get("libraries", {})
    words = " ".join(seen.command).lower()
    name = "torchtitan" if seen.configuration else next((n for n in _FRAMEWORKS if n in words), "")
    if not name and seen.torch and (seen.recording or seen.kinds & {"kineto", "execution_trace"}):
        name = "pytorch"
    version = versions.get(_DISTRIBUTIONS.get(name, name))
    return {
        f"{place}.name": name,
        f"{place}.version": seen.torch.get("version") if name == "pytorch" else version,
    }


def _communication(seen: Observations) -> dict[str, Any]:
    place = "Model-executor.communication_library"
    backend = seen.backend.rpartition(":")[2].lower()
    name = next((name for key, name in _LIBRARIES.items() if key in backend), seen.backend)
    version = seen.torch.get("nccl") if name == "NCCL" else None
    return {
        f"{place}.name": name,
        f"{place}.version": version,
        f"{place}.env": communication_variables(seen.variables),
    }


def _recorded(seen: Observations) -> dict[str, Any]:
    """Return what a program that recorded itself said of its training."""
    if seen.recording is None:
        return {}
    batch = seen.metadata.get("global_batch_size")
    return {
        "workload.model.phase": "training",
        "workload.model.granularity": "model_fwd_bwd_pass",
        "workload.model.iteration": seen.recording.get("steps"),
        "workload.data.batch_size": batch,
        "workload.data.batch_size_scope": "global" if batch else None,
        "workload.data.seq_len": seen.metadata.get("seq_len"),
    }


def _sources(seen: Observations) -> dict[str, Any]:
    return {
        "metric_source.traces": [name for kind, name in _TRACES.items() if kind in seen.kinds],
        "metric_source.metrics_specific_trace": ["memory_snapshot"] * ("memory_snapshot" in seen.kinds),
    }


def configured_card_values(settings: TrainConfig, world_size: int | None) -> dict[str, Any]:
    """Return what a torchtitan configuration tells; degrees of -1 need the number of ranks."""
    plan, training, model = settings.parallelism, settings.training, settings.model
    shards = settings.dp_shard(world_size) if world_size else plan.dp_shard
    degrees = "Model-executor.model_plan_parallelization"
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
        f"{degrees}.dp_replicate": plan.dp_replicate,
        f"{degrees}.dp_shard": shards if shards and shards > 0 else None,
        f"{degrees}.tp": plan.tp,
        f"{degrees}.pp": plan.pp,
        f"{degrees}.cp": plan.cp,
        f"{degrees}.ep": plan.ep,
        f"{degrees}.pp_mb": plan.microbatch_size if has_pipeline else None,
        f"{degrees}.microbatches": settings.microbatches if has_pipeline else None,
        f"{degrees}.pp_schedule": plan.schedule if has_pipeline else None,
    }


CARD_FILE_NAME = "workload_card.yaml"


def place_card(target: Path, given: Path | None, found: list[Path]) -> Path:
    """Return the card in the run directory: the one there, else a copy of `given` or `found`, else empty."""
    card = target / CARD_FILE_NAME
    if given is not None and not (card.exists() and card.samefile(given)):
        shutil.copyfile(given, card)
    elif not card.exists() and found:
        shutil.copyfile(found[0], card)
    elif not card.exists():
        replace_text(card, template())
    return card


_DEPENDS_ON = {
    "Model-executor.framework.version": "Model-executor.framework.name",
    "Model-executor.communication_library.version": "Model-executor.communication_library.name",
    "workload.hardware.xpu_spec.memory_gb": "workload.hardware.xpu_spec.model",
}
"""Field -> the field that says of what it is."""


def fill_card(card: Path, seen: Observations) -> tuple[list[str], list[str]]:
    """Fill a card; return the fields that were filled, and where it contradicts what was observed."""
    values = observed_card_values(seen)
    written = dict(_written_fields(read_card(card).card))
    disagreeing = {
        name: value
        for name, value in values.items()
        if name in written and not isinstance(value, list | dict) and not _agree(written[name], value)
    }
    remarks = [
        f"{CARD_FILE_NAME} says {name} = {written[name]}, but {value} was observed; the card keeps it"
        for name, value in disagreeing.items()
    ]
    # A version of torchtitan says nothing where a person wrote that something else ran.
    wanted = {name: value for name, value in values.items() if _DEPENDS_ON.get(name) not in disagreeing}
    try:
        return list(fill(card, wanted).filled), remarks
    except InputError as error:
        return [], [*remarks, str(error)]


def _written_fields(part: Section, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every field of a card that says something, by its path in the file."""
    for name, info in type(part).model_fields.items():
        value = getattr(part, name)
        place = f"{path}.{key_of(name, info)}".lstrip(".")
        if isinstance(value, Section):
            yield from _written_fields(value, place)
        elif value is not None:
            yield place, value


def _agree(written: object, value: object) -> bool:
    """Whether two values say the same; names may differ in case and punctuation, and one may say more."""
    if isinstance(written, bool) or isinstance(value, bool):
        return written == value
    if isinstance(written, int | float) and isinstance(value, int | float):
        return abs(written - value) <= 0.1 * abs(value) if isinstance(value, float) else written == value
    one, other = _letters_and_digits(written), _letters_and_digits(value)
    return one in other or other in one


def _letters_and_digits(value: object) -> str:
    return "".join(letter for letter in str(value).lower() if letter.isalnum())


def fill_metadata(target: Path, seen: Observations) -> list[str]:
    """Write what was observed into the run's metadata; return where it contradicts what stands there."""
    path, written = target / FILE_NAME, seen.metadata
    values = dict(_metadata_values(seen))
    added = {name: value for name, value in values.items() if written.get(name) is None}
    if added:
        with write_atomically(path) as temporary:
            temporary.write_text(json.dumps({**written, **added}, indent=2) + "\n")
            temporary.chmod(0o644)
    return [
        f"{FILE_NAME} says {name} = {written[name]}, but {value} was observed; the file keeps it"
        for name, value in values.items()
        if name not in added and written[name] != value
    ]


def _metadata_values(seen: Observations) -> Iterator[tuple[str, int]]:
    """Yield what a trace does not hold or is worth having in one place.

    Sizes of a configuration that the command line changed stand here, because the file is not what ran.
    """
    if seen.world_size:
        yield "world_size", seen.world_size
    configuration = seen.configuration
    if configuration and seen.world_size:
        batch = configuration.settings.global_batch_size(seen.world_size)
        if batch:
            yield "global_batch_size", batch
        if configuration.settings.training.seq_len:
            yield "seq_len", configuration.settings.training.seq_len
    if seen.device_memory_bytes:
        yield "gpu_hbm_bytes", seen.device_memory_bytes
