"""Register `rgloo`: gloo whose calls also appear as `record_param_comms`, as NCCL's do.

Plain gloo passes the profiler a collective's name and tensor shapes only. NCCL also passes group, ranks,
dtype,
element counts and sequence number. `recording_gloo.cpp` adds those and leaves the communication to gloo.
Needs a C++ compiler and ninja. Run this file once to build before several ranks need it at the same time.
"""

from itertools import pairwise
from pathlib import Path
from types import ModuleType

import torch.distributed as dist
from torch.utils.cpp_extension import load


def build() -> ModuleType:
    """Compile the backend, or load it where it is compiled already."""
    return load("recording_gloo", [str(Path(__file__).with_suffix(".cpp"))])


def register() -> None:
    """Make `rgloo` a backend name that `init_process_group` knows."""
    extension = build()

    def create(options: dist.distributed_c10d._DistributedBackendOptions, _: object) -> dist.Backend:
        ranks = options.global_ranks_in_group or list(range(options.group_size))
        strides = {right - left for left, right in pairwise(ranks)} or {1}
        if len(strides) > 1:
            raise ValueError(f"ranks {ranks} are not evenly spaced: no stride describes their group")
        gloo = dist.ProcessGroupGloo(
            options.store, options.group_rank, options.group_size, timeout=options.timeout
        )
        return extension.wrap(gloo, ranks[0], strides.pop())

    dist.Backend.register_backend("rgloo", create, extended_api=True, devices="cpu")


if __name__ == "__main__":
    build()
