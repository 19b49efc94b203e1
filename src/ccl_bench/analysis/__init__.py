"""Arithmetic on tables: no file is opened here."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Import every module of this package and those in it, so that each derived table is known."""
    for module in pkgutil.walk_packages(__path__, f"{__name__}."):
        importlib.import_module(module.name)
