"""The replay of an event graph in C, in the library of the native readers.

Without it `event_graph` replays the graph level by level, to the same times, several times as slowly.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench.trace.native.library import load_library

if TYPE_CHECKING:
    from ccl_bench.whatif.event_graph import EventGraph, Numbers, Times

_FUNCTIONS: dict[str, tuple[object, ...]] = {
    "replay_order": (ctypes.c_int64, ctypes.c_int64, *[ctypes.c_void_p] * 5),
    "replay_times": (None, ctypes.c_int64, *[ctypes.c_void_p] * 8),
}


class NativeReplay:
    """The events of a graph in the order of their replay."""

    def __init__(self, library: ctypes.CDLL, graph: EventGraph) -> None:
        self._library, self._size = library, graph.size
        continues = np.append(False, graph.chain[1:] == graph.chain[:-1])[: graph.size]
        into, begins = _by_event(graph.target, graph.size)
        out_of, leaves = _by_event(graph.source, graph.size)
        order = np.empty(graph.size, dtype=np.int64)
        missing = np.diff(begins) + continues
        arrays = (continues, leaves, _numbers(graph.target[out_of]), missing, order)
        self.is_whole = self._size == library.replay_order(self._size, *map(_address, arrays))
        """Whether every event has its place; otherwise events wait for each other in a cycle."""
        edges = (begins, _numbers(graph.source[into]), _numbers(graph.edge_value[into]))
        self._arrays = (order, continues, _numbers(graph.value), *edges)

    def replay(self, moments: Times, values: Times) -> None:
        """Set the times of the events in each column, `[column, event]`, for `values` of `[column, value]`.

        `moments` holds the earliest possible times; both lie in memory row by row.
        """
        arrays = [*map(_address, self._arrays)]
        for times, by_value in zip(moments, values, strict=True):
            self._library.replay_times(self._size, *arrays, _address(by_value), _address(times))


def native_replay(graph: EventGraph) -> NativeReplay | None:
    """Return the replay of a graph in C; None if the library is absent or switched off."""
    library = load_library(_FUNCTIONS)
    return NativeReplay(library, graph) if library else None


def _by_event(events: Numbers, size: int) -> tuple[Numbers, Numbers]:
    """Return edges in the order of the events at one of their ends, and where those of each event begin."""
    order = np.argsort(events, kind="stable")
    return order, np.searchsorted(events[order], np.arange(size + 1))


def _numbers(numbers: Numbers) -> Numbers:
    return np.ascontiguousarray(numbers, dtype=np.int64)


def _address(array: np.ndarray) -> int:
    return array.ctypes.data
