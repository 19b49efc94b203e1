"""Call a command with the words that follow its name; mistakes in them read as the other errors do."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import (
    CoercionError,
    CycloptsError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean
from ccl_bench.cli import PROGRAM

if TYPE_CHECKING:
    from collections.abc import Collection

    from cyclopts import App

SEE_HELP = "--help shows how it is used"


def call(app: App, arguments: list[str]) -> int:
    """Call a command and return its exit status; UsageError for words that it does not take."""
    try:
        return app(arguments) or 0
    except CycloptsError as error:
        raise usage_error(error) from error


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
