"""The rule `slow_optimizer`: the kernels of the optimizer take long."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.diagnosis import Silent, diagnosis

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.result.diagnosis import Opportunity


@diagnosis(kind="device")
def slow_optimizer(gains: Gains) -> Iterator[Opportunity]:
    """The kernels of the optimizer take long.

    How it is seen:
    The run is replayed with kernels of Adam that take half their time.

    Why it costs:
    An optimizer that is not fused reads and writes every parameter several times.

    What to do:
    AdamW(fused=True), or torch.compile around the step of the optimizer.

    When it is no problem:
    If its kernels overlap with others: then the replay gains nothing.

    Reference:
    PyTorch documentation, torch.optim: foreach and fused implementations
    """
    kernels = gains.replays.matches("kernel", "adam")
    if not kernels.any():
        raise Silent("no kernel is named after Adam")
    yield from gains.sure(
        gains.replays.scaled(kernels, 0.5),
        title="The optimizer takes long",
        remedy="AdamW(fused=True)",
        change="its kernels take half their time",
        worth=0.05,
    )
