"""Importing this lets process groups live as long as their process.

Under the profiler torch 2.13 hangs now and then where a group of gloo is destroyed: the destructor waits,
with the interpreter's lock, for a thread that asks for that lock.
"""

from __future__ import annotations

from typing import Any

from torch.distributed import distributed_c10d

alive: list[Any] = []
make_group = distributed_c10d._new_process_group_helper


def make_lasting_group(*arguments: Any, **options: Any) -> Any:
    """Make a process group, and keep it."""
    made = make_group(*arguments, **options)
    alive.append(made)
    return made


distributed_c10d._new_process_group_helper = make_lasting_group
