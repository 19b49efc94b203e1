"""The folders beside this module that are tools: those in which something defines `metric_cal`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ccl_bench.base.errors import CclBenchError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from types import ModuleType

FUNCTION = "metric_cal"

_HERE = Path(__file__).parent


def tool_names() -> list[str]:
    """Return the names of the tools."""
    return sorted(folder.name for folder in _HERE.iterdir() if _module_name(folder))


def _module_name(folder: Path) -> str:
    """Return the module of a folder that defines `metric_cal`, empty where none does; nothing is imported.

    It is the package itself, its module `metric`, or the one that is called as the folder.
    """
    modules = {"__init__": folder.name, "metric": f"{folder.name}.metric"}
    modules[folder.name] = f"{folder.name}.{folder.name}"
    for stem, name in modules.items():
        path = folder / f"{stem}.py"
        if path.is_file() and FUNCTION.encode() in path.read_bytes():
            return f"tools.{name}"
    return ""


def _module(name: str) -> ModuleType:
    """Import and return the module of a tool; whatever its import raises passes."""
    return importlib.import_module(_module_name(_HERE / name))


def described_tools(names: Iterable[str]) -> dict[str, ModuleType]:
    """Return the tools among the named ones that declare which metrics their dict is made of.

    One of which the import fails is none of them.
    """
    found = {}
    for name in names:
        with contextlib.suppress(Exception):
            found[name] = _module(name)
    return {name: module for name, module in found.items() if {"METRICS", "described"} <= {*vars(module)}}


def called(name: str, *given: object) -> dict[str, Any]:
    """Call a tool's `metric_cal` with as many of the arguments as it takes, and return its dict.

    A number becomes {name: number}; what it raises, or returns that JSON cannot hold, the reason for none.
    """
    try:
        function = getattr(_module(name), FUNCTION)
        found = msgspec.to_builtins(function(*_accepted(function, given)), enc_hook=_plain)
    except CclBenchError as error:
        return {f"{name}_reason": error.message}
    except Exception as error:  # a user's tool may raise anything, and takes no other down
        return {f"{name}_reason": f"failed: {type(error).__name__}: {error}"}
    if found is None:
        return {f"{name}_reason": "not measurable: the tool returned nothing"}
    return found if isinstance(found, dict) else {name: found}


def _accepted(function: Any, given: tuple[object, ...]) -> tuple[object, ...]:
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return given
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return given[: sum(kind in positional for kind in kinds)]


def _plain(value: Any) -> object:
    """Return a number of another library, such as numpy, as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is no number, text, list or dict")
