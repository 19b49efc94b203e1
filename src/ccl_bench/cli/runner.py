"""What every command has around it: errors as messages, exit statuses, interruption, closed pipes.

A mistake in the command line reads as the other errors do.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import os
import shlex
import shutil
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from cyclopts import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from ccl_bench.base.errors import CclBenchError, UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.cli import PROGRAM
from ccl_bench.report.formatting import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from cyclopts import App, CycloptsError

SEE_HELP = "--help shows how it is used"


def usage_error(error: CycloptsError) -> UsageError:
    """Return the error, with what was probably meant."""
    match error:
        case UnknownCommandError():
            return _unknown_command(error)
        case UnknownOptionError():
            return _unknown_option(error)
        case UnusedCliTokensError():
            return UsageError(f"unexpected argument: {' '.join(error.unused_tokens or [])}", fix=SEE_HELP)
        case RepeatArgumentError():
            return UsageError(f"{error.token.keyword} is given several times", fix="give it once")
        case MissingArgumentError() if error.keyword is None and error.argument is not None:
            about = (error.argument.parameter.help or SEE_HELP).rstrip(".")
            return UsageError(f"{error.argument.name} is missing", fix=f"give it: {about}")
        case CoercionError():
            return _unfit_value(error)
        case ValidationError():
            return UsageError(_text(error).replace(". ", ": ", 1), fix=SEE_HELP)
    return UsageError(_text(error), fix=SEE_HELP)


_NUMBERS: dict[type | None, str] = {int: "a whole number", float: "a number"}


def _unfit_value(error: CoercionError) -> UsageError:
    text, _, choices = _text(error).partition(". Choose from: ")
    known = choices.partition(". Did you mean")[0].replace('"', "")
    number = _NUMBERS.get(error.target_type)
    if number and error.token:
        return UsageError(
            f"{error.token.keyword} {error.token.value} is not {number}", fix=f"write {number} without a unit"
        )
    return UsageError(text, fix=f"one of: {known}" if known else SEE_HELP)


def _text(error: CycloptsError) -> str:
    """Return what cyclopts says, as a clause."""
    text = str(error).strip().rstrip(".")
    return text[:1].lower() + text[1:]


def _unknown_command(error: UnknownCommandError) -> UsageError:
    words = error.unused_tokens or [""]
    word = words[0]
    if word.startswith("-"):
        return UsageError(f"unknown option {word}", fix=SEE_HELP)
    if "://" in word or Path(word).exists():
        return UsageError(f"{word} is a run and no command", fix=f"{PROGRAM} inspect {shlex.join(words)}")
    known = _commands(error.app)
    return UsageError(
        f"unknown command {word!r}", fix=did_you_mean(word, known) or f"known: {', '.join(known)}"
    )


def _commands(app: App | None) -> list[str]:
    return sorted(name for name in app or () if not name.startswith("-"))


def _unknown_option(error: UnknownOptionError) -> UsageError:
    word = (error.token.keyword or error.token.value).partition("=")[0]
    known = [name for argument in error.argument_collection for name in argument.names if name[:2] == "--"]
    fix = _written_elsewhere(word, known) or did_you_mean(word, known) or SEE_HELP
    return UsageError(f"unknown option {word}", fix=fix)


def _written_elsewhere(word: str, known: Collection[str]) -> str:
    """Return what to give in place of an option that other commands or programs have and this one lacks."""
    if word in {"--trace", "-t", "--run"}:
        return "name the run without an option"
    if word in {"--json", "--text", "--csv", "--html"} and "--format" in known:
        return f"give --format {word[2:]}"
    if word in {"--output", "-o"} and "--format" in known:
        return "end the command in > FILE: what it prints goes to stdout"
    return ""


_OUR_PACKAGES = {"", "ccl_bench", "tools"}

_NO_ROOM = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_CLOSED = {errno.EACCES, errno.EPERM, errno.EROFS}
_WAYS_OUT = dict.fromkeys(_NO_ROOM, "free space there, or write elsewhere")
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
    if arguments is None:
        # The process ends with the command: the interpreter need not look for garbage in all that is left.
        atexit.register(gc.freeze)
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
        for line in map(plain, f"{program}: {text}".splitlines()):
            sys.stderr.write(f"{_wrapped(line) if sys.stderr.isatty() else line}\n")


def _wrapped(line: str) -> str:
    """Return a line as a terminal shows it, broken between words and not inside them."""
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    columns = shutil.get_terminal_size().columns
    broken = textwrap.wrap(
        line, columns, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return "\n".join(broken)


def _called(app: App, arguments: list[str]) -> int:
    from cyclopts import CycloptsError

    try:
        return app(arguments) or 0
    except CycloptsError as error:
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
