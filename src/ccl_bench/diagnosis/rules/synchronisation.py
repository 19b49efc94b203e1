"""The rule `synchronisation`: calls that make the host wait for the device."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import pl
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.host_places import OUTSIDE, ranges_of_rows
from ccl_bench.whatif.run_graph import TAIL, VALUES

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gains
    from ccl_bench.diagnosis.hosts import Hosts
    from ccl_bench.result.diagnosis import Opportunity

_LONG_AGO = -1e18
"""Time after which what was waited for does not hold anything up, ns."""

_BLOCKS = "Memcpy"

_WORTH = 0.02
"""Share of the step that it must gain: each step has calls that cost a launch latency."""

_WORTH_OF_ONE = 0.05
"""The same for one call per step, which most programs have at its end."""


@diagnosis(kind="host")
def synchronisation(gains: Gains, hosts: Hosts) -> Iterator[Opportunity]:
    """Calls in the step make the host wait for the device, so that the device runs dry afterwards.

    How it is seen:
    The run is replayed with hosts that do not wait in cudaStreamSynchronize,
    cudaDeviceSynchronize, cudaEventSynchronize and in copies that block. Its next work starts earlier. Late
    ranks, data loading, garbage collection, compilation and pauses take no time here: they have their own
    rules.

    Why it costs:
    The host cannot launch work while it waits, and afterwards the queue of the device is
    empty: each call costs at least a launch latency, and often all of the next work of the host.

    What to do:
    Find the code that reads values on the host: tensor.item(), .cpu(), .tolist(), nonzero,
    boolean indexing, torch.isnan checks, print of a loss. torch.cuda.set_sync_debug_mode("warn") names each
    line. Keep numbers on the device and read them every so many steps (torchtitan metrics.log_freq,
    Megatron --log-interval, --check-for-nan-in-loss-and-grad off), copy with pin_memory and
    non_blocking=True, clip gradients with foreach and without error_if_nonfinite.

    When it is no problem:
    One call at the end of a step costs little if the host is far ahead. A program that needs the value to
    decide what to do next must wait.

    Reference:
    PyTorch performance tuning guide, "Avoid unnecessary CPU-GPU synchronization"
    """
    waits = gains.where(
        pl.col("at_end")
        & pl.col("awaited").is_not_null()
        & ((pl.col("kind") == "wait") | pl.col("name").cast(pl.String).str.contains(_BLOCKS))
        & pl.col("step").is_not_null()
    )
    if not waits.any():
        raise Silent("no call in a step waits for the device")
    base = hosts.steady
    variant = base.copy()
    variant[waits.nonzero()[0] * VALUES + TAIL] = _LONG_AGO
    others, whole = gains.of(base, variant)
    gain = whole.beyond(others.by_step)
    calls = gains.operations.filter(pl.Series(waits))
    per_step = len(calls) / max(1, calls.select("trace", "step").n_unique())
    if not gain.is_sure or gain.share < (_WORTH if per_step > 1 else _WORTH_OF_ONE):
        return
    times = "once" if round(per_step) == 1 else f"{per_step:.0f} times"
    name = calls["name"].cast(pl.String).mode().sort()[0]
    # One trace shows where in the program the calls are.
    rows = calls.filter(pl.col("trace") == pl.col("trace").first())["row"]
    ranges = ranges_of_rows(gains.graph, calls["trace"][0])
    places = [place for row in rows if (place := ranges.get(row, OUTSIDE)) != OUTSIDE]
    where = f", most in {pl.Series(places).mode().sort()[0]}" if places else ""
    yield gains.opportunity(
        gain,
        variant,
        title=f"Hosts wait for the device {times} a step in {name}{where}",
        remedy="do not read values of the device in the step: item(), cpu(), nonzero, printing",
        change="hosts do not wait there",
    )
