"""A workload: its definition in TOML on top of shared settings, and the folder generated from it."""

from __future__ import annotations

import math
import re
import shlex
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

import ccl_bench
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.base.text import json_decoder
from ccl_bench.card import card_in_mapping, card_text
from ccl_bench.catalog import models
from ccl_bench.collect.describe.fill_card import configured_card_values
from ccl_bench.collect.describe.torchtitan import toml_text, toml_value
from ccl_bench.side_files import train_config_in_text

if TYPE_CHECKING:
    import jinja2

    from ccl_bench.side_files import TrainConfig

DEFINITIONS = "workloads"
"""Folder of a checkout, and of its part in a wheel, that holds the standard definitions."""

Value = bool | int | float | str | list[str]
Tables = dict[str, dict[str, Value]]
"""A torchtitan configuration: section -> key -> value."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Devices, links, and options of Slurm."""

    device: str
    """Name of the device, as the driver gives it."""
    devices_per_node: int
    memory_gb: float | None = None
    """Memory of one device as sold, GB."""
    topology: str | None = None
    scale_out_gbps: float | None = None
    """Network between nodes, per device and direction, Gbit/s."""
    scale_up_gbps: float | None = None
    """Link inside a node, per device and direction, Gbit/s."""
    cluster: str = "generic"
    """Cluster profile in `clusters/` that the scripts read."""
    sbatch: dict[str, str | int] = {}
    """Options of sbatch other than nodes, tasks, devices and time."""


