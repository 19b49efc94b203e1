"""Facts with a source, kept as data files: devices, dtypes, collectives, models and kernel types.

Each module reads the data file of its own name, and gives its rows as typed objects.
"""

from __future__ import annotations

import pkgutil
import tomllib
from functools import cache
from typing import Any


@cache
def load_data(name: str) -> dict[str, Any]:
    """Return the parsed data file `<name>.toml`."""
    raw = pkgutil.get_data(__package__, f"{name}.toml")
    if raw is None:
        raise FileNotFoundError(f"{name}.toml is missing from {__package__}")
    return tomllib.loads(raw.decode("utf-8"))
