"""numpy, imported at first use: most commands need none, and importing it takes as long as they do."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
else:

    class _Numpy:
        def __getattr__(self, name: str) -> object:
            found = getattr(importlib.import_module("numpy"), name)
            setattr(self, name, found)
            return found

    np = _Numpy()

__all__ = ["np"]
