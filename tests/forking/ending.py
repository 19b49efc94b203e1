"""The end of a program in a forked process: taking everything apart takes longer than the program."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Callable


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
