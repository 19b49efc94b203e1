"""Reader of PyTorch's pickles as plain data, so that no code in them can run.

Python's own unpickler imports and calls what a file names, hashes whatever a file takes for a key, and
reserves memory for what a file claims to hold. Admitted opcodes build numbers, texts, lists, tuples and
dictionaries, nothing else. A set becomes a list: its members need no hashing then, which a hostile file could
make last for ever.

To carry out one opcode after the other takes twelve times as long as Python's unpickler does. That one reads
a file of which all opcodes, arguments skipped, are found to be those of PyTorch's snapshots, none of which
calls or reserves anything. What it returns counts only where one opcode after the other would give the same.
"""

from __future__ import annotations

import functools
import gc
import io
import pickle
import re
import struct
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError
from ccl_bench.trace import memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

PROTOCOLS = range(2, 6)
"""Protocols that begin with their number; PyTorch writes 2 and 4, and 5 from Python 3.14."""

_CONTAINER_BYTES = 166
"""Memory of a list, tuple or dictionary with what is in it: what a file of 15 million of them took."""

_PLACE_BYTES = 75
"""Memory of a place in the memo."""

_COUNTED_TOGETHER = 1 << 16
"""Containers, or places in the memo, after which they are counted as held."""

_TEXTS = frozenset({str})
_DOUBLE = struct.Struct(">d")


class Refused(Exception):  # noqa: N818 (a reason, which the caller turns into an error with a place)
    """Why the bytes are not read on."""


def _too_much(claim: int, remaining: int) -> str:
    return f"claims {claim:,} bytes where {remaining:,} are left, probably because the file is truncated"


class Machine:
    """The state between two opcodes."""

    __slots__ = ("at", "code", "containers", "marked", "memo", "stack")

    def __init__(self, code: bytes) -> None:
        self.code = code
        self.at = 0
        """Where the next byte is read."""
        self.stack: list[object] = []
        self.marked: list[list[object]] = []
        """Stacks below a mark."""
        self.memo: dict[int, object] = {}
        self.containers = 0

    def taken(self, count: int) -> bytes:
        """Return the next bytes; a claim of more than there are is refused before anything is allocated."""
        end = self.at + count
        if end > len(self.code):
            raise Refused(_too_much(count, len(self.code) - self.at))
        content = self.code[self.at : end]
        self.at = end
        return content

    def number(self, width: int) -> int:
        """Return the next bytes as an unsigned number."""
        return int.from_bytes(self.taken(width), "little")

    def contained(self, container: object) -> None:
        """Push a container that was just made."""
        self.containers += 1
        if not self.containers % _COUNTED_TOGETHER:
            memory.hold(_COUNTED_TOGETHER * _CONTAINER_BYTES)
        self.stack.append(container)

    def remember(self, place: int) -> None:
        """Put the latest value into the memo."""
        self.memo[place] = self.stack[-1]
        if not len(self.memo) % _COUNTED_TOGETHER:
            memory.hold(_COUNTED_TOGETHER * _PLACE_BYTES)

    def items(self) -> list[object]:
        """Return the items since the last mark, and go back to those before it."""
        if not self.marked:
            raise Refused("has no mark before it")
        top, self.stack = self.stack, self.marked.pop()
        return top


def _filled(target: object, keys: list[object], values: list[object]) -> None:
    if type(target) is not dict or len(keys) != len(values):
        raise Refused("sets items of something that is not a dictionary")
    if not _TEXTS.issuperset(map(type, keys)):
        wrong = next(key for key in keys if type(key) is not str)
        raise Refused(f"takes {type(wrong).__name__} for a key; keys are texts")
    target.update(zip(keys, values, strict=True))


def _set_items(machine: Machine) -> None:
    items = machine.items()
    _filled(machine.stack[-1], items[::2], items[1::2])


