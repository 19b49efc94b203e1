"""Arithmetic on tables: no file is opened here.

`derived` declares tables, `intervals` holds the arithmetic of time and of windows, `facts` what is known
beside the traces. `steps`, `device`, `communication`, `pipeline`, `memory`, `serving` and `execution_trace`
define the tables of their field; the `findings` of each report what is doubtful in them. `load()` imports
them all.
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache


@cache
def load() -> None:
    """Import every module of this package and those in it, so that each derived table is known."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
