"""Scenarios in the notation of users: operations with other times."""

from __future__ import annotations

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean, spelling

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from ccl_bench.whatif.event_graph import Mask, Times
    from ccl_bench.whatif.replays import Replays

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
    scenarios = [
        Scenario(f"without {text}", partial(replays.without, _mask(replays, text))) for text in without
    ]
    scenarios += [_scaled(replays, text) for text in scale]
    scenarios += [_ideal(replays, text) for text in ideal]
    for text in overlap:
        # Computing hides the collective, so that a step is no shorter than its transfers.
        mask = _mask(replays, f"{replays.kinds_of_communication}:{text}")
        hidden = partial(replays.scaled, mask, 0.0)
        scenarios.append(Scenario(f"overlap {text}", hidden, replays.transfer_s(mask)))
    return scenarios + [_on_network(replays, text) for text in network]


def _scaled(replays: Replays, text: str) -> Scenario:
    parts = _SCALE.fullmatch(text)
    factor = math.nan
    if parts:
        with suppress(ValueError):
            factor = float(parts["factor"])
    if parts is None or not 0 <= factor <= _LARGEST_FACTOR:
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


def _on_network(replays: Replays, text: str) -> Scenario:
    """Return the scenario of another network: bus bandwidth B in 10^9 byte/s, latency alpha in µs."""
    parts = _NETWORK.fullmatch(text)
    bandwidth, alpha = (float(parts[name]) if parts else 0.0 for name in ("bandwidth", "alpha"))
    if not bandwidth:
        fix = "write bus bandwidth in GB/s and latency in µs, such as B=200,alpha=15"
        raise UsageError(f"{text!r} is not a network", fix=fix)
    variant = replays.on_network(bandwidth * 1e9, alpha * 1e-6)
    return Scenario(f"network {text}", lambda: variant)


def _mask(replays: Replays, text: str) -> Mask:
    """Return a mask of the operations that any part of a text names.

    A part without a kind has that of the part before it, as in `rank:3,7`. Names of kernels contain commas.
    """
    masks: list[Mask] = []
    last_kind = ""
    for part in map(str.strip, text.split(",")):
        kind, colon, name = part.partition(":")
        kind, name = (spelling(kind), name.strip()) if colon else (last_kind, part)
        if kind not in replays.kinds or not name:
            kinds = f"{', '.join(replays.kinds[:-1])} or {replays.kinds[-1]}"
            meant = "" if kind in replays.kinds else did_you_mean(kind, replays.kinds)
            fix = meant or f"write KIND:NAME, KIND being {kinds}, such as rank:1"
            raise UsageError(f"{part!r} names no operations", fix=fix)
        of_part = replays.matches(kind, name)
        if not of_part.any():
            names = [each for each in replays.names(kind).unique_names if each]
            respelt = next((each for each in names if spelling(each) == spelling(name)), name)
            of_part = replays.matches(kind, respelt)
            if not of_part.any():
                there_are = (
                    f"there are {', '.join(names[:20])}" if names else f"the recording shows no {kind}"
                )
                raise UsageError(f"there is no {kind} {name!r}", fix=did_you_mean(name, names) or there_are)
        masks.append(of_part)
        last_kind = kind if kind != "kernel" else ""
    mask: Mask = np.logical_or.reduce(masks)
    return mask
