"""The definition of a workload: a TOML file over the settings that all workloads share."""

from __future__ import annotations

import math
import tomllib
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.errors import InputError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.collect.describe.torchtitan import toml_text
from ccl_bench.side_files import train_config_in_text

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.side_files import TrainConfig

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


class Definition(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One workload."""

    name: str = ""
    """Name of the folder; by default that of the file."""
    description: str
    """What distinguishes it, in one sentence."""
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
        """The machine itself, also where `machine` is its name."""
        if isinstance(self.machine, Machine):
            return self.machine
        known = _shared_settings("machines.toml")["machines"]
        if self.machine not in known:
            hint = did_you_mean(self.machine, known) or f"known: {', '.join(known)}"
            raise InputError(f"there is no machine {self.machine!r}", where=self.name, fix=hint)
        return msgspec.convert(known[self.machine], Machine)

    @property
    def config(self) -> Tables:
        """The complete configuration of torchtitan."""
        shared = _shared_settings("torchtitan.toml")
        own: Tables = {
            "job": {"description": self.description},
            "model": {"hf_assets_path": f"assets/{self.model}"},
        }
        of_model = shared["models"].get(self.model, {})
        return _merge_tables(shared["config"], _merge_tables(own, _merge_tables(of_model, self.train_config)))

    @property
    def settings(self) -> TrainConfig:
        """The configuration as ccl-bench reads it; InputError if it is invalid."""
        reading = train_config_in_text(toml_text(self.config), file=f"{self.name}: train_config")
        for issue in reading.issues:
            raise InputError(issue.message, where=f"{reading.file}: {issue.path}", fix=issue.fix)
        return reading.value

    @property
    def devices(self) -> int:
        """Ranks, each on a device of its own: the product of the degrees."""
        plan = self.settings.parallelism
        return math.prod(d or 1 for d in (plan.dp_replicate, plan.dp_shard, plan.tp, plan.pp, plan.cp))

    @property
    def nodes(self) -> int:
        """Nodes; every device of a node is used."""
        per_node = self.resolved_machine.devices_per_node
        count, rest = divmod(self.devices, per_node)
        if rest or not count:
            message = f"{self.devices} ranks do not fill nodes of {per_node} devices"
            raise InputError(message, where=self.name, fix="change a parallel degree or the machine")
        return count

    def replace(self, *, train_config: Tables | None = None, **fields: Any) -> Definition:
        """Return the definition with other values; `train_config` is merged over the present one."""
        config = _merge_tables(self.train_config, train_config or {})
        return msgspec.structs.replace(self, train_config=config, **fields)


# Has the types known before there are threads: msgspec 0.22 crashes where two are the first to need one.
msgspec.json.Decoder(tuple[Definition, Machine])


def torchtitan_version() -> str:
    """Return the release of torchtitan that the configurations are for."""
    return str(_shared_settings("torchtitan.toml")["version"])


def read_definition(path: Path) -> Definition:
    """Return the definition in a TOML file; InputError names the mistake and its place."""
    try:
        found = msgspec.toml.decode(path.read_bytes(), type=Definition)
    except OSError as error:
        fix = "check the path"
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), fix=fix) from error
    except (msgspec.DecodeError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        fix = "correct it; the definitions in workloads/ are examples"
        raise InputError(str(error), where=str(path), fix=fix) from error
    return found if found.name else found.replace(name=path.stem)


def _merge_tables(below: Tables, above: Tables) -> Tables:
    """Return both tables merged, with the values of `above` over those of `below`."""
    return {section: below.get(section, {}) | above.get(section, {}) for section in [*below, *above]}


@cache
def _shared_settings(name: str) -> dict[str, Any]:
    return tomllib.loads(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"))
