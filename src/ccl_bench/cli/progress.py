"""A bar on stderr for work on traces that takes longer than a second."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from ccl_bench.engine import Progress
    from ccl_bench.trace.format import TraceFile


PATIENCE_S = 1.0
"""Time after which a bar appears."""


class _Bar:
    """A bar that is drawn once it was started."""

    def __init__(self, about: str) -> None:
        self._about = about
        self._drawn: Any = None
        self._task: Any = None
        self._done, self._total = 0.0, 1

    def start(self, *_signal: object) -> None:
        """Draw the bar."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as Drawn

        columns = (TextColumn(self._about), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        self._drawn = Drawn(*columns, console=Console(stderr=True), transient=True)
        self._task = self._drawn.add_task("", total=self._total, completed=self._done)
        self._drawn.start()

    def update(self, done: float, total: int) -> None:
        """Move the bar to `done` of `total`."""
        self._done, self._total = done, total
        if self._drawn:
            self._drawn.update(self._task, completed=done, total=total)

    def stop(self) -> None:
        """Take the bar away."""
        if self._drawn:
            self._drawn.stop()


@contextlib.contextmanager
def progress_bar(total: int, about: str = "reading traces") -> Iterator[Progress | None]:
    """Yield what reports progress on `total` traces or other things, or None without a terminal.

    An alarm starts the bar and not a thread: while there is one thread, workers can be forked.
    """
    watched = sys.stderr.isatty() and threading.current_thread() is threading.main_thread()
    if not watched or not hasattr(signal, "setitimer"):
        yield None
        return
    bar = _Bar(about)
    bar.update(0, total)
    before = signal.signal(signal.SIGALRM, bar.start)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE_S)
    try:
        yield bar.update
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        bar.stop()


def announce_large(traces: Iterable[TraceFile]) -> None:
    """Print what becomes of each trace that is larger than the memory of this machine."""
    from ccl_bench.trace.memory import amount, available_bytes, inflated_bytes, memory_bound, needed_bytes

    for trace in traces:
        size, needed = inflated_bytes(trace), needed_bytes(trace)
        if size > available_bytes() and needed <= memory_bound(trace):
            what = f"{amount(size)} of events, more than the memory that is free"
            how = f"it is read in pieces, which takes about {amount(needed)}"
            sys.stderr.write(f"{trace.relative}: {what}; {how}\n")
