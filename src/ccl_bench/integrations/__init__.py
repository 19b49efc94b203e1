"""What puts ccl-bench into other programs: agents, dashboards, trackers of experiments.

`agents` serves runs to programs that speak the Model Context Protocol, `watching` measures a training while
it runs and shows the numbers to dashboards, `trackers` logs results to trackers of experiments. Packages
that only one of them needs are extras, imported where they are used; `require` names the extra where one is
missing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType


def require(module: str, extra: str) -> ModuleType:
    """Return a module of an optional package; UsageError that names the extra where it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        message = f"this needs the package {package}, which is not installed"
        raise UsageError(message, fix=f"pip install 'ccl-bench[{extra}]'") from error
