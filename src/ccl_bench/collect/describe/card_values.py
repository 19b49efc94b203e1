"""Fields of a workload card that observation can fill, as dotted paths with values."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.collect.environment.variables import of_communication

if TYPE_CHECKING:
    from ccl_bench.card import TrainConfig
    from ccl_bench.collect.describe.observing import Observed

_GBIT = 8
"""Gbit in a GB."""

_TRACES = {"kineto": "json", "execution_trace": "torch_et", "nsys": "nsys"}
_FRAMEWORKS = ("torchtitan", "megatron-lm", "deepspeed", "vllm", "sglang")
_DISTRIBUTIONS = {"megatron-lm": "megatron-core"}
_LIBRARIES = {"nccl": "NCCL", "gloo": "Gloo", "rccl": "RCCL", "ucc": "UCC", "mpi": "MPI"}


def values_of(seen: Observed) -> dict[str, Any]:
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
        values |= of_configuration(seen.configuration.settings, seen.world_size)
    return {path: value for path, value in values.items() if value not in (None, "", {}, [])}


def _hardware(seen: Observed) -> dict[str, Any]:
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


def _per_node(seen: Observed, nodes: int | None) -> int | None:
    if seen.world_size and nodes and seen.world_size % nodes == 0:
        return seen.world_size // nodes
    local = seen.variables.get("LOCAL_WORLD_SIZE", "")
    return int(local) if local.isdigit() else None


def _scale_up_gbps(seen: Observed) -> float | None:
    """Return the sum of one device's NVLinks in one direction."""
    links: dict[str, list[float]] = seen.environment.get("device_links", {})
    rates = next((rates for name, rates in links.items() if name.isdigit()), [])
    return sum(rates) * _GBIT or None


def _driver(seen: Observed) -> str | None:
    if seen.torch.get("cuda"):
        return f"cuda_{seen.torch['cuda']}"
    return f"rocm_{seen.torch['hip']}" if seen.torch.get("hip") else None


def _framework(seen: Observed) -> dict[str, Any]:
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


def _communication(seen: Observed) -> dict[str, Any]:
    place = "Model-executor.communication_library"
    backend = seen.backend.rpartition(":")[2].lower()
    name = next((name for key, name in _LIBRARIES.items() if key in backend), seen.backend)
    version = seen.torch.get("nccl") if name == "NCCL" else None
    return {
        f"{place}.name": name,
        f"{place}.version": version,
        f"{place}.env": of_communication(seen.variables),
    }


def _recorded(seen: Observed) -> dict[str, Any]:
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


def _sources(seen: Observed) -> dict[str, Any]:
    return {
        "metric_source.traces": [name for kind, name in _TRACES.items() if kind in seen.kinds],
        "metric_source.metrics_specific_trace": ["memory_snapshot"] * ("memory_snapshot" in seen.kinds),
    }


def of_configuration(settings: TrainConfig, world_size: int | None) -> dict[str, Any]:
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
