"""Integrations into other programs: agents, dashboards, experiment trackers.

`agents` serves runs over the Model Context Protocol, `watching` measures a training while it runs and exports
the values to dashboards, `trackers` logs results to experiment trackers. Their packages are extras, imported
on demand; `require` names the extra of a missing package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from ccl_bench.base.errors import UsageError

if TYPE_CHECKING:
    from types import ModuleType


def require(module: str, extra: str) -> ModuleType:
    """Return a module of an optional package; raise UsageError with the extra if it is not installed."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        message = f"this needs the package {package}, which is not installed"
        raise UsageError(message, fix=f"pip install 'ccl-bench[{extra}]'") from error
