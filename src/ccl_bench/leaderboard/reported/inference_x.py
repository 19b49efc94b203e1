"""Result files of InferenceX, `agg_*.json`: a point of a serving sweep, or several; times in seconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.reported.observations import MISTAKES
from ccl_bench.trace.formats.serving.inferencex import devices_of, numbers_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from ccl_bench.leaderboard.reported.observations import SourceRows

MARK = "tput_per_gpu"
"""Key that only these files have."""

_OUTPUT = "output_tput_per_gpu"
_TRUE = {True, "true", "True", "1"}


def add_point(observations: SourceRows, where: str, name: str, point: Mapping[str, Any]) -> None:
    """Add one point; a missing or wrong value makes it a mistake."""
    source = observations.source
    try:
        framework = point["framework"]
        is_split = point.get("disagg") in _TRUE
        every = numbers_of(point, where)
        numbers = {key: every[key] for key in source.numbers if key in every}
        try:
            devices = devices_of(point, every, where)
        except InputError:  # its numbers per device are its own: only those of decode alone are lost
            devices = {}
        if is_split and _OUTPUT in numbers:
            # Its script divides the output of disaggregated servers by the devices of decode alone.
            if devices:
                numbers[_OUTPUT] *= (devices["decode_devices"] or sum(devices.values())) / sum(
                    devices.values()
                )
            else:
                del numbers[_OUTPUT]
        if not all(0 < value < math.inf for value in numbers.values()):
            raise ValueError("a number is not above 0")
        observations.add(
            where,
            name,
            {
                "model.phase": "inference",
                "model.model_family": point["model"],
                "model.precision": point.get("precision"),
                "data.input_len": int(point["isl"]),
                "data.output_len": int(point["osl"]),
                "data.serving.max_concurrency": int(point["conc"]),
                "hardware.device.model": point["hw"],
                "hardware.device.device_count": int(sum(devices.values())) or None,
                "framework.name": source.frameworks.get(str(framework).lower(), framework),
                "framework.version": str(point.get("image") or "").rpartition(":")[2] or None,
                **(
                    {}
                    if is_split
                    else {"parallelism.tp": int(point["tp"]), "parallelism.ep": int(point.get("ep") or 1)}
                ),
            },
            numbers,
            variant=", ".join(_variant(point, is_split=is_split)),
        )
    except InputError as error:
        observations.leave_out(where, ValueError(error.message))
    except MISTAKES as error:
        observations.leave_out(where, error)


def _variant(point: Mapping[str, Any], *, is_split: bool) -> Iterator[str]:
    if is_split:
        yield "disaggregated"
        for side in ("prefill", "decode"):
            words = [
                f"{name} {point[f'{side}_{name}']}" for name in ("tp", "ep") if point.get(f"{side}_{name}")
            ]
            workers = point.get(f"{side}_num_workers")
            yield " ".join([side, *([f"{workers} ×"] if workers else []), *words])
    if point.get("dp_attention") in _TRUE:
        yield "attention dp"
    speculation = str(point.get("spec_decoding") or "none")
    if speculation != "none":
        yield f"speculative {speculation}"
    if point.get("is_multinode") in _TRUE:
        yield "several nodes"
