"""JSON that every parser takes, whatever the files of a run are called."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable


def encode_json(value: object, enc_hook: Callable[[object], object] | None = None) -> bytes:
    """Return a value as indented JSON; bytes of file names that are not UTF-8 are escaped as `\\udcff`."""
    try:
        encoded = msgspec.json.encode(value, enc_hook=enc_hook)
    except UnicodeEncodeError:
        encoded = msgspec.json.encode(_escaped(msgspec.to_builtins(value, enc_hook=enc_hook)))
    return msgspec.json.format(encoded, indent=2)


def escape_undecodable(text: str) -> str:
    """Return text that can be written as UTF-8: bytes of file names that are not UTF-8 become `\\udcff`."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _escaped(value: object) -> object:
    if isinstance(value, str):
        return escape_undecodable(value)
    if isinstance(value, dict):
        return {_escaped(key): _escaped(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_escaped(each) for each in value]
    return value
