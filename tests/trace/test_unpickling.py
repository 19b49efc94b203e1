"""A pickle is read as plain data or not at all: nothing in it runs, and it costs no more than its bytes."""

from __future__ import annotations

import copyreg
import os
import pickle
import pickletools
import resource
import struct
import time
from collections import OrderedDict
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccl_bench.base.errors import InputError
from ccl_bench.trace.unpickling import ADMITTED, DEEPEST, unpickle

CALLING = {
    "GLOBAL": b"cposix\nsystem\n",
    "STACK_GLOBAL": b"\x8c\x05posix\x8c\x06system\x93",
    "INST": b"(\x8c\x01aiposix\nsystem\n",
    "OBJ": b"(\x8c\x05posixo",
    "NEWOBJ": b"N)\x81",
    "NEWOBJ_EX": b"N)}\x92",
    "REDUCE": b"N)R",
    "BUILD": b"]}b",
    "EXT1": b"\x82\x01",
    "EXT2": b"\x83\x01\x00",
    "EXT4": b"\x84\x01\x00\x00\x00",
    "PERSID": b"P1\n",
    "BINPERSID": b"K\x01Q",
}

START = b"\x80\x04}\x8c\x08segments"


def _refused(code: bytes) -> str:
    with pytest.raises(InputError) as caught:
        unpickle(code, "rank0_memory_snapshot.pickle", "dump it again")
    assert caught.value.where == "rank0_memory_snapshot.pickle"
    return caught.value.message


@pytest.mark.parametrize("name", CALLING)
def test_an_opcode_that_imports_or_calls_is_refused_by_name_and_place(name: str) -> None:
    part = CALLING[name]
    code = START + part + b"s."
    place = next(at for opcode, _, at in pickletools.genops(START + part + b".") if opcode.name == name)
    assert _refused(code) == f"is refused: {name} at byte {place:,} imports or calls code"


def test_every_opcode_of_python_is_admitted_or_refused_by_name() -> None:
    admitted = {chr(code) for code in ADMITTED} | {"."}
    for opcode in pickletools.opcodes:
        if opcode.code not in admitted:
            assert opcode.name in _refused(b"\x80\x04" + opcode.code.encode("latin-1") + b"\x00" * 16 + b".")


def test_no_admitted_opcode_imports_or_calls() -> None:
    names = {opcode.name for opcode in pickletools.opcodes if ord(opcode.code) in ADMITTED}
    assert names.isdisjoint(CALLING)


