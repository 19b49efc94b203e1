"""The folder of a workload: scripts, configuration and workload card, made from its definition."""

from __future__ import annotations

import re
import shlex
from functools import cache
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import UsageError
from ccl_bench.card import card_in_mapping, card_text
from ccl_bench.catalog import models
from ccl_bench.collect.describe.fill_card import configured_card_values
from ccl_bench.collect.describe.torchtitan import toml_text, toml_value
from ccl_bench.collect.workloads.definition import torchtitan_version

if TYPE_CHECKING:
    from pathlib import Path

    import jinja2

    from ccl_bench.collect.workloads.definition import Definition, Machine


def workload_card(definition: Definition) -> str:
    """Return the card as YAML in the template's layout."""
    values = {
        "version": 1,
        "description": _description(definition),
        "hf_url": f"https://huggingface.co/{definition.model}",
        **configured_card_values(definition.settings, definition.devices),
        **_model_fields(definition.model),
        **_hardware_fields(definition.resolved_machine, definition.devices, definition.nodes),
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


def _model_fields(name: str) -> dict[str, Any]:
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


def _hardware_fields(machine: Machine, devices: int, nodes: int) -> dict[str, Any]:
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


SCRIPT = "run.sh"


def folder_files(definition: Definition) -> dict[str, str]:
    """Return name -> content of every file in the folder."""
    header = f"# The settings of torchtitan {torchtitan_version()} for this workload.\n\n"
    return {
        SCRIPT: _render("run.sh", definition),
        "run.sbatch": _render("run.sbatch", definition),
        "train_config.toml": header + toml_text(definition.config),
        "workload_card.yaml": workload_card(definition),
        "pyproject.toml": _render("pyproject.toml", definition),
    }


def write_folder(definition: Definition, folder: Path, *, force: bool = False) -> list[Path]:
    """Write the files and return their paths; overwrite one that differs only with `force`."""
    files = {folder / name: text for name, text in folder_files(definition).items()}
    taken = [path.name for path, text in files.items() if path.exists() and path.read_text("utf-8") != text]
    if taken and not force:
        message = f"already holds other files of these names: {', '.join(taken)}"
        raise UsageError(message, where=str(folder), fix="choose another folder, or give --force")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    (folder / SCRIPT).chmod(0o755)
    return list(files)


def _render(name: str, definition: Definition) -> str:
    values = {
        "definition": definition,
        "machine": definition.resolved_machine,
        "distribution": re.sub(r"[^a-z0-9.]+", "-", definition.name.lower()).strip("-."),
        "torchtitan": torchtitan_version(),
        "time": f"{definition.minutes // 60:02}:{definition.minutes % 60:02}:00",
    }
    return _templates().get_template(f"{name}.jinja").render(values)


@cache
def _templates() -> jinja2.Environment:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("ccl_bench.collect.workloads"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        autoescape=False,  # noqa: S701 (shell and TOML, no page)
    )
    environment.filters |= {"quoted": shlex.quote, "toml": toml_value}
    return environment
