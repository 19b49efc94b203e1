"""The workload card of a definition: what is known before the run; the rest stays empty."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ccl_bench.card import card_in_mapping, card_text
from ccl_bench.catalog import models
from ccl_bench.collect.describe.card_values import of_configuration
from ccl_bench.collect.workloads.definition import torchtitan_version

if TYPE_CHECKING:
    from ccl_bench.collect.workloads.definition import Definition, Machine


def workload_card(definition: Definition) -> str:
    """Return the card as YAML in the template's layout."""
    values = {
        "version": 1,
        "description": _description(definition),
        "hf_url": f"https://huggingface.co/{definition.model}",
        **of_configuration(definition.settings, definition.devices),
        **_model(definition.model),
        **_hardware(definition.on, definition.devices, definition.nodes),
        "Model-executor.framework.name": "torchtitan",
        "Model-executor.framework.version": torchtitan_version(),
        "Model-executor.communication_library.name": "NCCL",
        "metric_source.traces": ["json"],
    }
    return card_text(card_in_mapping(_nested(values)).card)


def _description(definition: Definition) -> str:
    settings = definition.settings
    batch, tokens = settings.global_batch_size(definition.devices), settings.training.seq_len
    return f"{definition.description} A step is {batch} sequences of {tokens} tokens."


def _model(name: str) -> dict[str, Any]:
    shape = models.model(name)
    sizes = {
        "num_params": shape.parameters,
        "num_params_embedding": shape.embedding_parameters,
        "num_params_active": shape.active_parameters if shape.experts else None,
        "num_layers": shape.layers,
        "num_heads": shape.heads,
        "num_kv_heads": shape.kv_heads,
        "head_dim": shape.qk_head_dim if shape.qk_head_dim == shape.v_head_dim else None,
        "hidden_size": shape.hidden,
        "vocab_size": shape.vocabulary,
        "num_experts": shape.experts or None,
        "num_shared_experts": shape.shared_experts if shape.experts else None,
        "num_experts_per_tok": shape.experts_per_token or None,
    }
    return {
        "workload.model.moe": bool(shape.experts),
        "workload.model.model_family": name.rpartition("/")[2].lower(),
        **{f"workload.model.model_arch.{key}": size for key, size in sizes.items()},
    }


def _hardware(machine: Machine, devices: int, nodes: int) -> dict[str, Any]:
    network, unit = "workload.hardware.network_topo", "workload.hardware.xpu_spec"
    return {
        f"{network}.topology": machine.topology,
        f"{network}.bandwidth_gbps": [machine.scale_out_gbps, machine.scale_up_gbps],
        f"{unit}.type": "GPU",
        f"{unit}.model": machine.device,
        f"{unit}.total_count": devices,
        f"{unit}.count_per_node": machine.devices_per_node,
        f"{unit}.num_nodes": nodes,
        f"{unit}.memory_gb": machine.memory_gb,
    }


def _nested(values: dict[str, Any]) -> dict[str, Any]:
    """Return dotted paths as mappings in mappings."""
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *outer, last = path.split(".")
        inner = nested
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return nested