class _Canary:
    """What leaves a file behind when it is unpickled by Python."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple:
        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_pickle_that_would_run_a_command_runs_nothing(tmp_path: Path, protocol: int) -> None:
    canary = tmp_path / "canary"
    code = pickle.dumps({"segments": [], "device_traces": [_Canary(canary)]}, protocol)
    assert "imports or calls code" in _refused(code)
    assert not canary.exists()
    pickle.loads(code)
    assert canary.exists()


def test_a_registered_extension_is_not_called(tmp_path: Path) -> None:
    copyreg.add_extension("os", "getpid", 240)
    try:
        assert "EXT1" in _refused(b"\x80\x04\x82\xf0)R.")
    finally:
        copyreg.remove_extension("os", "getpid", 240)


@pytest.mark.parametrize(
    "value", [OrderedDict(a=1), Fraction(1, 2), Path("x"), 1j, bytearray(b"x"), print], ids=repr
)
def test_nothing_but_builtin_containers_is_admitted(value: object) -> None:
    assert "is refused" in _refused(pickle.dumps({"segments": value}, 5))


@pytest.mark.parametrize(
    ("code", "named"),
    [
        (
            b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"].",
            "FRAME at byte 2 claims 1,099,511,627,776 bytes",
        ),
        (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 44) + b"a.", "BINUNICODE8 at byte 2 claims"),
        (b"\x80\x04\x8e" + struct.pack("<Q", (1 << 64) - 1) + b"a.", "BINBYTES8 at byte 2 claims"),
        (b"\x80\x05\x96" + struct.pack("<Q", 1 << 44) + b"a.", "BYTEARRAY8 at byte 2"),
        (b"\x80\x04X" + struct.pack("<I", (1 << 32) - 1) + b"a.", "BINUNICODE at byte 2 claims"),
        (b"\x80\x04B" + struct.pack("<I", (1 << 32) - 1) + b"a.", "BINBYTES at byte 2 claims"),
        (b"\x80\x04\x8b" + struct.pack("<i", (1 << 31) - 1) + b"a.", "LONG4 at byte 2 claims"),
        (b"\x80\x04\x8b" + struct.pack("<i", -1) + b"a.", "LONG4 at byte 2 claims"),
    ],
)
def test_a_claim_of_more_than_the_file_holds_is_refused(code: bytes, named: str) -> None:
    assert named in _refused(code)


def test_a_place_far_out_in_the_memo_reserves_no_memory() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert unpickle(b"\x80\x04]r\xff\xff\xff\xff.", "x", "").root == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


_DEEP = 10_000


@pytest.mark.parametrize(
    "code",
    [
        b"]" * _DEEP + b"a" * (_DEEP - 1),
        b"(" * _DEEP + b"l" * _DEEP,
        b"(" * _DEEP + b"t" * _DEEP,
        b")" + b"\x85" * _DEEP,
        b"}" + b"\x8c\x01a}" * _DEEP + b"s" * _DEEP,
        b"]\x94(h\x00l\x94" + b"".join(b"(j" + struct.pack("<I", i + 1) + b"l\x94" for i in range(_DEEP)),
        b"]\x94h\x00a",
    ],
    ids=["APPEND", "LIST", "TUPLE", "TUPLE1", "SETITEM", "memo", "itself"],
)
def test_containers_nested_too_deep_are_refused(code: bytes) -> None:
    wrapped = b"\x80\x04(" + code + b"l."
    assert f"more than {DEEPEST} deep" in _refused(wrapped)


def test_what_is_shared_over_and_over_costs_nothing() -> None:
    doubled = b"".join(
        b"(j" + struct.pack("<I", i) + b"j" + struct.pack("<I", i) + b"l\x94" for i in range(60)
    )
    began = time.process_time()
    assert unpickle(b"\x80\x04(]\x94" + doubled + b"l.", "x", "").containers == 62
    assert time.process_time() - began < 5


def test_a_container_is_no_key() -> None:
    assert "takes tuple for a key" in _refused(pickle.dumps({(): 2}))
    assert "takes float for a key" in _refused(pickle.dumps({1.5: 2}))
    assert "takes int for a key" in _refused(pickle.dumps({1 << 70: 2}))


@pytest.mark.parametrize(
    "code",
    [
        b"",
        *(b"\x80\x04" + rest for rest in (b"", b"a.", b"e.", b"h\x05.", b"K", b"(.", b".", b"]]..", b"NNa.")),
        *(b"\x80\x04" + rest for rest in (b"NNNs.", b"\xff.", b"\x94.", b"}(K\x01u.", b"N\x87.", b"\x8c")),
        b"\x80\x04j\x01",
        b"\x80\x09].",
    ],
)
def test_what_is_no_pickle_is_an_input_error(code: bytes) -> None:
    assert _refused(code)


_PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
    max_leaves=30,
)


@given(_PLAIN, st.integers(3, 5))
def test_plain_data_are_read_as_python_reads_them(value: object, protocol: int) -> None:
    assert unpickle(pickle.dumps(value, protocol), "x", "").root == value


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(code: bytes) -> None:
    for whole in (code, b"\x80\x04" + code, START + code):
        try:
            unpickle(whole, "x", "")
        except InputError:
            continue


def test_a_set_is_read_as_a_list() -> None:
    assert unpickle(pickle.dumps({"a": {1}, "b": frozenset({2})}), "x", "").root == {"a": [1], "b": [2]}
