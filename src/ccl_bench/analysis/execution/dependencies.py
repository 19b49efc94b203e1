"""Dependencies of a rank's operations: chains, launches, synchronisation, and those inferred from times.

Edges by how sure they are: 1 correlation of launch and work, 2 order on a chain, 3 calls that wait for the
device, 4 a stream that was made to wait for another, 5 work that ended just before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.base.lazy_imports import np, pl

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Numbers = NDArray[np.int64]

SYNCHRONISATION, STREAM_WAIT, INFERRED = 3, 4, 5
"""Tiers of what an operation waits for."""

JUST_BEFORE_NS = 12_000
"""Work that ended at most this long before is taken as what was waited for.

The next work of a waiting stream begins within microseconds; what begins later waited for something else.
"""

LONG_CALL_NS = 100_000
"""A call that takes longer may have waited for the device: one that only launches takes ten microseconds."""

SOON_NS = 1_000_000
"""A host that waited for a range goes on at most this long after its end; else it did something meanwhile."""

_LONGEST_OVERLAP = 0.01
"""Share of a thread's time that may overlap with the host's chain if it takes turns with it.

A thread that hands over to another returns a little after that one has begun.
"""

_LATENCY_QUANTILE = 0.05
"""Quantile of launches on an idle stream that is the least time of a launch: single ones seem shorter."""

_NONE = -1


def add_dependencies(every: pl.DataFrame, stream_waits: pl.DataFrame, *, has_device: bool) -> pl.DataFrame:
    """Return operations, in order of start, with their chains and what they wait for.

    `stream_waits` are the calls that make a stream wait, with `start_ns` and `thread`.
    """
    rank = _Rank(every)
    if has_device:
        latency = rank.find_launchers()
        rank.find_stream_waits(stream_waits)
        rank.find_blocked_calls()
        rank.find_just_before(latency)
    else:
        latency = 0
        rank.find_issuers()
        rank.find_blocked_host()

    def optional(values: Numbers) -> pl.Series:
        return pl.Series(values, dtype=pl.Int64).replace(_NONE, None)

    return every.with_columns(
        chain=pl.Series(rank.chain, dtype=pl.Int64),
        launcher=optional(rank.launcher),
        latency_ns=pl.when(pl.Series(rank.launcher != _NONE)).then(pl.lit(latency, dtype=pl.Int64)),
        awaited=optional(rank.awaited),
        at_end=pl.Series(rank.at_end),
        tier=pl.Series(rank.tier, dtype=pl.Int64).replace(0, None),
    )


class _Rank:
    """The operations of one rank as arrays, in order of start."""

    def __init__(self, every: pl.DataFrame) -> None:
        self.start = every["start_ns"].to_numpy()
        self.end = every["end_ns"].to_numpy()
        self.lane = every["lane"].fill_null(_NONE).to_numpy()
        self.kind = every["kind"].to_numpy()
        self.is_host = (every["place"] == "host").to_numpy()
        self.is_send = (every["name"].cast(pl.String).str.contains("send$").fill_null(value=False)).to_numpy()
        self.correlation = every["correlation"].fill_null(0).to_numpy()
        self.launch_ns = every["launch_ns"].fill_null(_NONE).to_numpy()
        self.away = np.flatnonzero(~self.is_host)
        size = len(self.start)
        self.chain = self._chains()
        self.host = np.flatnonzero(self.chain == 0)
        self.launcher, self.awaited = (np.full(size, _NONE, dtype=np.int64) for _ in range(2))
        self.at_end = np.zeros(size, dtype=np.bool_)
        self.tier = np.zeros(size, dtype=np.int64)

    def _chains(self) -> Numbers:
        """Return the chain of each operation; threads of the host that take turns share one."""
        chain = np.full(len(self.start), _NONE, dtype=np.int64)
        on_host = np.flatnonzero(self.is_host)
        lanes, counts = np.unique(self.lane[on_host], return_counts=True)
        occupied: Numbers = np.zeros((0, 2), dtype=np.int64)
        following = 1
        for lane in lanes[np.argsort(-counts, kind="stable")]:
            lane_operations = on_host[self.lane[on_host] == lane]
            intervals = _union(self.start[lane_operations], self.end[lane_operations])
            both = _union(
                np.append(occupied[:, 0], intervals[:, 0]), np.append(occupied[:, 1], intervals[:, 1])
            )
            overlap = _length(occupied) + _length(intervals) - _length(both)
            if overlap <= _LONGEST_OVERLAP * _length(intervals):
                occupied, number = both, 0
            else:
                following, number = following + 1, following
            chain[lane_operations] = number
        for lane in np.unique(self.lane[self.away]):
            chain[self.away[self.lane[self.away] == lane]] = following
            following += 1
        return chain

    def _previous_end(self) -> Numbers:
        """Return the end of the operation before each one on its chain, the earliest time without one."""
        ends = np.full(len(self.start), np.iinfo(np.int64).min // 2)
        order = np.argsort(self.chain, kind="stable")
        same = self.chain[order][1:] == self.chain[order][:-1]
        ends[order[1:][same]] = self.end[order[:-1][same]]
        return ends

    def find_launchers(self) -> int:
        """Join work to the call that launched it; return the least time of a launch, ns."""
        calls = np.flatnonzero(self.is_host & (self.correlation > 0))
        by_number = calls[np.argsort(self.correlation[calls], kind="stable")]
        numbers = self.correlation[by_number]
        if not numbers.size:
            return 0
        at = np.minimum(np.searchsorted(numbers, self.correlation[self.away]), len(numbers) - 1)
        has_launcher = numbers[at] == self.correlation[self.away]
        self.launcher[self.away[has_launcher]] = by_number[at[has_launcher]]
        took = self.start[self.away[has_launcher]] - self.start[by_number[at[has_launcher]]]
        waits = self._previous_end()[self.away[has_launcher]] > self.start[by_number[at[has_launcher]]]
        idle = took[~waits & (took >= 0)]
        return min(int(np.quantile(idle, _LATENCY_QUANTILE)), LONG_CALL_NS) if idle.size else 0

    def find_stream_waits(self, stream_waits: pl.DataFrame) -> None:
        """Let work begin after another stream's if its thread made a stream wait before it launched it."""
        launched = self.away[self.launcher[self.away] != _NONE]
        if not launched.size or stream_waits.is_empty():
            return
        launch = self.start[self.launcher]
        streams = {
            lane: operations[np.argsort(launch[operations], kind="stable")]
            for lane in np.unique(self.lane[launched])
            for operations in [launched[self.lane[launched] == lane]]
        }
        for (thread,), thread_waits in stream_waits.group_by("thread"):
            waits = np.sort(thread_waits["start_ns"].to_numpy())
            operations = launched[self.lane[self.launcher[launched]] == thread]
            operations = operations[np.argsort(launch[operations], kind="stable")]
            before = np.searchsorted(waits, launch[operations])
            has_waited = np.diff(before, prepend=0) > 0
            for operation in operations[has_waited]:
                self._wait_for_stream(int(operation), launch, streams)

    def _wait_for_stream(self, operation: int, launch: Numbers, streams: dict[int, Numbers]) -> None:
        best = _NONE
        for lane, works in streams.items():
            if lane == self.lane[operation]:
                continue
            until = np.searchsorted(launch[works], launch[operation])
            earlier = works[:until]
            ended_works = np.flatnonzero((self.end[earlier] <= self.start[operation]) & (earlier < operation))
            if ended_works.size and (best == _NONE or self.end[works[ended_works[-1]]] > self.end[best]):
                best = int(works[ended_works[-1]])
        if best != _NONE:
            self.awaited[operation], self.tier[operation] = best, STREAM_WAIT

    def find_blocked_calls(self) -> None:
        """Let calls that wait for the device, by name or length, end after the work that they awaited."""
        by_end = self.away[np.argsort(self.end[self.away], kind="stable")]
        ends = self.end[by_end]
        took = self.end - self.start
        calls = np.flatnonzero(
            self.is_host & ((self.kind == "wait") | ((self.kind == "call") & (took > LONG_CALL_NS)))
        )
        if not by_end.size:
            return
        at = np.searchsorted(ends, self.end[calls], side="right") - 1
        for call, place in zip(calls.tolist(), at.tolist(), strict=True):
            if place < 0:
                continue
            work = int(by_end[place])
            launched_before = (
                self.launcher[work] == _NONE or self.start[self.launcher[work]] <= self.start[call]
            )
            if self.end[work] <= self.start[call] or not launched_before:
                continue
            copies = self.launcher[work] == call and self.kind[work] == "memory"
            if self.kind[call] == "wait" or copies:
                self.awaited[call], self.at_end[call], self.tier[call] = work, True, SYNCHRONISATION
            elif self.end[call] - self.end[work] <= JUST_BEFORE_NS:
                self.awaited[call], self.at_end[call], self.tier[call] = work, True, INFERRED

    def find_just_before(self, latency: int) -> None:
        """Let work that starts later than is explained wait for the work that ended just before it.

        Work without length delays none: it would wait for itself, or for others of the same time in a circle.
        """
        ready = self._previous_end()[self.away]
        launched = self.launcher[self.away] != _NONE
        ready = np.where(launched, np.maximum(ready, self.start[self.launcher[self.away]] + latency), ready)
        has_awaited = self.awaited[self.away] != _NONE
        ready = np.where(has_awaited, np.maximum(ready, self.end[self.awaited[self.away]]), ready)
        late = self.away[(self.start[self.away] - ready > JUST_BEFORE_NS) & launched]
        lasting = self.away[self.end[self.away] > self.start[self.away]]
        if not lasting.size:
            return
        by_end = lasting[np.argsort(self.end[lasting], kind="stable")]
        at = np.searchsorted(self.end[by_end], self.start[late], side="right") - 1
        near = (at >= 0) & (self.start[late] - self.end[by_end[at]] <= JUST_BEFORE_NS)
        self.awaited[late[near]], self.tier[late[near]] = by_end[at[near]], INFERRED

    def find_issuers(self) -> None:
        """Join ranges of a communication library to the operators that started them, else to the latest."""
        issues = self.host[self.kind[self.host] == "issue"]
        if not issues.size:
            return
        launch_ns = self.launch_ns[self.away]
        moment = np.where(launch_ns != _NONE, launch_ns, self.start[self.away])
        at = np.searchsorted(self.start[issues], moment, side="right") - 1
        self.launcher[self.away[at >= 0]] = issues[at[at >= 0]]

    def find_blocked_host(self) -> None:
        """Let the host wait for a range if it did nothing until just after the end of the range."""
        host = self.host
        if not host.size:
            return
        starts, reach = self.start[host], np.maximum.accumulate(self.end[host])
        host_lanes = np.unique(self.lane[host])
        for work in self.away[np.argsort(self.end[self.away], kind="stable")].tolist():
            end = self.end[work]
            following = int(np.searchsorted(starts, end, side="left"))
            if following and reach[following - 1] > end:
                # An operator of communication that ran when the range ended waited for it.
                running = int(host[following - 1])
                is_awaited = self.kind[running] == "issue" and self.launcher[work] <= running
                if is_awaited and self.end[running] >= end:
                    self.awaited[running], self.at_end[running] = work, True
                    self.tier[running] = SYNCHRONISATION
                continue
            if following == len(host) or not following:
                continue
            tail, idle = starts[following] - end, end - reach[following - 1]
            issued = self.launcher[work]
            soon = tail <= max(idle, SOON_NS)
            directly = issued != _NONE and self.end[issued] >= reach[following - 1] and soon
            ends_here = self.lane[work] in host_lanes and not self.is_send[work]
            if self.is_send[work] and not directly:
                continue
            if directly or ends_here or idle > tail:
                waiting = int(host[following])
                self.awaited[waiting], self.tier[waiting] = work, INFERRED


def _union(start: Numbers, end: Numbers) -> Numbers:
    """Return the union of intervals as rows of start and end."""
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    if not start.size:
        return np.zeros((0, 2), dtype=np.int64)
    reach = np.maximum.accumulate(end)
    opens = np.append(True, start[1:] > reach[:-1])
    closes = np.append(opens[1:], True)
    return np.stack([start[opens], reach[closes]], axis=1)


def _length(union: Numbers) -> int:
    return int((union[:, 1] - union[:, 0]).sum())
