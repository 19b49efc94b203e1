"""Addresses in a card: they become links on published pages, so only well-formed ones are let through."""

from __future__ import annotations

import re
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator

SCHEMES = frozenset({"http", "https", "s3", "gs", "file", "sftp", "globus"})


def is_address(text: str) -> bool:
    """Whether `text` is a complete URL of a kind that may be shown as a link."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    if parts.scheme not in SCHEMES or re.search(r"[\s<>\"\x00-\x1f]", text):
        return False
    return bool(parts.netloc) or parts.scheme == "file"


def _address(text: str) -> str:
    if not is_address(text):
        raise ValueError("is not an address; write it in full, from https:// on")
    return text


def _address_or_path(text: str) -> str:
    has_scheme = re.match(r"[A-Za-z][A-Za-z0-9+.-]*:", text)
    return _address(text) if has_scheme else text


Address = Annotated[str, AfterValidator(_address)]
AddressOrPath = Annotated[str, AfterValidator(_address_or_path)]
