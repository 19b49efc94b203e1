"""Packages of extras, imported on demand."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from ccl_bench.base.errors import UsageError


def require(module: str, extra: str) -> Any:
    """Return a module of an optional package; raise UsageError with the extra if it cannot be imported."""
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        package = (error.name or module).partition(".")[0]
        message = f"this needs the package {package}, which is not installed"
        raise UsageError(message, fix=f"pip install 'ccl-bench[{extra}]'") from error
