"""Chakra execution traces, `<name>.<rank>.et`: metadata and nodes in protobuf, of schema 0.0.4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.trace.formats import Format, register
from ccl_bench.trace.formats.chakra.recognition import identity, recognises

if TYPE_CHECKING:
    from typing import BinaryIO

    from ccl_bench.trace.content import TraceContent

NAME = "chakra"


def _read(stream: BinaryIO, file: str) -> TraceContent:
    from ccl_bench.trace.formats.chakra.reader import read_chakra

    return read_chakra(stream, file)


CHAKRA = register(
    Format(
        name=NAME,
        profile="torch",
        revision=2,
        tables=frozenset({"et_nodes", "et_products", "et_communication", "et_groups"}),
        recognises=recognises,
        identity=identity,
        read=_read,
        suffixes=(".et", ".et.gz"),
        recorder="Chakra",
        may_be_alike=True,
    )
)
