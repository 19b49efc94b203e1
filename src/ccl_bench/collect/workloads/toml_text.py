"""A torchtitan configuration as TOML."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping


def toml_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Return tables one level deep as TOML; JSON writes texts, numbers, true and false as TOML does."""
    return "\n".join(
        f"[{section}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in table.items())
        for section, table in tables.items()
    )
