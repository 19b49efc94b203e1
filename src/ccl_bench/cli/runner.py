"""What every command has around it: errors as messages, exit statuses, interruption, closed pipes."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from typing import TYPE_CHECKING, TextIO

from ccl_bench.base.errors import CclBenchError
from ccl_bench.report.formatting import plain

if TYPE_CHECKING:
    from collections.abc import Callable

    from cyclopts import App

_OUR_PACKAGES = {"", "ccl_bench", "tools"}

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_WAYS_OUT = dict.fromkeys(_NO_ROOM, "make room there, or write elsewhere")
_WAYS_OUT |= dict.fromkeys(_CLOSED, "check the permissions of it and of its folder, or name another place")
"""What to do about errors of the system that are no fault of this program."""

INTERRUPTED = 130
"""Exit status after Ctrl-C, as shells have it."""
CLOSED_PIPE = 141
"""Exit status after the reader of the output has gone, as shells have it."""


def run(program: str, build: Callable[[], App], arguments: list[str] | None = None) -> int:
    """Run the command that `build` makes and return its exit status.

    Expected errors become two lines on stderr; any other exception is a bug and passes.
    """
    for stream in (sys.stdout, sys.stderr):
        _never_fail_on_characters(stream)
    try:
        status = _called(build(), sys.argv[1:] if arguments is None else arguments)
        sys.stdout.flush()
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
        if error.errno not in _WAYS_OUT:
            raise
        what = "written" if error.errno in _NO_ROOM else "opened"
        place = error.filename or "the output"
        say(program, f"{place} cannot be {what}: {error.strerror}\n  fix: {_WAYS_OUT[error.errno]}")
        _forget_stdout()
        return CclBenchError.exit_status
    return status


def say(program: str, text: str) -> None:
    """Write one remark to stderr under the program's name."""
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write("".join(f"{plain(line)}\n" for line in f"{program}: {text}".splitlines()))


def _called(app: App, arguments: list[str]) -> int:
    from cyclopts import CycloptsError

    try:
        return app(arguments) or 0
    except CycloptsError as error:
        from ccl_bench.cli.usage import usage_error

        raise usage_error(error) from error


def _never_fail_on_characters(stream: TextIO) -> None:
    """Let names that the terminal's encoding lacks be printed with escapes."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure:
        reconfigure(errors="backslashreplace")


def _forget_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
