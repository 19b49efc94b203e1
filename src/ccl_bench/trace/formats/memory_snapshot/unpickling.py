"""Read a pickle as plain data, one opcode after the other, so that nothing in it can run.

Python's own unpickler is not used: it imports and calls what a file names, hashes whatever a file
takes for a key, and reserves memory for what a file claims to hold.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ccl_bench.base.errors import InputError
from ccl_bench.trace.formats.memory_snapshot.opcodes import ADMITTED, Machine, Refused

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

DEEPEST = 100
"""Containers inside each other; a snapshot has seven."""

_CALLING = frozenset(
    {
        "GLOBAL",
        "STACK_GLOBAL",
        "INST",
        "OBJ",
        "NEWOBJ",
        "NEWOBJ_EX",
        "REDUCE",
        "BUILD",
        "EXT1",
        "EXT2",
        "EXT4",
        "PERSID",
        "BINPERSID",
    }
)
"""Opcodes that import, call, or hand over to code."""


_WAY_OUT = "a memory snapshot is plain data: dump it again with torch.cuda.memory._dump_snapshot()"

_STOP = ord(".")
_GET1, _GET4, _MEMOIZE = ord("h"), ord("j"), 0x94
_INT1, _INT2, _LONG, _MARK = ord("K"), ord("M"), 0x8A, ord("(")


@dataclass(frozen=True, slots=True)
class Unpickled:
    """What a pickle holds."""

    root: object
    containers: int
    """Lists, tuples and dictionaries that the file made; what is shared counts once."""


def unpickled(code: bytes, name: str) -> Unpickled:
    """Return what a pickle holds; `name` names it in messages.

    Raises InputError at the first opcode that does more than build plain data, that claims more than
    the file holds, or that does not fit what stands before it; also where containers are nested too deep.
    """
    machine = Machine(code)
    try:
        _carry_out(machine)
        if machine.marked or len(machine.stack) != 1:
            raise Refused("comes before one whole value")
    except (Refused, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise _refusal(machine, error, name) from None
    _refuse_deep_nesting(machine.stack[0], name)
    return Unpickled(machine.stack[0], machine.containers)


def _carry_out(machine: Machine) -> None:
    """Carry out opcodes up to the last one; where one fails, `machine.at` is its place.

    The commonest are carried out here, because a function call for each takes twice the time.
    """
    code, memo, stack = machine.code, machine.memo, machine.stack
    at = 0
    try:
        while (opcode := code[at]) != _STOP:
            if opcode == _GET1:
                stack.append(memo[code[at + 1]])
                at += 2
            elif opcode == _GET4:
                stack.append(memo[int.from_bytes(code[at + 1 : at + 5], "little")])
                at += 5
            elif opcode == _MEMOIZE:
                memo[len(memo)] = stack[-1]
                at += 1
            elif opcode == _INT2:
                stack.append(code[at + 1] | code[at + 2] << 8)
                at += 3
            elif opcode == _INT1:
                stack.append(code[at + 1])
                at += 2
            elif opcode == _LONG:
                end = at + 2 + code[at + 1]
                stack.append(int.from_bytes(code[at + 2 : end], "little", signed=True))
                at = end
            elif opcode == _MARK:
                machine.marked.append(stack)
                machine.stack = stack = []
                at += 1
            elif opcode in ADMITTED:
                machine.at = at + 1
                ADMITTED[opcode](machine)
                at, stack = machine.at, machine.stack
            else:
                raise Refused("is none that plain data needs")
    finally:
        machine.at = at


def _refusal(machine: Machine, error: Exception, name: str) -> InputError:
    """Return the error for the opcode at which the machine stopped."""
    import pickletools

    code, at = machine.code, machine.at
    if at >= len(code):
        return InputError(f"is cut short: it ends at byte {at:,} without a STOP", where=name, fix=_WAY_OUT)
    names = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
    opcode = names.get(code[at], f"unknown opcode 0x{code[at]:02x}")
    if opcode in _CALLING:
        why = "imports or calls code"
    elif isinstance(error, Refused):
        why = str(error)
    else:
        why = "does not fit what stands before it"
    return InputError(f"is refused: {opcode} at byte {at:,} {why}", where=name, fix=_WAY_OUT)


def _refuse_deep_nesting(root: object, name: str) -> None:
    """Raise InputError where containers are nested deeper than any snapshot's, or hold themselves."""
    level = [root]
    for _ in range(DEEPEST):
        level = list({id(inner): inner for outer in level for inner in _containers_in(outer)}.values())
        if not level:
            return
    message = f"is refused: it nests containers more than {DEEPEST} deep"
    raise InputError(message, where=name, fix=_WAY_OUT)


def _containers_in(outer: object) -> Iterator[object]:
    """Yield the containers right inside a container; none where it is no container."""
    inside: Iterable[object] = ()
    if isinstance(outer, dict):
        inside = outer.values()
    elif isinstance(outer, list | tuple):
        inside = outer
    return (item for item in inside if isinstance(item, dict | list | tuple))
