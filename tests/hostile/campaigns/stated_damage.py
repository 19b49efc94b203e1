"""Damage to a workload card: lines, values, and what YAML allows beside plain values."""

from __future__ import annotations

from typing import TYPE_CHECKING

from judging import FACT

if TYPE_CHECKING:
    import random

VALUES = (
    *("", "null", "~", "yes", "-1", "0", "1e309", ".nan", ".inf", "0x7fffffffffffffffffff", "9" * 400),
    *("[1, [2, [3]]]", "{a: {b: c}}", "'unended", '"\\ud800"', "!!python/object/apply:os.system ['true']"),
    *(
        "!!binary aGVsbG8=",
        "!unknown x",
        "2001-01-01",
        "12:30:45",
        "&a [*a]",
        "*nowhere",
        "|\n  text",
        "@",
        "%",
    ),
    *("x" * 100_000, "\t", "a: b: c", "- - - -", "${HOME}", "../../../etc/passwd"),
)


def _value_odd(content: bytes, chance: random.Random, _: bytes) -> bytes:
    lines = content.decode().splitlines()
    at = chance.choice([i for i, line in enumerate(lines) if ":" in line])
    lines[at] = f"{lines[at].partition(':')[0]}: {chance.choice(VALUES)}"
    return "\n".join(lines).encode()


def _line_lost(content: bytes, chance: random.Random, _: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    del lines[chance.randrange(len(lines))]
    return b"".join(lines)


def _line_repeated(content: bytes, chance: random.Random, _: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    lines.insert(chance.randrange(len(lines)), chance.choice(lines))
    return b"".join(lines)


def _indented(content: bytes, chance: random.Random, _: bytes) -> bytes:
    lines = content.splitlines(keepends=True)
    at = chance.randrange(len(lines))
    lines[at] = chance.choice((b" ", b"\t", b"    ")) + lines[at]
    return b"".join(lines)


def _bomb(content: bytes, chance: random.Random, _: bytes) -> bytes:
    """Add aliases of aliases, which would be 10 to the power of 9 values."""
    levels = [b"l0: &l0 [x, x, x, x, x, x, x, x, x, x]"]
    levels += [b"l%d: &l%d [%s]" % (n, n, b", ".join([b"*l%d" % (n - 1)] * 10)) for n in range(1, 9)]
    return content + b"\n" + b"\n".join(levels)


def _nested(content: bytes, chance: random.Random, _: bytes) -> bytes:
    depth = chance.choice((100, 1_000, 20_000))
    return content + b"\ndeep: " + b"[" * depth + b"]" * depth


CARD = {
    "odd value": (FACT, _value_odd),
    "line lost": (FACT, _line_lost),
    "line written twice": (FACT, _line_repeated),
    "line indented": (FACT, _indented),
    "aliases of aliases": (FACT, _bomb),
    "nested deeply": (FACT, _nested),
}
