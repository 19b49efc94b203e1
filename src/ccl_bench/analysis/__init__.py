"""Arithmetic on tables: no file is opened here."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module of this package, so that each derived table is known."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
