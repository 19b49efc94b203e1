"""The rule `data_loading`: hosts wait for the data loader."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.catalog.host_stalls import DATA_LOADING
from ccl_bench.diagnosis import diagnosis
from ccl_bench.diagnosis.stalls import without_stalls

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.diagnosis.hosts import Hosts
    from ccl_bench.result.diagnosis import Opportunity


@diagnosis(kind="host")
def data_loading(gains: Gains, hosts: Hosts) -> Iterator[Opportunity]:
    """Hosts wait for the next batch in the step.

    How it is seen:
    The run is replayed without the time that hosts spend in ranges of the data loader, such as
    enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__, load_batch or data_load.

    Why it costs:
    While the host waits for data it launches nothing; the device runs dry, and other ranks wait.

    What to do:
    More workers and prefetching (DataLoader(num_workers=8, prefetch_factor=4, persistent_workers=True,
    pin_memory=True)), data tokenised beforehand, a faster file system, copies to the device with
    non_blocking=True. Megatron: --num-workers, and an indexed dataset on a local disk. torchtitan:
    training.dataloader options. Keep cores free for the workers.

    When it is no problem:
    If the device has work queued meanwhile, the replay gains nothing and the rule
    reports nothing.

    Reference:
    PyTorch performance tuning guide, "Enable asynchronous data loading"
    """
    yield from without_stalls(
        gains,
        hosts.stalls,
        kinds=[DATA_LOADING],
        what="Hosts wait for data",
        remedy="load data ahead: more workers, prefetching, pinned memory",
    )
