"""The beginning of a program in a forked process, as Python's own, and its end.

Taking everything apart would take longer than the program.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable


def become(words: list[str], environment: dict[str, str], folder: str) -> None:
    """Do what Python does when it starts with these words after its name."""
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    is_code = words[0] == "-c"
    sys.argv = ["-c", *words[2:]] if is_code else words
    sys.path[0] = "" if is_code else os.path.dirname(os.path.abspath(words[0]))  # noqa: PTH100, PTH120
    sys.path[1:1] = [place for place in environment.get("PYTHONPATH", "").split(os.pathsep) if place]
    sys.modules.pop("sitecustomize", None)  # Python has run that of its installation before; Debian's has one
    with contextlib.suppress(ImportError):
        import sitecustomize  # noqa: F401


def run_words(words: list[str]) -> None:
    """Run the code or the program that these words name."""
    if words[0] == "-c":
        exec(compile(words[1], "<string>", "exec"), sys.modules["__main__"].__dict__)
    else:
        runpy.run_path(words[0], run_name="__main__")


def run_to_the_end(program: Callable[[], object]) -> NoReturn:
    """Run a program and end with its status, as Python does save that nothing is taken apart.

    It is not for JAX, which may still be writing a profile that Python would wait for.
    """
    status: object = 0
    try:
        program()
    except SystemExit as ended:
        status = ended.code or 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
        status = 1
    if not isinstance(status, int):
        print(status, file=sys.stderr)
        status = 1
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status & 0xFF)
