"""The values that a run shows for its card: its side files, the record of its environment, and its traces."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Unpack

from ccl_bench import card as cards
from ccl_bench.analysis.flops import precision_of_products
from ccl_bench.base.errors import NotMeasurable, UsageError
from ccl_bench.card.comparison_fields import field_rules
from ccl_bench.catalog import devices as device_catalog
from ccl_bench.catalog.collectives import described_dimension
from ccl_bench.collect.describe.fill_card import observed_card_values, one_rank_degrees
from ccl_bench.collect.describe.observations import observe
from ccl_bench.collect.describe.torchtitan import effective_config
from ccl_bench.evaluate.load import load_tables
from ccl_bench.run import ENVIRONMENT
from ccl_bench.run.documents import CARD
from ccl_bench.side_files.metadata import FILE_NAME as METADATA
from ccl_bench.storage.files import read_object

if TYPE_CHECKING:
    import polars as pl

    from ccl_bench.evaluate.compute import ReadOptions
    from ccl_bench.run import Run

_DEVICE = "workload.hardware.xpu_spec"
_PRECISION = "workload.model.precision"
_LIBRARY = "Model-executor.communication_library"
_PLAN = "Model-executor.model_plan_parallelization"
_AXES = ("dp_replicate", "dp_shard", "tp", "pp", "cp")


def shown_card_values(run: Run, **reading: Unpack[ReadOptions]) -> dict[str, Any]:
    """Return path in the card → value that the run shows; only the tables behind them are read."""
    values = _in_traces(run, **reading) if run.traces else {}
    return {**values, **_in_side_files(run), **_observed(run)}


def _observed(run: Run) -> dict[str, Any]:
    folder = run.path if run.path.is_dir() else run.path.parent
    environment = read_object(folder / ENVIRONMENT)
    config = run.documents.origins.get("config")
    configuration = effective_config(environment.get("command", ()), folder, [config] if config else [])
    return observed_card_values(observe(folder, environment, read_object(folder / METADATA), configuration))


def _in_side_files(run: Run) -> dict[str, Any]:
    """Return the facts of a run that do not come from its card."""
    values: dict[str, Any] = {}
    for rule in field_rules().values():
        fact = getattr(run.facts, rule.fact) if rule.fact else None
        if fact is None or fact.source == CARD or fact.source.startswith("catalog"):
            continue
        with contextlib.suppress(UsageError):  # some facts have no field in a card
            values[cards.field_path(rule.name)] = fact.value
            if rule.fact == "global_batch_size":
                values["workload.data.batch_size_scope"] = "global"
    if run.facts.world_size and run.facts.world_size.value == 1:
        values |= one_rank_degrees()
    return values


def _in_traces(run: Run, **reading: Unpack[ReadOptions]) -> dict[str, Any]:
    loaded = load_tables(run, ("devices", "groups", "product_types"), **reading)
    devices, groups, products = (loaded.inputs.get(name) for name in ("devices", "groups", "product_types"))
    values: dict[str, Any] = {}
    versions = {trace.attributes.get("nccl_version", "") for trace in loaded.traces} - {""}
    if len(versions) == 1:
        values |= {f"{_LIBRARY}.name": "NCCL", f"{_LIBRARY}.version": versions.pop()}
    name = ""
    if devices is not None and not devices.is_empty():
        names = devices["name"].unique().drop_nulls().to_list()
        name = names[0] if len(names) == 1 else ""
        values |= _of_device(devices, name) if name else {}
    if products is not None:
        with contextlib.suppress(NotMeasurable):
            precision, _ = precision_of_products(products)
            if precision != "fp32" or not name or not device_catalog.device(name).has_faster_tf32:
                values[_PRECISION] = precision
    world_size = run.facts.world_size.value if run.facts.world_size else None
    if groups is not None and world_size:
        values |= _degrees(groups, world_size)
    return values


def _of_device(devices: pl.DataFrame, name: str) -> dict[str, Any]:
    memory = devices["memory_bytes"].max()
    per_process = devices.group_by("trace").len()["len"].max()
    return {
        f"{_DEVICE}.type": "TPU" if "tpu" in name.lower() else "GPU",
        f"{_DEVICE}.model": name,
        f"{_DEVICE}.memory_gb": round(memory / 1e9, 1) if isinstance(memory, int) else None,
        # A process that sees one device may be shown one of several.
        f"{_DEVICE}.count_per_node": per_process
        if isinstance(per_process, int) and per_process > 1
        else None,
    }


def _degrees(groups: pl.DataFrame, world_size: int) -> dict[str, int]:
    """Return the degrees that descriptions of groups name, the others 1, if they multiply to all ranks."""
    sizes: dict[str, set[int]] = {}
    for description, size in groups.select("description", "size").iter_rows():
        axis = described_dimension(description or "")
        if axis and size:
            sizes.setdefault(axis, set()).add(size)
    degrees = {axis: max(each) for axis, each in sizes.items() if axis in {*_AXES, "dp"} and len(each) == 1}
    others = [axis for axis in _AXES if axis not in degrees and not ("dp" in degrees and axis[:2] == "dp")]
    product = 1
    for degree in degrees.values():
        product *= degree
    if product != world_size:
        return {}
    return {f"{_PLAN}.{axis}": degree for axis, degree in {**degrees, **dict.fromkeys(others, 1)}.items()}
