"""The data files of the catalog, read from the package and parsed once."""

from __future__ import annotations

import pkgutil
import tomllib
from functools import cache
from typing import Any


@cache
def facts(name: str) -> dict[str, Any]:
    """Return the parsed data file `<name>.toml`."""
    raw = pkgutil.get_data(__package__, f"{name}.toml")
    if raw is None:
        raise FileNotFoundError(f"{name}.toml is missing from {__package__}")
    return tomllib.loads(raw.decode("utf-8"))
