"""A pickle is read as plain data or not at all: nothing in it runs, and it costs no more than its bytes."""

from __future__ import annotations

import contextlib
import copyreg
import io
import os
import pickle
import pickletools
import random
import re
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
from ccl_bench.trace import memory, unpickling
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
        (b"\x80\x04\x8b" + struct.pack("<i", (1 << 31) - 1) + b"a.", "LONG4 at byte 2"),
    ],
)
def test_a_claim_of_more_than_the_file_holds_is_refused(code: bytes, named: str) -> None:
    assert named in _refused(code)


@pytest.mark.parametrize("place", [b"r\xff\xff\xff\xff", b"r\x00\x00\x00\x01", b"q\x01"])
def test_a_place_in_the_memo_that_is_not_the_next_reserves_no_memory(place: bytes) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "leaves out places in the memo" in _refused(b"\x80\x04]" + place + b".")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000


@pytest.mark.parametrize("get", [b"h\x07", b"j\xff\xff\xff\xff"])
def test_a_place_in_the_memo_that_is_empty_is_refused(get: bytes) -> None:
    assert "does not fit what precedes it" in _refused(b"\x80\x04]\x94" + get + b"a.")
    assert "Memo value not found" in _refused(b"\x80\x04}\x94(\x8c\x01a\x94]\x94(" + get + b"eu.")


_DEEP = 200_000


def test_marks_nested_too_deep_are_refused() -> None:
    for mark in (b"(", b"](", b"}(\x8c\x01a"):
        assert f"more than {DEEPEST} deep" in _refused(b"\x80\x04" + mark * _DEEP)


@pytest.mark.parametrize(
    "code",
    [
        b"]" * _DEEP + b"a" * (_DEEP - 1),
        b")" + b"\x85" * _DEEP,
        b"}" + b"\x8c\x01a}" * _DEEP + b"s" * _DEEP,
        b")\x94" + b"".join(b"h%c\x85\x94" % place for place in range(256)) + b"\x87" * 128,
        b"]\x94h\x00a",
    ],
    ids=["APPEND", "TUPLE1", "SETITEM", "memo", "itself"],
)
def test_containers_in_each_other_are_read_and_freed_however_deep(code: bytes) -> None:
    unpickle(b"\x80\x04" + code + b".", "x", "")


def test_what_is_shared_over_and_over_costs_nothing() -> None:
    doubled = b"".join(
        b"](j" + struct.pack("<I", i) + b"j" + struct.pack("<I", i) + b"e\x94" for i in range(60)
    )
    began = time.process_time()
    assert unpickle(b"\x80\x04](]\x94" + doubled + b"e.", "x", "")[1] == 62
    assert time.process_time() - began < 5


@pytest.mark.parametrize("key", [(), 1.5, 1 << 70, None, True, b"a", frozenset("a")], ids=repr)
def test_a_key_is_a_text(key: object) -> None:
    for protocol in range(2, 6):
        assert "is refused" in _refused(pickle.dumps({"a": 1, key: 2}, protocol))
        assert "is refused" in _refused(pickle.dumps([key, {key: 2}], protocol))


_DOUBLED = b"".join(b"h%ch%c\x86\x94" % (place, place) for place in range(1, 60))


