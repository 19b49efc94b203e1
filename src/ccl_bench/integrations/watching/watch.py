"""The watch: it measures each recording window of a directory once, when complete, and stores the results."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from ccl_bench.api.measured_run import MeasuredRun
from ccl_bench.base.errors import CclBenchError, UsageError
from ccl_bench.base.extras import require
from ccl_bench.base.text import encode_json
from ccl_bench.integrations.watching.windows import WatchedFolder, WindowTracker, file_state
from ccl_bench.result import ResultFinding, to_json
from ccl_bench.run import open_run
from ccl_bench.run.completeness import UNREAD
from ccl_bench.storage.files import write_atomically
from ccl_bench.trace.quality import CUT_SHORT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

    from ccl_bench.integrations.watching.windows import Window
    from ccl_bench.result import Result

LIST = "windows.jsonl"
"""File with one line per measured window, in the folder of the results."""

_UNFINISHED = CUT_SHORT | UNREAD | {"trace-unrecognised"}
"""Findings of files that a profiler may still be writing."""

_SLOWEST_LOOK_S = 5.0
_FASTEST_LOOK_S = 0.05


@dataclass(frozen=True, slots=True)
class MeasuredWindow:
    """The measurement of one recording window."""

    run: str
    window: str
    step: int | None
    """Number of the window, else of its last step."""
    traces: int
    ranks: list[int]
    """Known ranks."""
    results: list[Result]
    findings: list[ResultFinding]
    signature: str
    at: str
    """Time of the measurement, ISO 8601 in UTC."""

    @property
    def values(self) -> list[Result]:
        """The results that have a value."""
        return [result for result in self.results if result.value is not None]

    def line(self, file: str = "") -> bytes:
        """Return the window as one line of JSON; `file` is the file with its full results, if stored."""
        values = {result.metric: {"value": result.value, "unit": result.unit} for result in self.values}
        kinds = dict.fromkeys((finding.code, finding.severity) for finding in self.findings)
        counts = {kind: sum((f.code, f.severity) == kind for f in self.findings) for kind in kinds}
        record: dict[str, Any] = {"run": self.run, "window": self.window, "step": self.step, "at": self.at}
        record |= {"traces": self.traces, "ranks": len(self.ranks), "values": values}
        record["findings"] = [
            {"code": code, "severity": severity, "count": count} for (code, severity), count in counts.items()
        ]
        results_file = {"results": file, "signature": self.signature} if file else {}
        return encode_json(record | results_file, indent=-1)


class Sink(Protocol):
    """An output of measured windows to another program."""

    def show(self, measured: MeasuredWindow) -> None:
        """Show the values of a window instead of those of the last one."""

    def close(self) -> None:
        """Stop."""


class StoredResults:
    """A directory with the results of every window and a list of them; no file is overwritten."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._list = (folder / LIST).open("a+b")
        try:
            if os.name != "nt":  # Windows has no such lock
                import fcntl

                fcntl.flock(self._list, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self.close()
            raise UsageError(
                f"another ccl-bench watch writes into {folder}", fix="give each its own --output"
            ) from error
        self._signatures: dict[str, str] = {}
        self._list.seek(0)
        for line in self._list:
            with suppress(msgspec.DecodeError, KeyError, TypeError):  # cut off, or of somebody else
                record = msgspec.json.decode(line)
                self._signatures[record["window"]] = record["signature"]

    def has(self, window: Window) -> bool:
        """Whether the window was already measured with its current files."""
        return self._signatures.get(window.name) == window.signature

    def keep(self, measured: MeasuredWindow) -> str:
        """Write the results of a window and add it to the list; return the name of the file."""
        names = (f"{measured.window}{again}.json" for again in ("", *(f".{n}" for n in range(2, 1_000_000))))
        target = next(path for name in names if not (path := self.folder / name).exists())
        with write_atomically(target) as temporary:
            temporary.write_bytes(to_json(measured.results))
            temporary.chmod(0o644)
        if self._list.seek(0, 2):
            self._list.seek(-1, 2)
            if self._list.read(1) != b"\n":  # the last line was cut off
                self._list.write(b"\n")
        self._list.write(measured.line(target.name) + b"\n")
        self._list.flush()
        self._signatures[measured.window] = measured.signature
        return target.name

    def close(self) -> None:
        """Release the lock on the directory."""
        self._list.close()


@dataclass(frozen=True, slots=True)
class WatchOptions:
    """Options of a watch."""

    root: Path
    run: str
    """Name of the run in outputs."""
    names: Sequence[str]
    """Names of the metrics."""
    settle_s: float = 10.0
    """Time without a change after which a file is complete."""
    patience_s: float = 300.0
    """Time without a change after which an incomplete window is measured as it is."""
    card: str | None = None
    jobs: int | None = None


class Watcher:
    """Scans a directory, and measures new complete windows."""

    def __init__(
        self,
        how: WatchOptions,
        *,
        store: StoredResults | None,
        sinks: Sequence[Sink],
        report: Callable[[MeasuredWindow, str], None],
        remark: Callable[[str], None],
    ) -> None:
        self._how = how
        self._store = store
        self._sinks = sinks
        self._report = report
        self._remark = remark
        self._folder = WatchedFolder(how.root, store.folder if store else None)
        self._settling = WindowTracker(how.settle_s, how.patience_s)
        self._measured: dict[str, str] = {}
        self._ranks: set[int] = set()

    def look(self) -> list[str]:
        """Measure new complete windows; return the names of incomplete ones."""
        seen = self._folder.look()
        now_s = time.monotonic()
        self._settling.update(seen.windows, now_s, time.time())
        new = [
            window
            for window in seen.windows
            if self._measured.get(window.name) != window.signature
            and not (self._store and self._store.has(window))
        ]
        self._measured = {w.name: self._measured[w.name] for w in seen.windows if w.name in self._measured}
        return [window.name for window in new if not self._is_done(window, seen.shared, now_s)]

    def _is_done(self, window: Window, shared: list[str], now_s: float) -> bool:
        """Measure a complete window, and return whether it is finished."""
        if not self._settling.is_written(window, now_s):
            return False
        given_up = self._settling.is_given_up(window, now_s)
        try:
            measured, lacks = self._measure(window, shared, given_up=given_up)
        except (CclBenchError, OSError) as error:
            if not given_up:
                self._settling.refuse(window)
                return False
            self._remark(f"{window.name} cannot be measured: {error}")
            self._measured[window.name] = window.signature
            return True
        if measured is None:
            self._settling.refuse(window)
            self._remark(f"{window.name} is not measured yet: {lacks}")
            return False
        self._measured[window.name] = window.signature
        self._ranks = {*measured.ranks}
        file = self._store.keep(measured) if self._store else ""
        self._report(measured, file)
        for sink in self._sinks:
            try:
                sink.show(measured)
            except CclBenchError as error:  # the others still show it
                self._remark(str(error))
        return True

    def _measure(
        self, window: Window, shared: list[str], *, given_up: bool
    ) -> tuple[MeasuredWindow | None, str]:
        """Return the measurement of a window, or None with the missing part, unless its time is over."""
        how = self._how
        files = [how.root / each for each in (*(file.relative for file in window.files), *shared)]
        run = open_run(how.root, card=how.card, among=files)
        size = run.facts.world_size.value if run.facts.world_size else len(run.ranks)
        missing = size - len(run.ranks)
        # The last window shows which ranks are recorded at all.
        is_whole = missing <= 0 or (self._ranks and self._ranks <= {*run.ranks})
        if not given_up and not is_whole:
            return None, f"{missing} of {size} ranks have no trace"
        results = MeasuredRun(run, str(how.root), jobs=how.jobs, use_cache=False).results(how.names)
        of_run = (ResultFinding(f.code, f.severity, f.message, f.file, f.rank, f.count) for f in run.findings)
        findings = [*dict.fromkeys([*of_run, *(each for result in results for each in result.findings)])]
        cut = [finding for finding in findings if finding.code in _UNFINISHED]
        if cut and not given_up:
            return None, f"{cut[0].file}: {cut[0].message}"
        for file in window.files:
            if file_state(how.root / file.relative, file.relative) not in {file, None}:
                return None, f"{file.relative} changed while it was read"
        step = window.number if window.number is not None else last_step(results)
        at = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        traces, ranks = len(run.traces), run.ranks
        measured = MeasuredWindow(
            how.run, window.name, step, traces, ranks, results, findings, window.signature, at
        )
        return measured, ""

    def once(self) -> None:
        """Measure all windows once, waiting only for recently changed files; report unmeasured ones."""
        until_s = time.monotonic() + self._how.settle_s + _FASTEST_LOOK_S
        while (left := self.look()) and time.monotonic() < until_s:
            time.sleep(max(_FASTEST_LOOK_S, min(_SLOWEST_LOOK_S, self._how.settle_s / 2)))
        if left:
            self._remark(f"not measured, because they may be incomplete: {', '.join(left[:5])}")

    def forever(self) -> None:
        """Measure windows as they appear, until interrupted."""
        interval_s = max(_FASTEST_LOOK_S, min(_SLOWEST_LOOK_S, self._how.settle_s / 2))
        changes = require("watchfiles", "watch").watch(
            self._how.root,
            rust_timeout=round(1_000 * interval_s),
            yield_on_timeout=True,
            ignore_permission_denied=True,
        )
        self.look()
        for _ in changes:
            self.look()


def last_step(results: Iterable[Result]) -> int | None:
    """Return the number of the last step in the details of results."""
    steps = [
        int(label)
        for result in results
        for name, by_step in result.details.items()
        if name.startswith("per_step") and isinstance(by_step, dict)
        for label in by_step
        if str(label).isdecimal()
    ]
    return max(steps, default=None)
