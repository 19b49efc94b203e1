"""Recorded files as plain JSON, for what is counted without the library: each is parsed once a process."""

from __future__ import annotations

import gzip
import json
from decimal import Decimal
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


@cache
def document(path: Path) -> dict[str, Any]:
    """Return the JSON of a file, which nobody changes; decimals keep every digit of a number."""
    raw = path.read_bytes()
    return json.loads(gzip.decompress(raw) if path.suffix == ".gz" else raw, parse_float=Decimal)