class WorkloadDefinition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One workload."""

    name: str = ""
    """Name of the folder; by default that of the file."""
    description: str
    """Its characteristics, in one sentence."""
    model: str
    """Hugging Face name."""
    machine: str | Machine
    """Name in `machines.toml`, or the machine itself."""
    minutes: int = 30
    """Time limit for Slurm, min."""
    train_config: Tables = {}
    """Settings of torchtitan over the shared ones."""

    @property
    def resolved_machine(self) -> Machine:
        """The machine, also if `machine` is only its name."""
        if isinstance(self.machine, Machine):
            return self.machine
        machines = _shared_settings("machines.toml")["machines"]
        if self.machine not in machines:
            hint = did_you_mean(self.machine, machines) or f"known: {', '.join(machines)}"
            raise InputError(f"there is no machine {self.machine!r}", where=self.name, fix=hint)
        return msgspec.convert(machines[self.machine], Machine)

    @property
    def config(self) -> Tables:
        """The complete configuration of torchtitan."""
        shared = _shared_settings("torchtitan.toml")
        of_workload: Tables = {
            "job": {"description": self.description},
            "model": {"hf_assets_path": f"assets/{self.model}"},
        }
        of_model = shared["models"].get(self.model, {})
        return _merge_tables(
            shared["config"], _merge_tables(of_workload, _merge_tables(of_model, self.train_config))
        )

    @property
    def settings(self) -> TrainConfig:
        """The configuration as ccl-bench reads it; InputError if it is invalid."""
        reading = train_config_in_text(toml_text(self.config), file=f"{self.name}: train_config")
        for issue in reading.issues:
            raise InputError(issue.message, where=f"{reading.file}: {issue.path}", fix=issue.fix)
        return reading.value

    @property
    def devices(self) -> int:
        """Number of ranks, each on its own device: the product of the degrees."""
        plan = self.settings.parallelism
        return math.prod(d or 1 for d in (plan.dp_replicate, plan.dp_shard, plan.tp, plan.pp, plan.cp))

    @property
    def nodes(self) -> int:
        """Number of nodes; every device of a node is used."""
        per_node = self.resolved_machine.devices_per_node
        count, remainder = divmod(self.devices, per_node)
        if remainder or not count:
            message = f"{self.devices} ranks do not fill nodes of {per_node} devices"
            raise InputError(message, where=self.name, fix="change a parallel degree or the machine")
        return count

    def replace(self, *, train_config: Tables | None = None, **fields: Any) -> WorkloadDefinition:
        """Return the definition with other values; `train_config` is merged over the present one."""
        config = _merge_tables(self.train_config, train_config or {})
        return msgspec.structs.replace(self, train_config=config, **fields)


# TOML is decoded to the same types.
json_decoder(tuple[WorkloadDefinition, Machine])


def torchtitan_version() -> str:
    """Return the release of torchtitan that the configurations are for."""
    return str(_shared_settings("torchtitan.toml")["version"])


def scripts_root() -> Path:
    """Return the folder with `workloads/`, `perlmutter/` and `clusters/`, of a checkout or of the wheel.

    A checkout around here comes first; UsageError if there is none.
    """
    package = Path(ccl_bench.__file__).resolve().parent
    places = [Path.cwd(), *Path.cwd().parents, package / "checkout", package.parents[1]]
    root = next((place for place in places if any((place / DEFINITIONS).glob("*.toml"))), None)
    if root is None:
        raise UsageError(
            f"there is no folder {DEFINITIONS} with definitions here",
            fix="call it in a checkout of ccl-bench, or name a .toml file",
        )
    return root


def definition_files() -> dict[str, Path]:
    """Return name -> file of the standard definitions; UsageError if there are none."""
    return {path.stem: path for path in sorted((scripts_root() / DEFINITIONS).glob("*.toml"))}


def definition_named(name: str) -> WorkloadDefinition:
    """Return a definition by its file, or one of the standard ones by its name."""
    if Path(name).suffix == ".toml":
        return read_definition(Path(name))
    files = definition_files()
    if name not in files:
        hint = did_you_mean(name, files) or f"known: {', '.join(files)}"
        raise UsageError(f"there is no workload {name!r}", fix=hint)
    return read_definition(files[name])


def read_definition(path: Path) -> WorkloadDefinition:
    """Return the definition in a TOML file; InputError names the mistake and its place."""
    try:
        definition = msgspec.toml.decode(path.read_bytes(), type=WorkloadDefinition)
    except OSError as error:
        fix = "check the path"
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), fix=fix) from error
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        fix = "correct it; the definitions in workloads/ are examples"
        raise InputError(str(error), where=str(path), fix=fix) from error
    return definition if definition.name else definition.replace(name=path.stem)


def _merge_tables(below: Tables, above: Tables) -> Tables:
    """Return both tables merged, with the values of `above` over those of `below`."""
    return {section: below.get(section, {}) | above.get(section, {}) for section in [*below, *above]}


@cache
def _shared_settings(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))


def workload_card(definition: WorkloadDefinition) -> str:
    """Return the card as YAML in the template's layout."""
    settings, machine, devices = definition.settings, definition.resolved_machine, definition.devices
    batch, tokens = settings.global_batch_size(devices), settings.training.seq_len
    network, unit = "workload.hardware.network_topo", "workload.hardware.xpu_spec"
    values = {
        "version": 1,
        "description": f"{definition.description} A step is {batch} sequences of {tokens} tokens.",
        "hf_url": f"https://huggingface.co/{definition.model}",
        **configured_card_values(settings, devices),
        **_model_fields(definition.model),
        f"{network}.topology": machine.topology,
        f"{network}.bandwidth_gbps": [machine.scale_out_gbps, machine.scale_up_gbps],
        f"{unit}.type": "GPU",
        f"{unit}.model": machine.device,
        f"{unit}.total_count": devices,
        f"{unit}.count_per_node": machine.devices_per_node,
        f"{unit}.num_nodes": definition.nodes,
        f"{unit}.memory_gb": machine.memory_gb,
        "Model-executor.framework.name": "torchtitan",
        "Model-executor.framework.version": torchtitan_version(),
        "Model-executor.communication_library.name": "NCCL",
        "metric_source.traces": ["json"],
    }
    nested: dict[str, Any] = {}
    for path, value in values.items():
        *outer, last = path.split(".")
        inner = nested
        for key in outer:
            inner = inner.setdefault(key, {})
        inner[last] = value
    return card_text(card_in_mapping(nested).value)


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


SCRIPT = "run.sh"


def folder_files(definition: WorkloadDefinition) -> dict[str, str]:
    """Return name -> content of every file in the folder."""
    header = f"# The settings of torchtitan {torchtitan_version()} for this workload.\n\n"
    return {
        SCRIPT: _render("run.sh", definition),
        "run.sbatch": _render("run.sbatch", definition),
        "train_config.toml": header + toml_text(definition.config),
        "workload_card.yaml": workload_card(definition),
        "pyproject.toml": _render("pyproject.toml", definition),
    }


def write_folder(definition: WorkloadDefinition, folder: Path, *, force: bool = False) -> list[Path]:
    """Write the files and return their paths; overwrite one that differs only with `force`."""
    files = {folder / name: text for name, text in folder_files(definition).items()}
    conflicts = [
        path.name for path, text in files.items() if path.exists() and path.read_text("utf-8") != text
    ]
    if conflicts and not force:
        message = f"already holds other files of these names: {', '.join(conflicts)}"
        raise UsageError(message, where=str(folder), fix="choose another folder, or give --force")
    folder.mkdir(parents=True, exist_ok=True)
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    (folder / SCRIPT).chmod(0o755)
    return list(files)


def _render(name: str, definition: WorkloadDefinition) -> str:
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
