"""polars and numpy, imported at first use: listing and explaining need neither, most commands no numpy."""

from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import polars as pl
else:
    # What polars frees goes back to the system after a second, so that a rank of 5 GB takes less memory.
    # After a tenth of that it takes as much, and a seventh more time for memory handed out anew.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:1000,muzzy_decay_ms:0")

    def _lazily(name: str) -> object:
        if name in sys.modules:
            return sys.modules[name]
        spec = importlib.util.find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        spec.loader = importlib.util.LazyLoader(spec.loader)
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
        return module

    class _Numpy:
        """Stands for numpy. A lazy loader would not do: threads may be the first to need it."""

        def __getattr__(self, name: str) -> object:
            attribute = getattr(importlib.import_module("numpy"), name)
            setattr(self, name, attribute)
            return attribute

    pl = _lazily("polars")
    np = _Numpy()

__all__ = ["np", "pl"]
