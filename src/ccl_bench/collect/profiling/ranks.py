"""The rank of a process, and a barrier of all ranks without an open collective.

Under JAX a rank is here the number of a process, although each of its devices is a rank of the run.

Exporting a trace takes seconds to minutes, and hundreds of ranks on one file system take longer. The
watchdog of the backend would kill a rank that waits inside a collective (after 10 minutes with NCCL).
Waiting on the key-value store of torch.distributed has no watchdog, needs no device and has its own limit.
"""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection

_RANK_VARIABLES = (
    ("RANK", "WORLD_SIZE"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
    ("PMI_RANK", "PMI_SIZE"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS"),
)
"""Variables of rank and number of ranks. A batch script has SLURM_PROCID too, but no step."""

_LOCAL_RANK_VARIABLES = ("LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


_MOST_RANKS = 1_000_000


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """Rank of a process among the others."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Rank among the processes of its node."""

    @property
    def is_first(self) -> bool:
        """Whether this process writes the files that exist once a run."""
        return self.rank == 0


def process_rank() -> ProcessRank:
    """Return the rank of this process: from torch or JAX, else from its launcher's variables."""
    distributed = initialised_distributed()
    local = _number_from_environment(*_LOCAL_RANK_VARIABLES)
    if distributed is not None:
        return ProcessRank(distributed.get_rank(), distributed.get_world_size(), local)
    if (jax := _distributed_jax()) is not None:
        return ProcessRank(jax.process_index(), jax.process_count(), local)
    for rank, size in _RANK_VARIABLES:
        if os.environ.get(rank, "").isdigit() and os.environ.get(size, "").isdigit():
            return ProcessRank(_number_from_environment(rank), _number_from_environment(size), local)
    return ProcessRank(local_rank=local)


def process_identity() -> dict[str, str | int]:
    """Return the identity of this process in a recording of the whole node."""
    return {
        "host": socket.gethostname(),
        "node": _number_from_environment("SLURM_NODEID"),
        "pid": os.getpid(),
    }


def initialised_distributed() -> Any:
    """Return torch.distributed if a process group is initialised, else None; import nothing."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed


def _distributed_jax() -> Any:
    """Return jax if its processes know each other, else None; import nothing."""
    jax = sys.modules.get("jax")
    is_initialized = getattr(getattr(jax, "distributed", None), "is_initialized", None)
    return jax if is_initialized is not None and is_initialized() else None


def _number_from_environment(*names: str) -> int:
    """Return the first of these variables that is a number, else 0."""
    return next((int(value) for name in names if (value := os.environ.get(name, "")).isdigit()), 0)


def parse_ranks(text: str) -> tuple[int, ...]:
    """Return the ranks in a text such as `0,8-11`, in order; raise UsageError for invalid text."""
    ranks: set[int] = set()
    for part in text.split(","):
        first, dash, last = (word.strip() for word in part.partition("-"))
        last = last if dash else first
        if not (first.isdecimal() and last.isdecimal() and int(first) <= int(last) < _MOST_RANKS):
            raise UsageError(f"{part.strip()!r} is not a list of ranks", fix="write them as 0,8,16 or 0-3")
        ranks.update(range(int(first), int(last) + 1))
    return tuple(sorted(ranks))


BARRIER_TIMEOUT_S = 3600.0
"""Longest time that a rank waits for the others."""


class Barrier:
    """A barrier of all ranks; alone, or without torch.distributed, it returns at once."""

    def __init__(
        self,
        process: ProcessRank,
        name: str,
        timeout_s: float = BARRIER_TIMEOUT_S,
        ranks: Collection[int] | None = None,
    ) -> None:
        """Use the store of the process group; `name` is the same on all ranks and used once.

        If only some `ranks` meet here, the others pass.
        """
        self.process = process
        members = process.world_size if ranks is None else sum(r < process.world_size for r in ranks)
        self._members = members if ranks is None or process.rank in ranks else 0
        self.timeout = timedelta(seconds=timeout_s)
        self.problem = ""
        """Why ranks no longer wait for each other, if so."""
        self._store: Any = None
        """The key-value store of the processes, if they have one."""
        if process.world_size > 1 and initialised_distributed() is not None:
            from torch.distributed import distributed_c10d

            self._store = distributed_c10d._get_default_store()
        elif process.world_size > 1 and _distributed_jax() is not None:
            from jax._src import distributed

            self._store = _JaxStore(distributed.global_state.client)
        self._name = f"ccl_bench/{name}"

    @property
    def is_connected(self) -> bool:
        """Whether ranks can reach each other."""
        return self._store is not None and not self.problem

    def wait(self, name: str) -> None:
        """Return when every rank has arrived."""
        if not self.is_connected or not self._members:
            return
        arrived, complete = f"{self._name}/{name}", f"{self._name}/{name}/complete"
        try:
            if self._store.add(arrived, 1) == self._members:
                self._store.set(complete, "1")
            self._store.wait([complete], self.timeout)
        except RuntimeError as error:
            self.problem = f"ranks no longer wait for each other: {_first_line(error)}"

    def gather(self, name: str, text: str) -> list[str]:
        """Return the texts of all ranks on the first one, an empty list on the others."""
        if not self.is_connected:
            return [text] if self.process.world_size == 1 else []
        keys = [f"{self._name}/{name}/{rank}" for rank in range(self.process.world_size)]
        try:
            self._store.set(keys[self.process.rank], text)
            if not self.process.is_first:
                return []
            self._store.wait(keys, self.timeout)
            return [self._store.get(key).decode() for key in keys]
        except RuntimeError as error:
            self.problem = f"not every rank sent its summary: {_first_line(error)}"
            return []


class _JaxStore:
    """The key-value store of JAX's coordinator, with the calls of torch's."""

    def __init__(self, client: Any) -> None:
        self._client = client

    def add(self, key: str, amount: int) -> int:
        """Return a number after adding to it."""
        return int(self._client.key_value_increment(key, amount))

    def set(self, key: str, value: str) -> None:
        """Store a text."""
        self._client.key_value_set(key, value)

    def wait(self, keys: Collection[str], timeout: timedelta) -> None:
        """Return when all keys have values."""
        for key in keys:
            self._client.blocking_key_value_get(key, int(timeout.total_seconds() * 1000))

    def get(self, key: str) -> bytes:
        """Return a stored text."""
        return str(self._client.key_value_try_get(key)).encode()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
