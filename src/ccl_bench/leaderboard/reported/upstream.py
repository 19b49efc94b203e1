"""The published rows of CCL-Bench of Cornell, `benchmark_data.json`: facts of runs, and its numbers."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from ccl_bench.leaderboard.reported.observations import MISTAKES, SourceRows, known_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

MARK = "metric_info"
"""Key that only this file has."""


def read_upstream(document: Mapping[str, Any]) -> SourceRows:
    """Return the observations of a parsed file."""
    source = known_source("ccl-bench-2026")
    observations = SourceRows(source)
    for number, row in enumerate(document["rows"], start=1):
        where = f"row {number}"
        try:
            facts = row["metadata"]
            where = f"row {number}, {str(facts['workload_name'])[:80]}"
            is_training = facts["phase"] == "training"
            count, per_node = _whole(facts["total_count"]), _whole(facts["count_per_node"])
            library, model, framework = facts["comm_library"], facts["model_family"], facts["framework"]
            fields = {
                "model.phase": "training" if is_training else "inference",
                "model.model_family": source.models.get(str(model).lower(), model),
                "model.precision": facts["precision"],
                "data.global_batch_size": _whole(facts["batch_size"]),
                "data.seq_len": _whole(facts["seq_len"]),
                # Some rows of trainings have the lengths of an inference, too.
                "data.input_len": None if is_training else _whole(facts["input_len"]),
                "data.output_len": None if is_training else _whole(facts["output_len"]),
                "data.dataset": facts["dataset"],
                "hardware.device.model": source.devices.get(facts["hardware_model"], facts["hardware_model"]),
                "hardware.device.device_count": count,
                "hardware.device.node_count": -(-count // per_node) if count and per_node else None,
                "framework.name": source.frameworks.get(framework, framework),
                "communication_library.name": source.libraries.get(str(library).lower(), library),
                "communication_library.version": facts["comm_library_ver"],
                **{
                    f"parallelism.{axis}": _whole(facts[axis])
                    for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep")
                },
            }
            numbers = {
                _STEP if is_training and name == "avg_step_time" else name: float(value)
                for name, value in row["metrics"].items()
                if name in source.numbers and isinstance(value, int | float)
            }
            observations.add(
                where, str(facts["workload_name"]), fields, numbers, variant=", ".join(_variant(facts))
            )
        except MISTAKES as error:
            observations.leave_out(where, error)
    return observations


_STEP = "avg_step_time of training"
"""A step of a training; of an inference, the same name stands for an iteration of the engine."""
_PLAIN = {"", "plain_pytorch"}
_IN_BRACKETS = re.compile(r"\[([\w.-]+)\]")


def _variant(facts: Mapping[str, Any]) -> Iterator[str]:
    """Yield what else distinguishes rows: compiler, exchange of tokens, and what only a row's name says."""
    name, compiler = str(facts["workload_name"]), str(facts["compiler"])
    if compiler not in _PLAIN:
        yield compiler
    if "noCUgraph" in name:
        yield "no CUDA graphs"
    if exchange := (facts["comm_env"] or {}).get("VLLM_ALL2ALL_BACKEND"):
        yield f"all-to-all {exchange}"
    if in_name := _IN_BRACKETS.search(name):
        yield in_name[1]


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
