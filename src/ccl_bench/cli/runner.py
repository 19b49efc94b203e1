"""The main loop of every command: errors as messages, exit statuses, interruption, closed pipes."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import shutil
import signal
import sys
import textwrap
import threading
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import CclBenchError
from ccl_bench.base.text import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from ccl_bench.engine import Progress
    from ccl_bench.trace.formats import TraceFile

_OUR_PACKAGES = {"", "ccl_bench", "tools"}

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_GONE = {errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ESTALE}
_FIXES = dict.fromkeys(_NO_ROOM, "free space there, or write elsewhere")
_FIXES |= dict.fromkeys(_CLOSED, "check its permissions and those of its folder, or name another place")
_FIXES |= dict.fromkeys(_GONE, "another program removed or replaced it meanwhile: run the command again")
_FIXES[errno.EIO] = "check the disk: the system cannot read or write it"
"""What to do about errors of the operating system, by error number."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as in shells."""
CLOSED_PIPE = 141
"""Exit status after the reader of the output has closed it, as in shells."""

_UNSEEN = 20_000
"""Objects after which the interpreter looks for garbage: imports alone make several hundred thousand."""


def run(program: str, command: Callable[[list[str]], int], arguments: list[str] | None = None) -> int:
    """Run a command with the words after its name, those of the process by default; return its exit status.

    Expected errors become two lines on stderr; any other exception is a bug and passes.
    """
    for stream in (sys.stdout, sys.stderr):
        # Names that the terminal's encoding lacks are printed with escapes.
        if reconfigure := getattr(stream, "reconfigure", None):
            reconfigure(errors="backslashreplace")
    if arguments is None:
        gc.set_threshold(_UNSEEN)
        # The process ends with the command: the interpreter need not look for garbage in all that is left.
        atexit.register(gc.freeze)
    try:
        status = command(sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
        _warn_of_plugins(program)
    except CclBenchError as error:
        say(program, str(error))
        return error.exit_status
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in _OUR_PACKAGES:
            raise
        say(
            program,
            f"the package {error.name} is not installed\n  fix: {sys.executable} -m pip install ccl-bench",
        )
        return CclBenchError.exit_status
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        _forget_stdout()
        return CLOSED_PIPE
    except OSError as error:
        if error.errno not in _FIXES:
            raise
        what = "written" if error.errno in _NO_ROOM else "opened"
        place = error.filename or "the output"
        say(program, f"{place} cannot be {what}: {error.strerror}\n  fix: {_FIXES[error.errno]}")
        _forget_stdout()
        return CclBenchError.exit_status
    return status


def _warn_of_plugins(program: str) -> None:
    """Print which plug-ins failed, if the command used any."""
    if registry := sys.modules.get("ccl_bench.base.registry"):
        for name, group, reason in registry.broken_plugins():
            say(program, f"warning: plug-in {name} ({group}) failed: {reason}")


def say(program: str, text: str) -> None:
    """Write one remark to stderr under the program's name, on a terminal broken between words."""
    with contextlib.suppress(BrokenPipeError):
        for line in map(plain, f"{program}: {text}".splitlines()):
            if sys.stderr.isatty():
                columns = shutil.get_terminal_size().columns
                indent = " " * (len(line) - len(line.lstrip()) + 2)
                line = textwrap.fill(
                    line,
                    columns,
                    subsequent_indent=indent,
                    break_long_words=False,
                    break_on_hyphens=False,
                )
            sys.stderr.write(f"{line}\n")


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


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
        # rich, which most commands end without
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
    """Yield the function that reports progress on `total` traces or other things, or None without a terminal.

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
    # what an entry point without traces does without
    from ccl_bench.trace.memory import amount, available_bytes, inflated_bytes, memory_bound, needed_bytes

    for trace in traces:
        size, needed = inflated_bytes(trace), needed_bytes(trace)
        if size > available_bytes() and needed <= memory_bound(trace):
            what = f"{amount(size)} of events, more than the free memory"
            how = f"it is read in pieces, which needs about {amount(needed)}"
            sys.stderr.write(f"{plain(trace.relative)}: {what}; {how}\n")
