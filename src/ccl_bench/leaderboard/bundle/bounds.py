"""Bounds on the files of a bundle, checked on their bytes before they are decoded."""

from __future__ import annotations

import pkgutil
from functools import cache

import msgspec

from ccl_bench.base.errors import InputError
from ccl_bench.base.text import json_decoder


class Bound(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The bound on one file, as `bounds.toml` states it with its reason; 0 stands for none."""

    bytes: int = 0
    nodes: int = 0
    depth: int = 0
    fields: int = 0
    details: int = 0
    findings: int = 0
    items: int = 0
    rows: int = 0
    cells: int = 0


class _Bounds(msgspec.Struct, frozen=True):
    file: dict[str, Bound]


# TOML is decoded to the same types.
json_decoder(_Bounds)


@cache
def bounds() -> dict[str, Bound]:
    """Return the bound on each file of a bundle, by its name."""
    return msgspec.toml.decode(pkgutil.get_data(__package__, "bounds.toml") or b"", type=_Bounds).file


def check_nodes(name: str, raw: bytes) -> None:
    """Raise InputError if a file of JSON holds more values than its bound.

    Every value but the first follows a comma or an opening bracket. Those inside texts are counted too: real
    files were counted in the same way, and counting bytes takes a hundredth of the time of decoding them.
    """
    nodes = sum(map(raw.count, (b",", b"[", b"{")))
    if nodes > bounds()[name].nodes:
        problem = f"holds {nodes:,} commas and brackets; at most {bounds()[name].nodes:,} are accepted"
        raise InputError(problem, where=name, fix="publish the run in parts, such as fewer ranks")
