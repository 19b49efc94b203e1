r"""Reader of PyTorch's pickles as plain data, so that no code in them can run.

Python's unpickler imports and calls what a file names, reserves memory for what it claims to hold, and hashes
whatever it takes for a key: a file can choose numbers and tuples that make hashing last for ever. So all
opcodes are looked at first. Those that build numbers, texts, lists, tuples and dictionaries are admitted, if
the file holds what they claim, their places in the memo follow each other, and every key is a text, of which
no file can foresee the hash. For that it suffices to know of each object whether it is a text, list or
dictionary. Python's unpickler then reads what was admitted, and neither imports nor calls anything.
"""

from __future__ import annotations

import gc
import io
import pickle
import re
from collections import Counter
from typing import Any, NoReturn

from ccl_bench.base.errors import InputError
from ccl_bench.trace import memory

PROTOCOLS = range(2, 6)
"""Protocols that begin with their number; PyTorch writes 2 and 4, and 5 from Python 3.14."""

DEEPEST = 100
"""Marks that are open at a time; a memory snapshot has seven, a dump of the Flight Recorder five."""

_CONTAINER_BYTES = 166
"""Memory of a list, tuple or dictionary with what is in it: what a file of 15 million of them took."""

_PLACE_BYTES = 16
"""Memory of a place in the memo, which grows by doubling."""

_OTHER, _TEXT, _LIST, _DICT = range(4)
"""What an object is, as far as it matters."""

_STOP, _MARK, _APPEND, _APPENDS, _SETITEM, _SETITEMS, _TUPLE = b".(aesut"
_PROTO, _MEMOIZE = 0x80, 0x94
_NEW = {ord("}"): _DICT, ord("]"): _LIST, ord(")"): _OTHER}
_TUPLES = {0x85: 1, 0x86: 2, 0x87: 3}
_NUMBERS = {ord("K"): 1, ord("M"): 2, ord("J"): 4, ord("G"): 8, ord("N"): 0, 0x88: 0, 0x89: 0}
_GETS = {ord("h"): 1, ord("j"): 4}
_PUTS = {ord("q"): 1, ord("r"): 4}
_CLAIMS = {
    0x8C: (1, _TEXT),
    ord("X"): (4, _TEXT),
    0x8D: (8, _TEXT),
    ord("C"): (1, _OTHER),
    ord("B"): (4, _OTHER),
    0x8E: (8, _OTHER),
    0x8A: (1, _OTHER),
    0x95: (8, None),
}
"""Opcodes that begin with a length, the bytes of that length, and what is built; a frame holds opcodes."""

ADMITTED = frozenset({_MARK, _APPEND, _APPENDS, _SETITEM, _SETITEMS, _TUPLE, _MEMOIZE}).union(
    _NEW, _TUPLES, _NUMBERS, _GETS, _PUTS, _CLAIMS
)
_CALLING = b"cioRbPQ\x81\x82\x83\x84\x92\x93"
"""Opcodes that import, call, or hand over to code."""

# Nearly all of a snapshot are dictionaries of numbers, of what is in the memo, of the texts "N/A" and "", and
# of lists, some of which are of such dictionaries: patterns look at these ten times as fast as a loop does.
# The first byte of an opcode decides what follows, so that a search hardly goes back over what it passed.
_GET = rb"(?:h.|j....)"
_SCALAR = rb"[hK].|[jJ]....|M..|\x8a(?:\x06......|\x07.......|\x05.....|\x08........)|[N\x88\x89]"
_SHORT = rb"(?:\x03N/A|\x00)\x94"
_VALUE = rb"(?:%b|\x8c%b)" % (_SCALAR, _SHORT)
_SCALARS = rb"\]\x94(?:\((?:%b)+e)?" % _SCALAR
_FLAT = rb"\}\x94\((?:%b(?:%b|%b))+u" % (_GET, _VALUE, _SCALARS)
_NESTED = rb"\}\x94\((?:%b(?:%b|\]\x94\((?:%b)+e|%b))+u" % (_GET, _VALUE, _FLAT, _SCALARS)
_ROW = re.compile(rb"%b|%b" % (_NESTED, _SCALARS), re.DOTALL)

_PARTS = re.compile(
    rb"(%b\x8c?)(?:%b|%b)?u?|\}\x94\(|\]\x94(?:\((?:%b)+e|\(?)[ue]*" % (_GET, _SCALAR, _SHORT, _SCALAR),
    re.DOTALL,
)
"""Parts of such a row: a key, which is given, with its value; or the begin of a container."""

_LONGEST_ROW_BYTES = 1 << 16
"""Longest row that is searched by patterns, which bounds their memory."""
_ROWS_BYTES = 1 << 18
"""Rows whose parts are looked at together."""

_NOT_ASCII = re.compile(rb"[\x80-\xff]")


class _Refused(Exception):  # noqa: N818 (a reason, which gets its place and name below)
    """Why the bytes are not read on."""


class _PlainUnpickler(pickle.Unpickler):
    """Python's unpickler without imports and other access outside the file."""

    def find_class(self, module: str, name: str) -> NoReturn:
        """Refuse to import."""
        raise pickle.UnpicklingError(f"{module}.{name}")

    def persistent_load(self, pid: object) -> NoReturn:
        """Refuse objects that are kept elsewhere."""
        raise pickle.UnpicklingError(str(pid))