def _set_item(machine: Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    _filled(machine.stack[-1], [key], [value])


def _extended(target: object, items: list[object]) -> None:
    if type(target) is not list:
        raise Refused("appends to something that is not a list")
    target.extend(items)


def _appends(machine: Machine) -> None:
    items = machine.items()
    _extended(machine.stack[-1], items)


def _append(machine: Machine) -> None:
    item = machine.stack.pop()
    _extended(machine.stack[-1], [item])


def _tuple(count: int) -> Callable[[Machine], None]:
    def build(machine: Machine) -> None:
        if len(machine.stack) < count:
            raise Refused("takes more items than there are")
        items = machine.stack[-count:]
        del machine.stack[-count:]
        machine.contained(tuple(items))

    return build


def _protocol(machine: Machine) -> None:
    version = machine.number(1)
    if version not in PROTOCOLS:
        raise Refused(f"asks for protocol {version}")


def _frame(machine: Machine) -> None:
    length, remaining = machine.number(8), len(machine.code) - machine.at
    if length > remaining:
        raise Refused(_too_much(length, remaining))


def _text(width: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(str(machine.taken(machine.number(width)), "utf-8", "replace"))


def _bytes(width: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.taken(machine.number(width)))


def _integer(width: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.number(width))


def _signed(machine: Machine) -> None:
    machine.stack.append(int.from_bytes(machine.taken(4), "little", signed=True))


def _long(width: int) -> Callable[[Machine], None]:
    def build(machine: Machine) -> None:
        raw = machine.taken(machine.number(width))
        machine.stack.append(int.from_bytes(raw, "little", signed=True))

    return build


def _constant(value: object) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(value)


def _mark(machine: Machine) -> None:
    machine.marked.append(machine.stack)
    machine.stack = []


def _put(width: int) -> Callable[[Machine], None]:
    return lambda machine: machine.remember(machine.number(width))


def _memoize(machine: Machine) -> None:
    machine.remember(len(machine.memo))


def _get(width: int) -> Callable[[Machine], None]:
    return lambda machine: machine.stack.append(machine.memo[machine.number(width)])


ADMITTED: dict[int, Callable[[Machine], None]] = {
    0x80: _protocol,
    0x95: _frame,
    ord("N"): _constant(None),
    0x88: _constant(True),
    0x89: _constant(False),
    ord("J"): _signed,
    ord("K"): _integer(1),
    ord("M"): _integer(2),
    0x8A: _long(1),
    0x8B: _long(4),
    ord("G"): lambda machine: machine.stack.append(_DOUBLE.unpack(machine.taken(8))[0]),
    0x8C: _text(1),
    ord("X"): _text(4),
    0x8D: _text(8),
    ord("C"): _bytes(1),
    ord("B"): _bytes(4),
    0x8E: _bytes(8),
    ord("("): _mark,
    ord("]"): lambda machine: machine.contained([]),
    0x8F: lambda machine: machine.contained([]),
    ord("l"): lambda machine: machine.contained(machine.items()),
    0x91: lambda machine: machine.contained(machine.items()),
    ord("a"): _append,
    ord("e"): _appends,
    0x90: _appends,
    ord("}"): lambda machine: machine.contained({}),
    ord("s"): _set_item,
    ord("u"): _set_items,
    ord(")"): lambda machine: machine.contained(()),
    0x85: _tuple(1),
    0x86: _tuple(2),
    0x87: _tuple(3),
    ord("t"): lambda machine: machine.contained(tuple(machine.items())),
    ord("q"): _put(1),
    ord("r"): _put(4),
    0x94: _memoize,
    ord("h"): _get(1),
    ord("j"): _get(4),
}
"""Every opcode that is carried out; each other one ends the reading."""


DEEPEST = 100
"""Containers inside each other; a memory snapshot has seven, a dump of the Flight Recorder five."""

_CALLING = "GLOBAL STACK_GLOBAL INST OBJ NEWOBJ NEWOBJ_EX REDUCE BUILD EXT1 EXT2 EXT4 PERSID BINPERSID"
"""Opcodes that import, call, or hand over to code."""


_STOP = ord(".")
_PROTO, _FRAME = 0x80, 0x95
_LEAST = 4
"""Bytes of the shortest pickle: its protocol, one opcode and STOP."""
_CONTAINERS = frozenset({dict, list, tuple})
_GET1, _GET4, _MEMOIZE = ord("h"), ord("j"), 0x94
_INT1, _INT2, _LONG, _MARK = ord("K"), ord("M"), 0x8A, ord("(")


@dataclass(frozen=True, slots=True)
class Unpickled:
    """Content of a pickle."""

    root: object
    containers: int
    """Lists, tuples and dictionaries that the file made; what is shared counts once."""


def unpickle(code: bytes, name: str, fix: str) -> Unpickled:
    """Return the content of a pickle; `name` names it in messages, and `fix` says how to write it again.

    Raises InputError at the first opcode that does more than build plain data, that claims more than
    the file holds, or that does not fit what precedes it; also if containers are nested too deep.
    """
    collecting = gc.isenabled()
    gc.disable()  # nothing that is made is garbage; walking it in between only costs time
    try:
        content = _usual(code)
    finally:
        if collecting:
            gc.enable()
    if content is not None:
        return content
    machine = Machine(code)
    try:
        _execute(machine)
        if machine.marked or len(machine.stack) != 1:
            raise Refused("comes before one whole value")
    except (Refused, IndexError, KeyError, OverflowError, MemoryError) as error:
        raise _refusal(machine, error, name, fix) from None
    _refuse_deep_nesting(machine.stack[0], name, fix)
    return Unpickled(machine.stack[0], machine.containers)


def _alternatives(forms: Iterable[tuple[int, bytes]]) -> bytes:
    """Return the pattern of a byte and the form that belongs to it."""
    return b"(?:" + b"|".join(re.escape(bytes([number])) + form for number, form in forms) + b")"


_MOST_TOGETHER = 1000
"""Items that Python's pickler sets or appends at a time."""
_MOST_SINGLE = 1000
"""Items that are set one by one, of which the key is not looked at."""
_SCALAR = b"N"
_OTHERS = b"}](uesa" + _SCALAR + bytes([_MEMOIZE])
"""Opcodes of containers, and what stands for all others."""

_FRAMED_PROTOCOLS = (4, 5)
"""Protocols whose pickles only MEMOIZE puts anything into the memo of; others are not looked through."""
_FRAMED = b"\x80\x04\x95"


_LONG_TEXT = re.compile(rb"X(?=(.[\x01-\x0f])\x00\x00)", re.DOTALL)
"""What may begin a text of 256 to 4,095 bytes, such as the name of a function in C++."""


def _long_texts(body: bytes) -> tuple[int, ...]:
    """Return the possible lengths of texts of more than 255 bytes, for a pattern has to name each length."""
    return tuple(sorted({int.from_bytes(size, "little") for size in _LONG_TEXT.findall(body)}))


@functools.lru_cache(maxsize=4)
def _scalars(long_texts: tuple[int, ...]) -> re.Pattern[bytes]:
    """Return the pattern of opcodes that neither make nor fill containers, with their arguments.

    Every second one, from the first on, is a text or comes from the memo. So is every key of a dictionary
    then, because a container where a key has to be ends the reading: hashes of texts no file can foresee.
    From the memo a pair may come, the only tuple; there are 511 of them, one number being 0. Texts have up to
    255 bytes, or as many as `long_texts` names, and none that begins a surrogate, whole numbers up to nine.
    """
    longs = ((size, b"." * size) for size in (6, 7, 5, 8, 4, 3, 2, 1, 0, 9))
    texts = ((size, b"[^\xed]{%d}" % size) for size in range(256))
    long = b"|".join(re.escape(struct.pack("<I", size)) + b"[^\xed]{%d}" % size for size in long_texts)
    long_keys = [b"X(?:" + long + b")\x94?"] if long else []
    key = [b"j....", b"h.", b"\x8c" + _alternatives(texts) + b"\x94?", *long_keys]
    pairs, numbers = (rb"K\x00K.\x86\x94", rb"K.K\x00\x86\x94"), (b"K.", b"M..", b"J....", b"G........")
    other_values = (rb"[N\x88\x89]", b"\x8a" + _alternatives(longs), *pairs, *numbers)
    keys = b"(?:" + b"|".join(key) + b")"
    values = b"(?:" + b"|".join((*key[:2], *other_values, *key[2:])) + b")"
    return re.compile(keys + b"(?:" + values + keys + b"){0,%d}" % _MOST_TOGETHER + values + b"?", re.DOTALL)


class _Plain(pickle.Unpickler):
    """Python's unpickler without imports and other access outside the file."""

    def find_class(self, module: str, name: str) -> object:
        """Refuse to import."""
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: object) -> object:
        """Refuse objects that are kept elsewhere."""
        raise pickle.UnpicklingError(str(pid))


def _usual(code: bytes) -> Unpickled | None:
    """Return the content of a pickle; None if it is not as usual, for which `_execute` has the exact rules.

    Between a mark and LIST in the place of STOP, it must leave one thing behind and no mark. All containers
    must be in the memo, which only MEMOIZE fills. As many opcodes that set items as there are dictionaries
    with items show that nothing else was set an item of.
    """
    body = b"".join(_bodies(code))
    opcodes, runs = _scalars(_long_texts(body)).subn(_SCALAR, body)
    count, fills = opcodes.count(b"}") + opcodes.count(b"]"), opcodes.count(b"u") + opcodes.count(b"s")
    in_memo = opcodes.count(b"}\x94") + opcodes.count(b"]\x94")
    unmarked = opcodes.count(b"(") - opcodes.count(b"u") - opcodes.count(b"e")
    if not body or opcodes.translate(None, _OTHERS) or not count == in_memo == opcodes.count(_MEMOIZE):
        return None
    if unmarked or opcodes.count(_SCALAR) != runs or b"(e" in opcodes or opcodes.count(b"s") > _MOST_SINGLE:
        return None
    if not memory.may_hold(_memory_of(count + body.count(b"\x86"))):
        return None
    framed = b"".join((_FRAMED, struct.pack("<Q", len(body) + len(b"(l.")), b"(", body, b"l."))
    unpickler = _Plain(io.BytesIO(framed))
    try:
        roots = unpickler.load()
    except Exception:  # `_execute` finds the error, opcode by opcode
        return None
    if not isinstance(roots, list) or len(roots) != 1:
        return None
    memo: Iterable[Any] = unpickler.memo.copy().values()
    containers = [*{id(item): item for item in memo if type(item) in _CONTAINERS}.values()]
    mappings = [item for item in containers if type(item) is dict]
    tuples = sum(type(item) is tuple for item in containers)
    if len(containers) - tuples != count or sum(map(bool, mappings)) != fills:
        return None
    if not _TEXTS.issuperset(map(type, chain.from_iterable(mappings))) or _is_deep(roots[0]):
        return None
    memory.hold(_memory_of(len(containers)))
    return Unpickled(roots[0], len(containers))


def _bodies(code: bytes) -> list[memoryview]:
    """Return the opcodes of a pickle without its protocol, its frames and STOP; none if frames differ."""
    if len(code) < _LEAST or code[0] != _PROTO or code[1] not in _FRAMED_PROTOCOLS or code[-1] != _STOP:
        return []
    view, at = memoryview(code), 2
    if code[at] != _FRAME:
        return [view[at:-1]]
    bodies = []
    while at + 9 < len(code) and code[at] == _FRAME:
        start, at = at + 9, at + 9 + int.from_bytes(code[at + 1 : at + 9], "little")
        bodies.append(view[start : min(at, len(code) - 1)])
    return bodies if at == len(code) else []


def _memory_of(containers: int) -> int:
    """Return the memory that so many containers count for."""
    return containers // _COUNTED_TOGETHER * _COUNTED_TOGETHER * _CONTAINER_BYTES


def _execute(machine: Machine) -> None:
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
                machine.remember(len(memo))
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
                raise Refused("is not needed for plain data")
    finally:
        machine.at = at


def _refusal(machine: Machine, error: Exception, name: str, fix: str) -> InputError:
    """Return the error for the opcode at which the machine stopped."""
    import pickletools

    code, at = machine.code, machine.at
    if at >= len(code):
        return InputError(f"is truncated: it ends at byte {at:,} without a STOP", where=name, fix=fix)
    names = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
    opcode = names.get(code[at], f"unknown opcode 0x{code[at]:02x}")
    if opcode in _CALLING.split():
        why = "imports or calls code"
    elif isinstance(error, Refused):
        why = str(error)
    else:
        why = "does not fit what precedes it"
    return InputError(f"is refused: {opcode} at byte {at:,} {why}", where=name, fix=fix)


def _refuse_deep_nesting(root: object, name: str, fix: str) -> None:
    """Raise InputError if containers are nested deeper than any of PyTorch's, or hold themselves."""
    if _is_deep(root):
        message = f"is refused: it nests containers more than {DEEPEST} deep"
        raise InputError(message, where=name, fix=fix)


def _is_deep(root: object) -> bool:
    """Whether containers are nested deeper than any of PyTorch's, or hold themselves."""
    level: list[Any] = [root] if type(root) in _CONTAINERS else []
    for _ in range(DEEPEST):
        mappings = [item.values() for item in level if type(item) is dict]
        lists = [item for item in level if type(item) is not dict]
        items = chain(chain.from_iterable(mappings), chain.from_iterable(lists))
        level = [*{id(item): item for item in items if type(item) in _CONTAINERS}.values()]
        if not level:
            return False
    return True
