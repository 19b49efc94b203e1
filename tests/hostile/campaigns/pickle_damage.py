"""Damage to memory snapshots by way of pickle: opcodes, objects, and programs in the place of data."""

from __future__ import annotations

import pickle
import pickletools
from typing import TYPE_CHECKING, Any

import json_damage
from judging import FACT, MUST_SHOW

if TYPE_CHECKING:
    import random

PROGRAMS = (
    b"cos\nsystem\n(S'touch {mark}'\ntR.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x0ctouch {mark}\x85R.",
    b'cbuiltins\neval\n(S\'open("{mark}", "w")\'\ntR.',
    b"(S'{mark}'\nios\nmkdir\n.",
    b"\x80\x02ccollections\nOrderedDict\n)R.",
    b"\x80\x04N\x8c\x01x\x8c\x01y\x93b.",
)
MARK = b"ccl-bench-ran-a-program"
"""What a program would leave behind where it runs."""


def _opcodes(content: bytes) -> list[int]:
    """Return where opcodes stand, the last one left out; of the beginning of a long pickle alone."""
    ends = [at for _, (_, _, at) in zip(range(20_000), pickletools.genops(content), strict=False)]
    return [at or 0 for at in ends[:-1]] + [len(content)]


def _opcode_lost(content: bytes, chance: random.Random, _: bytes) -> bytes:
    places = _opcodes(content)
    index = chance.randrange(len(places) - 1)
    return content[: places[index]] + content[places[index + 1] :]


def _opcode_repeated(content: bytes, chance: random.Random, _: bytes) -> bytes:
    places = _opcodes(content)
    index = chance.randrange(len(places) - 1)
    return content[: places[index + 1]] + content[places[index] :]


def _opcode_odd(content: bytes, chance: random.Random, _: bytes) -> bytes:
    at = chance.choice(_opcodes(content)[:-1])
    return content[:at] + chance.choice([*map(bytes, zip(range(256)))]) + content[at + 1 :]


def _program_first(content: bytes, chance: random.Random, _: bytes) -> bytes:
    program = chance.choice(PROGRAMS).replace(b"{mark}", MARK)
    body = program.rstrip(b".").removeprefix(b"\x80\x04").removeprefix(b"\x80\x02")
    return content[:2] + body + b"0" + content[2:]


def _program_alone(content: bytes, chance: random.Random, _: bytes) -> bytes:
    return chance.choice(PROGRAMS).replace(b"{mark}", MARK)


def _doubled(content: bytes, chance: random.Random, _: bytes) -> bytes:
    """Put a list before the snapshot that would double in size with each of its few bytes."""
    bomb = b"]q\x00" + b"".join(
        b"]q" + bytes([n + 1]) + b"(h" + bytes([n]) + b"h" + bytes([n]) + b"e" for n in range(60)
    )
    return content[:2] + bomb + b"0" * 61 + content[2:]


def _length_huge(content: bytes, chance: random.Random, _: bytes) -> bytes:
    length = chance.choice((2**31, 2**40, 2**63))
    return content[:2] + b"\x8d" + length.to_bytes(8, "little") + content[2:]


def _of_object(change: Any) -> Any:
    def apply(content: bytes, chance: random.Random, _: bytes) -> bytes:
        document = pickle.loads(content)
        objects = json_damage.objects(document)
        change(chance.sample(objects, min(len(objects), 200)), chance)
        return pickle.dumps(document, protocol=chance.choice((2, 4, 5)))

    return apply


SNAPSHOT = {
    "opcode lost": (FACT, _opcode_lost),
    "opcode written twice": (FACT, _opcode_repeated),
    "odd opcode": (FACT, _opcode_odd),
    "program before the data": (MUST_SHOW, _program_first),
    "program in place of the data": (MUST_SHOW, _program_alone),
    "list that doubles": (FACT, _doubled),
    "huge length": (MUST_SHOW, _length_huge),
    "key lost": (FACT, _of_object(json_damage.key_lost)),
    "odd value": (FACT, _of_object(json_damage.value_odd)),
}