def unpickle(code: bytes, name: str, fix: str) -> tuple[Any, int]:
    """Return the content of a pickle, and how many lists, tuples and dictionaries the file makes.

    `name` names it in messages, and `fix` says how to write it again. Raises InputError at the first opcode
    that does more than build plain data, that claims more than the file holds, or that does not fit what
    precedes it. Question marks replace what is not ASCII in a text that is not UTF-8.
    """
    plain = bytearray(code)
    containers = _admit(plain, name, fix)
    is_collecting = gc.isenabled()
    gc.disable()  # nothing that is made is garbage; walking it in between only costs time
    try:
        return _PlainUnpickler(io.BufferedReader(io.BytesIO(plain))).load(), containers
    except pickle.UnpicklingError as error:  # a place in the memo that nothing was put into yet
        raise InputError(f"is refused: {error}", where=name, fix=fix) from error
    finally:
        if is_collecting:
            gc.enable()


def _admit(code: bytearray, name: str, fix: str) -> int:
    """Return how many containers a pickle makes, counted as held; InputError if it is not admitted."""
    at, containers = 0, 0
    kinds, below = bytearray(), list[bytearray]()  # objects on the stack since the last mark, and before it
    memo, text_gets = bytearray(), {b""}
    try:
        if code[0] != _PROTO or code[1] not in PROTOCOLS:
            raise _Refused("does not begin a pickle of protocol 2 to 5")
        at = 2
        while (opcode := code[at]) != _STOP:
            if opcode in _GETS:
                end = at + 1 + _GETS[opcode]
                kinds.append(memo[int.from_bytes(code[at + 1 : end], "little")])
                at = end
            elif opcode in _NEW:
                end = at
                while end < at + _ROWS_BYTES and (row := _ROW.match(code, end, end + _LONGEST_ROW_BYTES)):
                    kinds.append(_NEW[code[end]])
                    end = row.end()
                if parts := Counter(_PARTS.findall(code, at, end)):
                    # A container, an empty part, is put into the memo, and so is a text, whose first byte
                    # comes with its key. That it is a text is not noted: no key is so short.
                    memo += bytes(sum(count for part, count in parts.items() if len(part) in {0, 3, 6}))
                    containers += parts[b""]
                    for key in parts.keys() - text_gets:
                        if memo[int.from_bytes(key[1 : 1 + _GETS[key[0]]], "little")] != _TEXT:
                            raise _Refused("begins rows with a key that is not a text")
                        text_gets.add(key)
                    at = end
                else:
                    kinds.append(_NEW[opcode])
                    containers += 1
                    at += 1
            elif opcode in _NUMBERS:
                kinds.append(_OTHER)
                at += 1 + _NUMBERS[opcode]
            elif opcode == _MEMOIZE:
                memo.append(kinds[-1])
                at += 1
            elif opcode in _CLAIMS:
                width, kind = _CLAIMS[opcode]
                begin = at + 1 + width
                claimed, left = int.from_bytes(code[at + 1 : begin], "little"), len(code) - begin
                if claimed > left:
                    message = f"claims {claimed:,} bytes where {max(left, 0):,} are left"
                    raise _Refused(f"{message}, probably because the file is truncated")
                at = begin
                if kind is not None:
                    kinds.append(kind)
                    at += claimed
                if kind == _TEXT:
                    try:
                        str(code[begin:at], "utf-8")
                    except UnicodeDecodeError:
                        code[begin:at] = _NOT_ASCII.sub(b"?", code[begin:at])
            elif opcode == _MARK:
                if len(below) == DEEPEST:
                    raise _Refused(f"nests containers more than {DEEPEST} deep")
                below.append(kinds)
                kinds = bytearray()
                at += 1
            elif opcode == _SETITEMS:
                items, kinds = kinds, below.pop()
                _check_items(kinds[-1], items)
                at += 1
            elif opcode == _SETITEM:
                _check_items(kinds[-3], kinds[-2:])
                del kinds[-2:]
                at += 1
            elif opcode in (_APPEND, _APPENDS):
                if opcode == _APPENDS:
                    kinds = below.pop()
                else:
                    kinds.pop()
                if kinds[-1] != _LIST:
                    raise _Refused("appends to something that is not a list")
                at += 1
            elif opcode in _TUPLES or opcode == _TUPLE:
                if opcode == _TUPLE:
                    kinds = below.pop()
                for _ in range(_TUPLES.get(opcode, 0)):
                    kinds.pop()
                kinds.append(_OTHER)
                containers += 1
                at += 1
            elif opcode in _PUTS:
                end = at + 1 + _PUTS[opcode]
                if int.from_bytes(code[at + 1 : end], "little") != len(memo):  # else it would reserve memory
                    raise _Refused("leaves out places in the memo")
                memo.append(kinds[-1])
                at = end
            else:
                is_calling = opcode in _CALLING
                raise _Refused("imports or calls code" if is_calling else "is not needed for plain data")
        if below or len(kinds) != 1:
            raise _Refused("comes before one whole value")
    except (_Refused, IndexError) as error:
        raise _refusal(code, at, error, name, fix) from None
    memory.hold(containers * _CONTAINER_BYTES + len(memo) * _PLACE_BYTES)
    return containers


def _check_items(target: int, items: bytearray) -> None:
    """Refuse to fill what is no dictionary, or with keys that are no texts."""
    if target != _DICT or len(items) % 2:
        raise _Refused("sets items of something that is not a dictionary")
    if any(kind != _TEXT for kind in items[::2]):
        raise _Refused("takes something for a key that is not a text")


def _refusal(code: bytearray, at: int, error: Exception, name: str, fix: str) -> InputError:
    """Return the error for the opcode at a place."""
    import pickletools  # which takes 10 ms to import

    if at >= len(code):
        return InputError(f"is truncated: it ends at byte {len(code):,} without a STOP", where=name, fix=fix)
    names = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
    opcode = names.get(code[at], f"unknown opcode 0x{code[at]:02x}")
    why = error if isinstance(error, _Refused) else "does not fit what precedes it"
    return InputError(f"is refused: {opcode} at byte {at:,} {why}", where=name, fix=fix)
