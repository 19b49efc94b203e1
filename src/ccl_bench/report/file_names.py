"""What the file of a report is called."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from datetime import datetime

    from ccl_bench.result.inspection import Inspection

_UNSAFE = re.compile(r"[^A-Za-z0-9.-]+")


def text_report_name(found: Inspection, made_at: datetime) -> str:
    """Return `<timestamp>_<model>_dpXxY_tpZ_gpuN.txt`; X replicates weights, Y shards them.

    A pipeline adds `_ppP` after the tensor-parallel degree. Where nothing states a degree of
    parallelism the degrees are left out.
    """
    name = found.model or found.run.rstrip("/").rpartition("/")[2] or "run"
    parts = [f"{made_at:%Y%m%d_%H%M%S}", _UNSAFE.sub("_", name).strip("_.") or "run"]
    gpus = found.world_size or len(found.ranks)
    stated = {axis: _degree(found, axis) for axis in ("dp_replicate", "dp_shard", "tp", "pp", "cp")}
    if any(stated.values()):
        shards = stated["dp_shard"] or _rest(stated, gpus)
        parts += [f"dp{stated['dp_replicate'] or 1}x{shards}", f"tp{stated['tp'] or 1}"]
        parts += [f"pp{stated['pp']}"] if (stated["pp"] or 1) > 1 else []
    return "_".join([*parts, f"gpu{gpus}"]) + ".txt"


def _degree(found: Inspection, axis: str) -> int | None:
    fact = found.facts.get(axis)
    return fact.value if fact and isinstance(fact.value, int) else None


def _rest(stated: dict[str, int | None], gpus: int) -> int:
    """Return the ranks that the other degrees leave to sharding."""
    taken = 1
    for degree in stated.values():
        taken *= degree or 1
    return max(gpus // taken, 1)
