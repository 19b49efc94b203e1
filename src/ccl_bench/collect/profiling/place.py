"""Which rank a process is: as torch.distributed knows, else as its launcher told it."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from typing import Any

_RANKS = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables that give rank and number of ranks. A batch script has Slurm's first one too, and no step."""

_LOCAL_RANK = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a process stands among the others."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Rank among the processes of its node."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes what there is once for all."""
        return self.rank == 0


def here() -> Place:
    """Return where this process stands."""
    distributed = initialised()
    local = _number(*_LOCAL_RANK)
    if distributed is not None:
        return Place(distributed.get_rank(), distributed.get_world_size(), local)
    for rank, size in _RANKS:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return Place(_number(rank), _number(size), local)
    return Place(local_rank=local)


def process() -> dict[str, str | int]:
    """Return what finds this process in a recording of the whole node."""
    return {"host": socket.gethostname(), "node": _number("SLURM_NODEID"), "pid": os.getpid()}


def initialised() -> Any:
    """Return torch.distributed where a process group is initialised, else None; imports nothing."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _number(*names: str) -> int:
    """Return the first variable that is a number, else 0."""
    return next((int(value) for name in names if (value := os.environ.get(name, "")).isdigit()), 0)
