"""Fixtures of the card tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def written(tmp_path: Path) -> Callable[[str, str], Path]:
    """Return a function that writes a file of a given name."""

    def write(name: str, text: str) -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return write


@pytest.fixture
def written_json(tmp_path: Path) -> Callable[[str, Any], Path]:
    """Return a function that writes a value as JSON to a file of a given name."""

    def write(name: str, value: Any) -> Path:
        path = tmp_path / name
        path.write_text(json.dumps(value), encoding="utf-8")
        return path

    return write
