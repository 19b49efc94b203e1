"""Operators that make a file as large as wanted and change no answer."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.testing.kineto_events import RankEvents

_BLOCK_EVENTS = 4096
_WORKER_THREAD = 200_000
_MARK = 7_777_777

_OPERATORS = ("select", "as_strided", "empty", "slice", "view", "to", "reshape", "detach")
_SHAPES = (
    '"Concrete Inputs":["","0","0"],"Input type":["c10::BFloat16","Scalar","Scalar"],'
    '"Input Strides":[[49760,1],[],[]],"Input Dims":[[2,49760],[],[]]'
)


def filler_blocks(events: RankEvents, wanted_bytes: int) -> Iterator[str]:
    """Yield about `wanted_bytes` of operators, spread evenly over the recording on a thread of their own."""
    steps, separator = events.made.steps, events.style.separator
    start, end = steps[0][events.rank].host_start_ns, steps[-1][events.rank].host_end_ns
    length, shift, first = end - start, events.shift_ns + start, events.external + 1
    pieces = [_pieces(events, name) for name in _OPERATORS]
    kinds, likely_number = len(pieces), first + wanted_bytes // 600
    event_bytes = len(separator.join(_event(one, shift, likely_number) for one in pieces)) / kinds
    count = max(1, round(wanted_bytes / event_bytes))
    for begin in range(0, count, _BLOCK_EVENTS):
        yield separator.join(
            _event(pieces[number % kinds], number * length // count + shift, first + number)
            for number in range(begin, min(count, begin + _BLOCK_EVENTS))
        )


def _event(pieces: tuple[str, str, str, str], at_ns: int, number: int) -> str:
    return f"{pieces[0]}{at_ns // 1000}.{at_ns % 1000:03d}{pieces[1]}{number}{pieces[2]}{number}{pieces[3]}"


def _pieces(events: RankEvents, name: str) -> tuple[str, str, str, str]:
    """Return what stands around the time and the two ids of one operator."""
    thread = events.process + _WORKER_THREAD
    times = (_MARK, 0, *divmod(0, 1000))
    values = ("cpu_op", f"aten::{name}", events.process, thread, *times, _MARK, _MARK)
    text = events.t.host_with_more % (*values, events.t.arguments(_SHAPES))
    before, between, middle, after = text.replace(f"{_MARK}.000", f"{_MARK}").split(str(_MARK))
    return before, between, middle, after
