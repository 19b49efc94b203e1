"""What is wrong with a command line, said as the other errors are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cyclopts import (
    CoercionError,
    MissingArgumentError,
    RepeatArgumentError,
    UnknownCommandError,
    UnknownOptionError,
    UnusedCliTokensError,
    ValidationError,
)

from ccl_bench.base.errors import UsageError
from ccl_bench.base.registry import did_you_mean

if TYPE_CHECKING:
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
            return UsageError(f"{error.argument.name} is missing", fix=SEE_HELP)
        case CoercionError():
            text, _, choices = _text(error).partition(". Choose from: ")
            known = choices.partition(". Did you mean")[0].replace('"', "")
            return UsageError(text, fix=f"one of: {known}" if known else SEE_HELP)
        case ValidationError():
            return UsageError(_text(error).replace(". ", ": ", 1), fix=SEE_HELP)
    return UsageError(_text(error), fix=SEE_HELP)


def _text(error: CycloptsError) -> str:
    """Return what cyclopts says, as a clause."""
    text = str(error).strip().rstrip(".")
    return text[:1].lower() + text[1:]


def _unknown_command(error: UnknownCommandError) -> UsageError:
    word = (error.unused_tokens or [""])[0]
    if word.startswith("-"):
        return UsageError(f"unknown option {word}", fix=SEE_HELP)
    known = _commands(error.app)
    return UsageError(
        f"unknown command {word!r}", fix=did_you_mean(word, known) or f"known: {', '.join(known)}"
    )


def _commands(app: App | None) -> list[str]:
    return sorted(name for name in app or () if not name.startswith("-"))


def _unknown_option(error: UnknownOptionError) -> UsageError:
    word = (error.token.keyword or error.token.value).partition("=")[0]
    known = [name for argument in error.argument_collection for name in argument.names if name[:2] == "--"]
    return UsageError(f"unknown option {word}", fix=did_you_mean(word, known) or SEE_HELP)