@pytest.mark.parametrize("end", [b"}(h\x3bNu", b"}h\x3bNs", b"}\x94(h\x3bh\x00u"], ids=repr)
def test_a_key_whose_hash_takes_for_ever_is_never_hashed(end: bytes) -> None:
    began = time.process_time()
    refused = _refused(b"\x80\x04]\x94(K\x00K\x00\x86\x94" + _DOUBLED + end + b"e.")
    assert "a key that is not a text" in refused
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    "code",
    [
        b"",
        *(b"\x80\x04" + rest for rest in (b"", b"a.", b"e.", b"h\x05.", b"K", b"(.", b".", b"]]..", b"NNa.")),
        *(b"\x80\x04" + rest for rest in (b"NNNs.", b"\xff.", b"\x94.", b"}(K\x01u.", b"N\x87.", b"\x8c")),
        *(
            b"\x80\x04" + rest
            for rest in (b"}(Nu.", b"](\x8c\x01aNu.", b"}(Ne.", b"\x8c\x01aNa.", b"N\x8c\x01aNs.")
        ),
        b"\x80\x04j\x01",
        b"\x80\x09].",
        b"].",
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
    assert unpickle(pickle.dumps(value, protocol), "x", "")[0] == value


def test_a_text_that_is_not_utf8_keeps_what_is_ascii() -> None:
    code = pickle.dumps(["caf\udce9", "café"], 4)
    assert unpickle(code, "x", "")[0] == ["caf???", "café"]
    assert unpickle(code.replace(b"caf\xc3\xa9", b"caf\xc3A"), "x", "")[0] == ["caf???", "caf?A"]


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(code: bytes) -> None:
    for whole in (code, b"\x80\x04" + code, START + code):
        with contextlib.suppress(InputError):
            unpickle(whole, "x", "")


def _events(count: int) -> list[dict[str, object]]:
    """Return events as PyTorch records them; each text that is not a key is another object."""
    frames = [{"name": f"forward {place}", "filename": "model.py", "line": place} for place in range(9)]
    return [
        {
            "action": "alloc",
            "addr": 0x7F00 << 32 | place,
            "size": 512,
            "stream": -1,
            "time_us": place << 44,
            "user_metadata": "".join([]),
            "compile_context": "/".join("NA"),
            "frames": frames if place % 3 else [dict(frame) for frame in frames[: place % 7]],
        }
        for place in range(count)
    ]


@pytest.mark.parametrize("protocol", range(2, 6))
def test_a_snapshot_is_read_as_python_reads_it(protocol: int) -> None:
    pool = (0, 300)
    segments = [{"blocks": _events(5), "segment_pool_id": pool, "a": 1.5} for _ in range(40)]
    whole = {"segments": segments, "device_traces": [_events(4000), []], "settings": {"x": ""}}
    code = pickle.dumps(whole, protocol)
    root, containers = unpickle(code, "x", "")
    assert root == whole
    put = {"BINPUT", "LONG_BINPUT", "MEMOIZE"}
    made = {"EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "TUPLE"}
    names = [opcode.name for opcode, _, _ in pickletools.genops(code)]
    assert containers == sum(name in made for name in names)
    held: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "hold", held.append)
        unpickle(code, "x", "")
    assert held == [containers * 166 + sum(name in put for name in names) * 16]


def test_memory_counts_as_held_before_anything_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(count: int) -> None:
        if count > 1 << 20:
            raise InputError("too much", where="rank0_memory_snapshot.pickle", fix="")

    monkeypatch.setattr(memory, "hold", refuse)
    monkeypatch.setattr(
        unpickling._PlainUnpickler, "load", lambda _: pytest.fail("left to Python's unpickler")
    )
    for code in (b"]\x94(" + b"]\x94" * (1 << 17) + b"e", b"]" + b"\x94" * (1 << 18)):
        assert "too much" in _refused(b"\x80\x04" + code + b".")


class _Keys(dict[object, object]):
    """A dictionary that takes no key but texts."""

    def __setitem__(self, key: object, value: object) -> None:
        assert type(key) is str, key
        super().__setitem__(key, value)


class _KeysSeen(pickle._Unpickler):  # type: ignore[name-defined,misc]
    dispatch = pickle._Unpickler.dispatch | {ord("}"): lambda self: self.append(_Keys())}  # type: ignore[attr-defined]


_OPCODES = [
    *(b"}\x94", b"]\x94", b"(", b"u", b"e", b"s", b"a", b"}", b"]", b"N", b"\x88", b"K\x00", b")"),
    *(b"\x8c\x01a", b"\x8c\x01b\x94", b"\x8c\x00\x94", b"\x8c\x03N/A\x94", b"X\x01\x00\x00\x00c"),
    *(b"h\x00", b"h\x01", b"h\x02", b"h\x8c", b"j\x02\x00\x00\x00", b"j\x01\x00\x00\x00"),
    *(
        b"K\x01K\x02\x86\x94",
        b"\x94",
        b"q\x01",
        b"r\x03\x00\x00\x00",
        b"\x85",
        b"\x87",
        b"t",
        b"J\xff\xff\xff\xff",
    ),
    *(b"}\x94(h\x00K\x01u", b"}\x94(h\x01\x8c\x03N/A\x94h\x00]\x94u", b"}\x94(h\x00]\x94(}\x94(h\x01Nueu"),
    *(b"]\x94(NNe", b"]\x94(h\x00e", b"\x8a\x06......", b"h}", b"j(\x94](", b"0", b"."),
]


def test_python_reads_what_is_admitted_and_no_key_of_it_but_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(1)
    codes = []
    for _ in range(60_000):
        begin = chance.choice(
            [b"", b"}\x94(\x8c\x01x\x94", b"]\x94(\x8c\x01x\x94", b"]\x94(K\x01\x85\x94" + b"N" * 9]
        )
        opcodes = b"".join(chance.choices(_OPCODES, k=chance.randrange(12)))
        codes.append(b"\x80\x04" + begin + opcodes + chance.choice([b"u.", b"e.", b"."]))
    read = []
    for code in codes:
        with contextlib.suppress(InputError):
            read.append((code, repr(unpickle(code, "x", ""))))
    assert len(read) > 1000
    monkeypatch.setattr(unpickling, "_PlainUnpickler", _KeysSeen)
    monkeypatch.setattr(unpickling, "_ROW", re.compile(b"(?!)"))
    monkeypatch.setattr(unpickling, "_PARTS", re.compile(b"(?!)"))
    for code, found in read:
        assert repr(unpickle(code, "x", "")) == found


_TEXT_OR_NUMBER = (
    st.text() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.none() | st.booleans()
)
_RECORDED = st.recursive(
    _TEXT_OR_NUMBER | st.tuples(st.integers(0, 255), st.integers(0, 255)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(_RECORDED, st.integers(2, 5), st.binary(max_size=3), st.integers(0, 10_000), st.integers(0, 3))
def test_damaged_pickles_are_refused_or_read_as_python_reads_them(
    value: object, protocol: int, noise: bytes, place: int, dropped: int
) -> None:
    code = pickle.dumps({"a": value, "b": [value, value], "c": _events(3)}, protocol)
    at = place % len(code)
    damaged = code[:at] + noise + code[at + dropped :]
    with contextlib.suppress(InputError):
        root, _ = unpickle(damaged, "x", "")
        with contextlib.suppress(UnicodeDecodeError):  # a text that is repaired
            assert repr(root) == repr(_KeysSeen(io.BytesIO(damaged)).load()) or "?" in repr(root)


def test_long_rows_and_many_rows_are_read_in_time() -> None:
    began = time.process_time()
    wide = [{f"key {number}": number for number in range(3000)} for _ in range(100)]
    assert unpickle(pickle.dumps(wide, 4), "x", "")[0] == wide
    flat = b"}\x94(" + b"h\x01K\x00" * 16_000 + b"]\x94(" + b"}\x94(h\x01Nu" * 9_000 + b"t"
    assert "is refused" in _refused(b"\x80\x04]\x94\x8c\x01a\x94" + flat * 90 + b".")
    assert time.process_time() - began < 10


def test_the_unpickler_of_python_refuses_to_import_even_where_it_is_asked_to(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for code in (pickle.dumps(_Canary(canary)), b"\x80\x04K\x01Q."):
        with pytest.raises(pickle.UnpicklingError):
            unpickling._PlainUnpickler(io.BytesIO(code)).load()
    assert not canary.exists()
