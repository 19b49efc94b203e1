"""The folders beside this module that are tools: those in which something defines `metric_cal`."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import math
import sys
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


def tool_called(name: str) -> str:
    """Return the tool of a name in upper or lower case, empty where there is none."""
    names = tool_names()
    return name if name in names else next((tool for tool in names if tool.casefold() == name.casefold()), "")


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
    """Import and return the module of a tool; what it raises passes, and what it prints goes to stderr."""
    with contextlib.redirect_stdout(sys.stderr):
        return importlib.import_module(_module_name(_HERE / name))


def described_tools(names: Iterable[str]) -> dict[str, ModuleType]:
    """Return the tools among the named ones that declare which metrics their dict is made of.

    One of which the import fails is none of them.
    """
    modules = {}
    for name in names:
        with contextlib.suppress(Exception, SystemExit):
            modules[name] = _module(name)
    return {name: module for name, module in modules.items() if {"METRICS", "described"} <= {*vars(module)}}


def called(name: str, *arguments: object) -> dict[str, Any]:
    """Call a tool's `metric_cal` with as many of the arguments as it takes, and return its dict.

    A number becomes {name: number}; what it raises, or returns that JSON cannot hold, the reason for none.
    What it prints goes to stderr.
    """
    try:
        function = getattr(_module(name), FUNCTION)
        with contextlib.redirect_stdout(sys.stderr):
            answer = msgspec.to_builtins(function(*_accepted(function, arguments)), enc_hook=_plain)
    except CclBenchError as error:
        return {f"{name}_reason": error.message}
    except (Exception, SystemExit) as error:  # a user's tool may raise anything, and takes no other down
        return {f"{name}_reason": f"failed: {type(error).__name__}: {error}".removesuffix(": ")}
    if answer is None:
        return {f"{name}_reason": "not measurable: the tool returned nothing"}
    return _finite(answer if isinstance(answer, dict) else {name: answer})


def _finite(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a dict with a reason for each NaN and infinity; one in a list stays there too, as null."""
    explained: dict[str, Any] = {}
    for key, value in answer.items():
        items = value if isinstance(value, list) else [value]
        numbers = [item for item in items if isinstance(item, float) and not math.isfinite(item)]
        if not numbers or value is items:
            explained[key] = _finite(value) if isinstance(value, dict) else value
        if numbers:
            explained[f"{key}_reason"] = f"not measurable: the tool returned {numbers[0]}"
    return explained


def _accepted(function: Any, arguments: tuple[object, ...]) -> tuple[object, ...]:
    kinds = [parameter.kind for parameter in inspect.signature(function).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return arguments
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return arguments[: sum(kind in positional for kind in kinds)]


def _plain(value: Any) -> object:
    """Return a number of another library, such as numpy, as Python's own."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a {type(value).__name__} is no number, text, list or dict")
