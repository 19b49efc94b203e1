"""Read an instruction of an XLA program from its text, which is how a TPU names an event of it.

`%all-reduce = f32[8]{0} all-reduce(f32[8]{0} %x), channel_id=1, replica_groups=[4,2]<=[2,4]T(1,0)`

A profile may hold no programs; then the text is all there is. It says which groups communicate and how much,
not which devices run the program.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from ccl_bench.trace.hlo.instruction import (
    DONE,
    Axis,
    Instruction,
    Product,
    Scope,
    Shape,
    dot,
    iota_groups,
    mesh_groups,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

_BEGINNING = re.compile(r"\s*(?:ROOT )?%?(?P<name>[\w.\-]+) = ")
_OPCODE = re.compile(r"\s*(?P<opcode>[a-z][\w\-]*)\(")
_ARRAY = re.compile(r"(?<![\w%.])([a-z][a-z0-9]*)\[([\d,<= ]*)\]")
_NAMED = re.compile(r"%([\w.\-]+)")
_LISTED_GROUPS = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA_GROUPS = re.compile(r"replica_groups=\[(\d+),(\d+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH_GROUPS = re.compile(
    r"replica_groups=mesh\[(?P<sides>[^\]]*)\]"
    r"(?:, device_ids=\((?:\[(?P<shape>[\d,]+)\](?:T\((?P<order>[\d,]+)\))?|(?P<listed>[\d,]+))\))?"
    r" \{(?P<axes>[^}]*)\}"
)
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_BRACED = re.compile(r"\{([\d,]*)\}")
_CHANNEL = re.compile(r"channel_id=([1-9]\d*)")

_DIMENSIONS = {
    side: re.compile(rf"{side}_dims=\{{([\d,]*)\}}")
    for side in ("lhs_contracting", "rhs_contracting", "lhs_batch")
}


def read_instruction(text: str) -> Instruction | None:
    """Return the instruction in a text, or None where it is none."""
    begin = _BEGINNING.match(text)
    if not begin:
        return None
    shape_end = _end_of(text, begin.end(), " ")
    call = _OPCODE.match(text, shape_end)
    if not call:
        return None
    inside_end = _end_of(text, call.end(), ")")
    results, operands = text[begin.end() : shape_end], text[call.end() : inside_end]
    rest, opcode = text[inside_end:], call["opcode"]
    named = _NAMED.findall(operands)
    sent = tuple(_shapes(operands))
    return Instruction(
        name=begin["name"],
        opcode=opcode,
        operands=sent,
        results=tuple(_shapes(results)),
        groups=_groups(rest),
        pairs=tuple((pair[0], pair[1]) for pair in _lists(_PAIRS, rest)),
        scope=Scope("use_global_device_ids=true" in rest, _CHANNEL.search(rest) is not None),
        products=tuple(filter(None, [_dot(sent, rest)])) if opcode == "dot" else (),
        starts=named[0] if opcode.endswith(DONE) and named else "",
        is_host_transfer="is_host_transfer=true" in rest,
    )


def _end_of(text: str, start: int, closing: str) -> int:
    """Return where the first `closing` is that is in no bracket opened after `start`; else the end."""
    depth = 0
    for place in range(start, len(text)):
        letter = text[place]
        if not depth and letter == closing:
            return place
        depth += (letter in "([{") - (letter in ")]}")
    return len(text)


def _shapes(text: str) -> Iterator[Shape]:
    for dtype, sides in _ARRAY.findall(text):
        yield Shape(dtype, tuple(int(side) for side in re.findall(r"\d+", sides)))


def _groups(text: str) -> tuple[tuple[int, ...], ...] | None:
    if iota := _IOTA_GROUPS.search(text):
        order = _numbers(iota[4] or "")
        return iota_groups((int(iota[1]), int(iota[2])), _numbers(iota[3]), order)
    if mesh := _MESH_GROUPS.search(text):
        return _mesh_groups(mesh)
    if _LISTED_GROUPS.search(text):
        return tuple(group for group in _lists(_LISTED_GROUPS, text) if group)
    return None if "replica_groups=" in text else ()


def _mesh_groups(mesh: re.Match[str]) -> tuple[tuple[int, ...], ...] | None:
    """Return the groups of `mesh['a'=2,'b'=4], device_ids=([2,4]T(1,0)) {'b','a':(1)2}`."""
    sides = {name: int(size) for name, size in re.findall(r"'([^']*)'=(\d+)", mesh["sides"])}
    devices = _numbers(mesh["listed"] or "")
    if mesh["shape"]:
        laid = iota_groups(
            (1, math.prod(sides.values())), _numbers(mesh["shape"]), _numbers(mesh["order"] or "")
        )
        if laid is None:
            return None
        (devices,) = laid
    places = {name: place for place, name in enumerate(sides)}
    axes = [
        Axis(places.get(name, -1), int(before or 1), int(size or 0))
        for name, before, size in re.findall(r"'([^']*)'(?::\((\d+)\)(\d+))?", mesh["axes"])
    ]
    return mesh_groups([*sides.values()], devices, axes)


def _lists(pattern: re.Pattern[str], text: str) -> list[tuple[int, ...]]:
    found = pattern.search(text)
    return [_numbers(inner) for inner in _BRACED.findall(found[1])] if found else []


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in text.split(",") if number)


def _dot(operands: tuple[Shape, ...], text: str) -> Product | None:
    """Return the product that a dot computes, from the shapes of its factors."""
    if len(operands) < 2:
        return None
    sides = {
        side: _numbers(found[1]) if (found := pattern.search(text)) else ()
        for side, pattern in _DIMENSIONS.items()
    }
    contracting = sides["lhs_contracting"], sides["rhs_contracting"]
    return dot(operands[0], operands[1], contracting, sides["lhs_batch"])
