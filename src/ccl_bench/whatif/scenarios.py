"""Scenarios in the notation of users: operations with other times."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean, spelling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccl_bench.whatif.replays import Mask, Replays, Times

IDEALS = ("all", "compute", "comm")

_SCALE = re.compile(r"(?P<what>[^=]+)=(?P<factor>[^=]+)")
_NUMBER = r"\d+(?:\.\d+)?(?:[eE][+-]?\d+)?"
_NETWORK = re.compile(rf"B=(?P<bandwidth>{_NUMBER}),alpha=(?P<alpha>{_NUMBER})")
_LARGEST_FACTOR = 1e6


@dataclass(frozen=True)
class Scenario:
    """A change of operation times."""

    name: str
    variant: Callable[[], Times]
    """Computes the changed times of operations."""
    at_least_s: Times | float = 0.0
    """Shortest length of a step, s."""


def parse_scenarios(
    replays: Replays,
    without: Iterable[str] = (),
    scale: Iterable[str] = (),
    ideal: Iterable[str] = (),
    overlap: Iterable[str] = (),
    network: Iterable[str] = (),
) -> list[Scenario]:
    """Return the requested scenarios; raise UsageError if one is invalid.

    Commas separate the parts of one scenario: `rank:1,stage:3`, or `rank:3,7` for two ranks.
    """
    return [
        *(_without(replays, text) for text in without),
        *(_scaled(replays, text) for text in scale),
        *(_ideal(replays, text) for text in ideal),
        *(_overlapped(replays, text) for text in overlap),
        *(_on_network(replays, text) for text in network),
    ]


def _without(replays: Replays, text: str) -> Scenario:
    mask = _mask(replays, text)
    return Scenario(f"without {text}", lambda: replays.without(mask))


def _scaled(replays: Replays, text: str) -> Scenario:
    parts = _SCALE.fullmatch(text)
    factor = _factor(parts["factor"]) if parts else None
    if parts is None or factor is None:
        example = f"{replays.kinds[-1]}:NAME=0.5"
        fix = f"write a name and a factor from 0 to {_LARGEST_FACTOR:g}, such as {example}"
        raise UsageError(f"{text!r} is not a change of durations", fix=fix)
    mask = _mask(replays, parts["what"])
    return Scenario(f"{parts['what']} × {factor:g}", lambda: replays.scaled(mask, factor))


def _ideal(replays: Replays, text: str) -> Scenario:
    which = spelling(text)
    if which not in IDEALS:
        raise UsageError(f"{text!r} has no ideal time", fix=f"write {', '.join(IDEALS[:-1])} or {IDEALS[-1]}")
    masks = {"compute": replays.is_compute, "comm": ~replays.is_compute}
    mask = masks.get(which, np.ones_like(replays.is_compute))
    return Scenario(f"ideal {which}", lambda: replays.ideal_but(~mask))


def _overlapped(replays: Replays, text: str) -> Scenario:
    """Return the scenario in which computing hides a collective: a step is no shorter than its transfers."""
    mask = _mask(replays, f"{replays.kinds_of_communication}:{text}")
    return Scenario(f"overlap {text}", lambda: replays.scaled(mask, 0.0), replays.transfer_s(mask))


def _on_network(replays: Replays, text: str) -> Scenario:
    """Return the scenario of another network: bus bandwidth B in 10^9 byte/s, latency alpha in µs."""
    parts = _NETWORK.fullmatch(text)
    bandwidth, alpha = (float(parts[name]) if parts else 0.0 for name in ("bandwidth", "alpha"))
    if not bandwidth:
        fix = "write bus bandwidth in GB/s and latency in µs, such as B=200,alpha=15"
        raise UsageError(f"{text!r} is not a network", fix=fix)
    variant = replays.on_network(bandwidth * 1e9, alpha * 1e-6)
    return Scenario(f"network {text}", lambda: variant)


def _factor(text: str) -> float | None:
    try:
        factor = float(text)
    except ValueError:
        return None
    return factor if math.isfinite(factor) and 0 <= factor <= _LARGEST_FACTOR else None


def _mask(replays: Replays, text: str) -> Mask:
    """Return a mask of the operations that any part of a text names.

    A part without a kind has that of the part before it, as in `rank:3,7`. Names of kernels contain commas.
    """
    masks: list[Mask] = []
    last_kind = ""
    for part in map(str.strip, text.split(",")):
        kind, colon, name = part.partition(":")
        kind, name = (spelling(kind), name.strip()) if colon else (last_kind, part)
        masks.append(_part(replays, kind, name, part))
        last_kind = kind if kind != "kernel" else ""
    mask: Mask = np.logical_or.reduce(masks)
    return mask


def _part(replays: Replays, kind: str, name: str, part: str) -> Mask:
    if kind not in replays.kinds or not name:
        kinds = f"{', '.join(replays.kinds[:-1])} or {replays.kinds[-1]}"
        meant = "" if kind in replays.kinds else did_you_mean(kind, replays.kinds)
        fix = meant or f"write KIND:NAME, KIND being {kinds}, such as rank:1"
        raise UsageError(f"{part!r} names no operations", fix=fix)
    mask = replays.matches(kind, name)
    if not mask.any():
        names = [each for each in replays.names(kind).unique_names if each]
        respelt = next((each for each in names if spelling(each) == spelling(name)), name)
        mask = replays.matches(kind, respelt)
    if not mask.any():
        there_are = f"there are {', '.join(names[:20])}" if names else f"the recording shows no {kind}"
        raise UsageError(f"there is no {kind} {name!r}", fix=did_you_mean(name, names) or there_are)
    return mask
