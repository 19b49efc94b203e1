"""The physical model of a training step: compute, host, collectives by placement, pipeline, optimizer.

Groups are placed tensor-parallel ranks first, then data-parallel ones, then pipeline stages, as Megatron-LM
and torchtitan place them. What a group sends between nodes shares the node's adapters with the other groups
there.
"""

from __future__ import annotations

import pkgutil
import tomllib
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from ccl_bench.base.lazy_imports import np

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import TypeAlias

    from numpy.typing import NDArray

    Floats: TypeAlias = NDArray[np.float64]
    Columns: TypeAlias = Mapping[str, Floats]


@dataclass(frozen=True, slots=True)
class Constant:
    """One constant of the model, with what is expected before any measurement."""

    name: str
    median: float
    spread: float
    """Standard deviation of the natural logarithm."""
    of: str | None
    """Figure of the device that the constant is a fraction of."""
    group: str
    """What a step is bound by where the constant matters."""


@cache
def model_data() -> dict[str, Any]:
    """Return the data file of the model: constants, frameworks, and what stands for an unknown device."""
    raw = pkgutil.get_data(__package__, "step_model.toml")
    if raw is None:
        raise FileNotFoundError(f"step_model.toml is missing from {__package__}")
    return tomllib.loads(raw.decode())


@cache
def constants() -> tuple[Constant, ...]:
    """Return the constants in the order of the vector that the model takes."""
    return tuple(
        Constant(name, row["median"], row["spread"], row.get("of"), row["group"])
        for name, row in model_data()["constants"].items()
    )


HOST_SHARPNESS = 4.0
"""Exponent of the smooth maximum of host and device of a layer: at equal times the layer takes 19 % more.

The device waits for the host at the start of a layer and runs behind it later, so that neither hides whole.
"""

_GRADIENT_BYTES = 4
"""Frameworks reduce gradients in fp32."""

_WEIGHT_BYTES = 2
"""Weights and activations are bf16 or fp16."""


def microbatches(columns: Columns) -> tuple[Floats, Floats]:
    """Return the microbatches of a step and the sequences of one, by configuration."""
    single = (columns["accumulates"] == 0) & (columns["pp"] == 1)
    local = columns["global_batch"] / columns["dp"]
    size = np.where(single, local, columns["micro_batch"])
    return local / size, size


def step_s(logarithms: Floats, columns: Columns) -> Floats:
    """Return the seconds of a step of each configuration; `logarithms` are those of the constants."""
    value = dict(zip((each.name for each in constants()), np.exp(logarithms), strict=True))
    tp, dp, pp, on_node = (columns[name] for name in ("tp", "dp", "pp", "gpus_per_node"))
    count, batch = microbatches(columns)
    sequence, hidden, recompute = columns["seq_len"], columns["hidden"], columns["recompute"]
    layers = columns["layers"] / pp
    tokens = batch * sequence
    again = 1 + recompute / 3
    rate = value["compute"] * columns["peak_flops"]
    bandwidth = value["memory"] * columns["memory_bandwidth"]
    inside = value["inside_bandwidth"] * columns["link_per_direction"]
    outside = value["node_bandwidth"]

    # Six operations for each weight and token, twelve s h for the scores of attention, forward and backward.
    flops = 6 * tokens * (columns["layer_parameters"] + sequence * hidden) * again / tp
    # A layer keeps 34 s b h + 5 a s^2 b bytes (arXiv:2205.05198); each is written and read, forward, and
    # twice backward. Tensor parallelism leaves norms and dropout whole, unless sequences are sharded: between
    # both.
    activations = 34 * tokens * hidden / np.sqrt(tp) + 5 * columns["heads"] * sequence * tokens / tp
    boundary = _WEIGHT_BYTES * tokens * hidden
    reductions = 4 + 2 * recompute
    reduction = value["latency_s"] * np.log2(tp) + 2 * (tp - 1) / tp * boundary / np.where(
        tp <= on_node, inside, outside * value["tensor_parallel_outside"]
    )
    device = flops / rate + 6 * activations * again / bandwidth + reductions * reduction
    host = value["host_layer_s"] * again + value["host_tensor_parallel_s"] * (tp > 1)
    layer = (device**HOST_SHARPNESS + host**HOST_SHARPNESS) ** (1 / HOST_SHARPNESS)
    head = 6 * tokens * hidden * columns["vocabulary"] / tp / rate
    hop = np.where(tp * dp < on_node, inside, outside / on_node)
    # Activations forward and their gradients backward; sends and receives share no direction of a link.
    messages = np.where(pp > 1, 2 * boundary / hop, 0)
    slot = layers * layer + head + messages + value["slot_s"]

    parameters = columns["layer_parameters"] * layers / tp + hidden * columns["vocabulary"] / tp
    # All groups of a node reduce at the same time, and share what leaves it.
    link = np.where(tp * dp <= on_node, inside, outside / np.minimum(tp, on_node))
    ring = (dp - 1) / dp * parameters / link
    sharded = columns["sharded"]
    # FSDP gathers weights forward and backward, and scatters gradients, for each microbatch. In a pipeline
    # the backward pass finds the weights of its forward pass, and gradients are scattered once.
    scattered = np.where(
        pp > 1, count * _WEIGHT_BYTES + _GRADIENT_BYTES, count * (2 * _WEIGHT_BYTES + _GRADIENT_BYTES)
    )
    traffic = np.where(sharded > 0, scattered, 2 * _GRADIENT_BYTES)
    optimizer = value["optimizer"] * parameters / np.where(sharded > 0, dp, 1) / columns["memory_bandwidth"]
    seconds: Floats = (count + pp - 1) * slot + ring * traffic + optimizer + value["step_s"]
    return seconds
