"""The rule `host_pauses`: hosts launch nothing for a long time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.lazy_imports import pl
from ccl_bench.base.units import MILLISECOND_NS
from ccl_bench.diagnosis import Silent, diagnosis
from ccl_bench.diagnosis.stalls import without_intervals

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.diagnosis.gains import Gain, Gains
    from ccl_bench.diagnosis.hosts import Hosts
    from ccl_bench.result.diagnosis import Opportunity
    from ccl_bench.whatif.event_graph import Times

_WORTH = 0.05
"""Share of the step that it must gain: a few milliseconds of Python between steps are in every program."""

_MOST = 0.9
"""Share of the gain of all pauses from which some ranges explain it: gains are right to a tenth."""

_PLACES = 5
"""Number of ranges to replay one by one: those with most time."""


@diagnosis(kind="host")
def host_pauses(gains: Gains, hosts: Hosts) -> Iterator[Opportunity]:
    """Hosts stop launching for a millisecond and more, and their devices and other ranks wait for them.

    How it is seen:
    Time of a host in which it makes no call for more than 1 ms, or stays in one call, is a pause. Pauses that
    come at the same place of every step are replayed without, range by range. Pauses that come in some steps
    or on another rank each time exceed the usual time of the same operation by more than 5 % of a step, and
    are replayed with the usual time. Data loading, garbage collection, compilation and ranks that are late in
    all steps have their own rules.

    Why it costs:
    A device that has done what it was given is idle until its host goes on, and the members of its groups
    wait with it. If each rank pauses in other steps, all ranks lose the pauses of all.

    What to do:
    Look at what the diagnosis names: preprocessing, evaluation, checkpoints, logging, an optimizer on the
    host. Move it off the training thread or to steps in which all ranks do it
    (torch.distributed.checkpoint.async_save, Megatron --async-save). Pauses without a name are often Python's
    garbage collection (torchtitan training.gc_freq, Megatron --manual-gc), the allocator, or other processes
    on the same cores (srun --cpu-bind, torchrun --numa-binding). Mark the code with
    torch.profiler.record_function, and record again.

    When it is no problem:
    If the device has work queued meanwhile, the replay gains nothing and the rule reports nothing. An
    evaluation that is recorded by chance belongs to no step: leave it out with --steps.

    Reference:
    "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), section 5.4
    """
    if not hosts.irregular.any() and hosts.pauses.is_empty():
        raise Silent("no host pauses for more than 1 ms beyond its known stalls")
    kinds, others = gains.of(hosts.without_stalls, hosts.without_irregular)
    gain = others.beyond(kinds.by_step)
    only = gains.graph.values - hosts.irregular
    if _is_worth(gains, gain, only):
        ranks = gains.operations["rank"].n_unique()
        who = "Each rank's host pauses in other steps" if ranks > 1 else "The host pauses in some steps"
        longest = float(hosts.irregular.max())
        yield gains.opportunity(
            gain,
            only,
            title=f"{who}, for up to {_length(longest)}{_in(hosts.place_of(only))}",
            remedy="find out what it does: garbage collection, checkpoints, other load on its cores",
            change="hosts take their usual time there",
        )
    yield from _regular(gains, hosts, others)


def _regular(gains: Gains, hosts: Hosts, others: Gain) -> Iterator[Opportunity]:
    """Yield the opportunity of each range with pauses, the longest first; of all if these are not most."""
    took = (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    places = hosts.pauses.group_by("cause", "name").agg(took).sort("ns", "name", descending=[True, False])
    parts = [hosts.pauses]
    for cause, name, _ in places.head(_PLACES).iter_rows():
        is_there = (pl.col("cause") == cause) & pl.col("name").eq_missing(pl.lit(name))
        parts.append(hosts.pauses.filter(is_there))
    wholes = gains.of_each(
        np.minimum(hosts.without_irregular, without_intervals(gains, pauses)) for pauses in parts
    )
    candidates = [(pauses, whole.beyond(others.by_step)) for pauses, whole in zip(parts, wholes, strict=True)]

    def is_worth(pauses: pl.DataFrame, gain: Gain) -> bool:
        return gain.share >= _WORTH and _is_worth(gains, gain, without_intervals(gains, pauses))

    together, *one_by_one = candidates
    worth = [each for each in one_by_one if is_worth(*each)]
    explained_s = sum(gain.mean_s for _, gain in worth)
    if explained_s < _MOST * together[1].mean_s:
        worth = [together] if is_worth(*together) else []
    for pauses, gain in worth:
        variant = without_intervals(gains, pauses)
        longest = float((pauses["end_ns"] - pauses["start_ns"]).max())  # type: ignore[arg-type]
        yield gains.opportunity(
            gain,
            variant,
            title=f"Hosts launch nothing for up to {_length(longest)}{_in(hosts.place_of(variant))}",
            remedy="shorten it, or move it off the thread that launches work",
            change="hosts do not pause there",
        )


def _is_worth(gains: Gains, gain: Gain, variant: Times) -> bool:
    return gain.share >= _WORTH and gain.is_certain(gains.steps_changed(variant))


def _length(ns: float) -> str:
    return f"{ns / MILLISECOND_NS:,.{0 if ns >= 10 * MILLISECOND_NS else 1}f} ms"


def _in(place: str | None) -> str:
    if place is None:
        return ", at several places"
    return f", in {place}" if place else ", in no named range or operator"
