"""A torchtitan configuration as TOML."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

_BARE = re.compile(r"[\w-]+", re.ASCII)


def toml_text(tables: Mapping[str, Any], above: str = "") -> str:
    """Return tables, and those inside them, as TOML."""
    inner = {key: value for key, value in tables.items() if isinstance(value, dict)}
    parts = [
        "".join(f"{_key(key)} = {toml_value(value)}\n" for key, value in tables.items() if key not in inner)
    ]
    if above and (parts[0] or not inner):
        parts[0] = f"[{above}]\n{parts[0]}"
    parts += [
        toml_text(table, f"{above}.{_key(name)}" if above else _key(name)) for name, table in inner.items()
    ]
    return "\n".join(part for part in parts if part)


def toml_value(value: Any) -> str:
    """Return a text, number, truth or list of them as TOML, which writes them as JSON does."""
    return json.dumps(value, ensure_ascii=False)


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else toml_value(name)
