"""Ranks waiting for each other while no collective is open.

Exporting a trace takes seconds to minutes, and hundreds of ranks on one file system take longer. A rank
that waits for the others inside a collective would be ended by the watchdog of its backend (10 minutes
with NCCL). Waiting on the key-value store, with which torch.distributed was initialised, is watched by
nobody, needs no device and has a limit of its own.
"""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

from ccl_bench.collect.profiling.place import initialised

if TYPE_CHECKING:
    from ccl_bench.collect.profiling.place import Place

PATIENCE_S = 3600.0
"""Longest time for which a rank waits for the others."""


class Meeting:
    """Meetings of all ranks; alone, or without torch.distributed, there is nobody to wait for."""

    def __init__(self, place: Place, name: str, patience_s: float = PATIENCE_S) -> None:
        """Take the store of the process group; `name` is the same on all ranks and used once."""
        self.place = place
        self.patience = timedelta(seconds=patience_s)
        self.problem = ""
        """Why ranks no longer wait for each other, where they do not."""
        self._store: Any = _store() if place.world_size > 1 else None
        self._name = f"ccl_bench/{name}"

    @property
    def is_together(self) -> bool:
        """Whether ranks can reach each other."""
        return self._store is not None and not self.problem

    def wait(self, name: str) -> None:
        """Return when every rank has come here."""
        if not self.is_together:
            return
        arrived, complete = f"{self._name}/{name}", f"{self._name}/{name}/complete"
        try:
            if self._store.add(arrived, 1) == self.place.world_size:
                self._store.set(complete, "1")
            self._store.wait([complete], self.patience)
        except RuntimeError as error:
            self.problem = f"ranks no longer wait for each other: {_first_line(error)}"

    def gathered(self, name: str, text: str) -> list[str]:
        """Return the texts of all ranks on the first one, and nothing on the others."""
        if not self.is_together:
            return [text] if self.place.world_size == 1 else []
        keys = [f"{self._name}/{name}/{rank}" for rank in range(self.place.world_size)]
        try:
            self._store.set(keys[self.place.rank], text)
            if not self.place.is_first:
                return []
            self._store.wait(keys, self.patience)
            return [self._store.get(key).decode() for key in keys]
        except RuntimeError as error:
            self.problem = f"not every rank told what it knows: {_first_line(error)}"
            return []


def _store() -> Any:
    """Return the store of the default process group, or None."""
    distributed = initialised()
    if distributed is None:
        return None
    from torch.distributed import distributed_c10d

    return distributed_c10d._get_default_store()


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
