"""`run_metadata.json` of a run that was collected: what is missing is added, what stands there stays."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from ccl_bench.card.metadata import FILE_NAME
from ccl_bench.storage import replacing

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from ccl_bench.collect.describe.observing import Observed


def completed(target: Path, seen: Observed) -> list[str]:
    """Write what was observed into the run's metadata; return where it contradicts what stands there."""
    path, written = target / FILE_NAME, seen.metadata
    values = dict(_values(seen))
    added = {name: value for name, value in values.items() if written.get(name) is None}
    if added:
        with replacing(path) as temporary:
            temporary.write_text(json.dumps({**written, **added}, indent=2) + "\n")
            temporary.chmod(0o644)
    return [
        f"{FILE_NAME} says {name} = {written[name]}, and {value} was observed; the file was left as it is"
        for name, value in values.items()
        if name not in added and written[name] != value
    ]


def _values(seen: Observed) -> Iterator[tuple[str, int]]:
    """Yield what a trace does not hold or is worth having in one place.

    Sizes of a configuration that the command line changed stand here, because the file is not what ran.
    """
    if seen.world_size:
        yield "world_size", seen.world_size
    configuration = seen.configuration
    if configuration and seen.world_size:
        batch = configuration.settings.global_batch_size(seen.world_size)
        if batch:
            yield "global_batch_size", batch
        if configuration.settings.training.seq_len:
            yield "seq_len", configuration.settings.training.seq_len
    if seen.device_memory_bytes:
        yield "gpu_hbm_bytes", seen.device_memory_bytes
