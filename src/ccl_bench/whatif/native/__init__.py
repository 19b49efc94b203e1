"""The replay of an event graph in C, in the library of the native readers.

Without it `event_graph` replays the graph level by level, to the same times, several times as slowly.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.trace.native.library import load_library

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]
    Times = NDArray[np.float64]

_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "replay_order": (ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 5),
    "replay_times": (None, ctypes.c_int64, *[ctypes.c_void_p] * 8),
}


class NativeReplay:
    """The events of a graph in the order of their replay; its arguments are the fields of `EventGraph`."""

    def __init__(
        self,
        library: ctypes.CDLL,
        *,
        chain: Numbers,
        value: Numbers,
        source: Numbers,
        target: Numbers,
        edge_value: Numbers,
    ) -> None:
        self._library, self._size = library, len(chain)
        continues = np.append(False, chain[1:] == chain[:-1])[: self._size]
        into, begins = _by_event(target, self._size)
        out_of, leaves = _by_event(source, self._size)
        order = np.empty(self._size, dtype=np.int64)
        missing = np.diff(begins) + continues
        # The arrays live on in this name while C reads them.
        arrays = (continues, leaves, _numbers(target[out_of]), missing, order)
        self.is_whole = self._size == library.replay_order(self._size, *map(_address, arrays))
        """Whether every event has its place; otherwise events wait for each other in a cycle."""
        edges = (begins, _numbers(source[into]), _numbers(edge_value[into]))
        self._arrays = (order, continues, _numbers(value), *edges)

    def replay(self, moments: Times, values: Times) -> None:
        """Set the times of the events in each column, `[column, event]`, for `values` of `[column, value]`.

        `moments` holds the earliest possible times; both lie in memory row by row.
        """
        arrays = [*map(_address, self._arrays)]
        for times, by_value in zip(moments, values, strict=True):
            self._library.replay_times(self._size, *arrays, _address(by_value), _address(times))


def replay_library() -> ctypes.CDLL | None:
    """Return the library with the replay in C; None if it is absent or switched off."""
    return load_library(_FUNCTIONS)


def _by_event(events: Numbers, size: int) -> tuple[Numbers, Numbers]:
    """Return edges in the order of the events at one of their ends, and where those of each event begin."""
    order = np.argsort(events, kind="stable")
    return order, np.searchsorted(events[order], np.arange(size + 1))


def _numbers(numbers: Numbers) -> Numbers:
    return np.ascontiguousarray(numbers, dtype=np.int64)


def _address(array: np.ndarray) -> int:
    return array.ctypes.data
