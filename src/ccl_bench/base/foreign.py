"""Code of other packages is called so that it can only return or raise an Exception."""

from __future__ import annotations

import contextlib
import sys
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

T = TypeVar("T")


def is_foreign(function: Callable[..., object]) -> bool:
    """Whether a function comes from another package."""
    return not getattr(function, "__module__", "").startswith("ccl_bench.")


def call_contained(function: Callable[..., T], *arguments: Any, **named: Any) -> T:
    """Call a function; one of another package as of `contained`."""
    if not is_foreign(function):
        return function(*arguments, **named)
    with contained():
        return function(*arguments, **named)


@contextlib.contextmanager
def contained() -> Iterator[None]:
    """Send what code prints to stderr, where it spoils no answer; its attempt to exit becomes an error."""
    with contextlib.ExitStack() as stack:
        # Other threads cannot take their turn at replacing the stream of the whole process.
        if threading.current_thread() is threading.main_thread():
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
        try:
            yield
        except (Exception, KeyboardInterrupt):
            raise
        except BaseException as error:
            raise RuntimeError(f"{type(error).__name__}: {error}") from error


def reason_of(error: Exception) -> str:
    """Return an error as one text: its type and its message."""
    return f"{type(error).__name__}: {error}"
