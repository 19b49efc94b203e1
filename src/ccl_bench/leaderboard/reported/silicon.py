"""The table of measured serving points of AIConfigurator: one row an observation, times in milliseconds.

A point has the time to first token, the time per output token and the concurrency of the benchmark, and no
throughput; the board derives it.
"""

from __future__ import annotations

import csv
import math
import re
from typing import TYPE_CHECKING

from ccl_bench.base.text import counted
from ccl_bench.leaderboard.reported.observations import MISTAKES, SourceRows, known_source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import IO

MARK = "silicon_ttft_ms"
"""Column that only this table has."""

_MOST_COLUMNS = 1000
"""Columns of a table: that of the source has 34, and a row of many empty ones takes as much memory."""

_TIMES = ("silicon_ttft_ms", "silicon_tpot_ms")
_CONCURRENCY = re.compile(r"(?:^|; )silicon_concurrency=(\d+)(?:;|$)")
_MEASURED = re.compile(r"(?:^|; )measured=(\d{4}-\d\d-\d\d)")
_IMAGE = re.compile(r"(?:^|; )(?:image=)?[\w./#-]+:(v?\d[\w.-]*)(?:;|$)")


def read_silicon(stream: IO[str]) -> SourceRows:
    """Return the observations of a table; csv.Error if it is none."""
    observations = SourceRows(known_source("aiconfigurator"))
    source = observations.source
    table = csv.DictReader(stream, restval="")
    if len(table.fieldnames or ()) > _MOST_COLUMNS:
        raise csv.Error(f"more than {_MOST_COLUMNS:,} columns")
    for number, row in enumerate(table, start=2):
        where = f"row {number}"
        try:
            origin = row["silicon_data_source"]
            concurrency = _CONCURRENCY.search(origin)
            measured = _MEASURED.search(origin)
            image = _IMAGE.search(origin)
            model = row["model_path"]
            observations.add(
                where,
                row["id"],
                {
                    "model.phase": "inference",
                    "model.model_family": source.models.get(model.lower(), model),
                    "model.precision": row["precision"],
                    "data.input_len": int(row["isl"]),
                    "data.output_len": int(row["osl"]),
                    "data.serving.max_concurrency": int(concurrency[1]) if concurrency else None,
                    "hardware.device.model": row["system"],
                    "hardware.device.device_count": device_count(row),
                    "framework.name": source.frameworks.get(row["backend"], row["backend"]),
                    "framework.version": row["backend_version"] or (image[1] if image else None),
                    **_degrees(row),
                },
                {name: _milliseconds(row[name]) for name in _TIMES},
                variant=", ".join(_variant(row)),
                measured_at=measured[1] if measured else None,
            )
        except MISTAKES as error:
            observations.leave_out(where, error)
    return observations


def _milliseconds(text: str) -> float:
    value = float(text) / 1000
    if not 0 < value < math.inf:
        raise ValueError(f"{text} is no time")
    return value


def _count(row: Mapping[str, str], name: str) -> int:
    """Return a degree; 1 where the table leaves it empty or writes 0, as for models without experts."""
    return max(1, int(row[name] or 1))


def _degrees(row: Mapping[str, str]) -> dict[str, int]:
    """Return the degrees of parallelism of a whole server; a disaggregated one has them in its variant."""
    if row["mode"] != "agg":
        return {}
    return {
        "parallelism.tp": _count(row, "tp_size"),
        "parallelism.pp": _count(row, "pp_size"),
        "parallelism.ep": _count(row, "moe_ep_size"),
    }


def device_count(row: Mapping[str, str]) -> int | None:
    """Return the devices of a point, or None where the table does not determine them.

    A worker has tensor x pipeline x attention-data-parallel devices. Experts are spread over the same ones:
    degrees that contradict this count no devices. Disaggregated servers have prefill and decode workers;
    without their numbers the count is unknown.
    """
    if row["mode"] == "agg":
        return _of_worker(row, "")
    total = 0
    for side in ("prefill_", "decode_"):
        each = _of_worker(row, side)
        if each is None or not row[f"{side}num_workers"]:
            return None
        total += each * int(row[f"{side}num_workers"])
    return total


def _of_worker(row: Mapping[str, str], side: str) -> int | None:
    width = _count(row, f"{side}tp_size") * _count(row, f"{side}attention_dp_size")
    experts = _count(row, f"{side}moe_tp_size") * _count(row, f"{side}moe_ep_size")
    return width * _count(row, f"{side}pp_size") if experts in {1, width} else None


def _variant(row: Mapping[str, str]) -> Iterator[str]:
    """Yield what else distinguishes configurations, in words."""
    if row["mode"] == "agg":
        yield from _worker_words(row, "", "")
    else:
        for side in ("prefill", "decode"):
            workers = row[f"{side}_num_workers"]
            count = counted(int(workers), f"{side} worker") if workers else f"{side} workers"
            yield " ".join([count, *_worker_words(row, f"{side}_", f"tp {_count(row, f'{side}_tp_size')}")])
    modes = [row[name] for name in ("gemm_quant_mode", "moe_quant_mode") if row[name]]
    if len(set(modes)) > 1:
        yield f"weights {modes[0]}, experts {modes[1]}"
    elif modes and modes[0] != row["precision"]:
        yield f"weights {modes[0]}"


def _worker_words(row: Mapping[str, str], side: str, first: str) -> Iterator[str]:
    if first:
        yield first
    if (replicas := _count(row, f"{side}attention_dp_size")) > 1:
        yield f"attention dp {replicas}"
    experts_tp = _count(row, f"{side}moe_tp_size")
    if experts_tp not in {1, _count(row, f"{side}tp_size")}:
        yield f"experts tp {experts_tp}"
    if side and (experts_ep := _count(row, f"{side}moe_ep_size")) > 1:
        yield f"ep {experts_ep}"
