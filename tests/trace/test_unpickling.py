"""A pickle is read as plain data or not at all: nothing in it runs, and it costs no more than its bytes."""

from __future__ import annotations

import contextlib
import copyreg
import io
import itertools
import os
import pickle
import pickletools
import random
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


def _outcome(code: bytes) -> object:
    """Return what a pickle holds with its types, or why it is refused."""
    try:
        found = unpickle(code, "x", "")
    except InputError as error:
        return str(error), error.where
    deep = unpickling._is_deep(found.root)
    return "too deep" if deep else repr(found.root), found.containers


def _same(code: bytes) -> None:
    found = _outcome(code)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unpickling, "_usual", lambda _: None)
        assert found == _outcome(code)


@pytest.fixture
def without_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing reach Python's unpickler."""
    monkeypatch.setattr(unpickling._Plain, "load", lambda _: pytest.fail("left to Python's unpickler"))


ARGUMENTS = [b"", b"\x00" * 16, b"\x01" * 16, b"\x05" * 16, b"0\n" * 8, b"posix\nsystem\n", b"\xff" * 16]


@pytest.mark.parametrize("opcode", pickletools.opcodes, ids=lambda opcode: opcode.name)
@pytest.mark.usefixtures("without_python")
def test_no_opcode_but_those_of_snapshots_reaches_the_unpickler_of_python(
    opcode: pickletools.OpcodeInfo,
) -> None:
    code = opcode.code.encode("latin-1")
    if opcode.name in USUAL:
        return
    for before in (
        b"",
        b"}\x94",
        b"]\x94(K\x01",
        b"\x8c\x01aK\x01",
        b"}\x94\x8c\x05posix\x8c\x06system",
        b"K\x01K\x02",
    ):
        for arguments in ARGUMENTS:
            for after in (b"", b"N", b"}\x94", b")R", b"u", b"e"):
                assert unpickling._usual(b"\x80\x04" + before + code + arguments + after + b".") is None


USUAL = {
    *("NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT"),
    *("SHORT_BINUNICODE", "MARK", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM"),
    *("SETITEMS", "TUPLE2", "MEMOIZE", "BINGET", "LONG_BINGET", "STOP"),
}
"""What snapshots consist of, and TUPLE2 right after two small numbers."""


@pytest.mark.parametrize(
    "code",
    [
        b"]r\xff\xff\xff\xff.",
        b"]r\x00\x00\x00\x01.",
        b"]r\x00\x00\x01\x00.",
        b"K\x00h\x00\x86.",
        b"]\x94h\x00h\x00\x86.",
        b"K\x00K\x00K\x00\x87.",
        b"}\x94(N\x85Nu.",
        b"\x8c\x03\xed\xa0\x80.",
        b"X\x03\x00\x00\x00\xed\xa0\x80.",
        b"X\xff\x00\x00\x00" + b"a" * 255 + b".",
        b"X\x00\x10\x00\x00" + b"a" * 4096 + b".",
        b"X\x00\x01\x01\x00" + b"a" * 65792 + b".",
        b"X\x00\x01\x00\x00" + b"\xed\xa0\x80" + b"a" * 253 + b".",
        b"X\x01\x01\x00\x00" + b"a" * 256 + b".",
        b"}\x94(X\x00\x01\x00\x00" + b"a" * 256 + b"K\x01K\x02\x86\x94u.",
        b"\x8a\x0a" + b"\x01" * 10 + b".",
        b"}\x94(.",
        b"].]\x94.",
        b"]\x94K.",
        b"K\x00K",
        b"]\x94\x8c\x05abc.",
        b"}\x94(K\x01Nu.",
        b"}\x94(\x8c\x01aK\x01NNu.",
        b"}\x94(\x8c\x01aK\x01}\x94Nu.",
        b"}\x94(G\x00\x00\x00\x00\x00\x00\x00\x00Nu.",
        b"}\x94(\x8c\x01aK\x01K\x02\x86\x94u.",
        b"}\x94(K\x00K\x02\x86\x94Nu.",
        b"}\x94" + b"\x8c\x01aNs" * 1001 + b".",
        b"\x8c\x01a\x94\x94.",
        b"]\x94\x94.",
    ],
)
@pytest.mark.usefixtures("without_python")
def test_what_may_reserve_or_hash_or_end_elsewhere_is_not_left_to_python(code: bytes) -> None:
    assert unpickling._usual(b"\x80\x04" + code) is None


_DOUBLED = b"".join(b"h%ch%c\x86\x94" % (place, place) for place in range(60))


def test_a_key_whose_hash_takes_for_ever_is_never_hashed() -> None:
    began = time.process_time()
    assert "takes tuple for a key" in _refused(b"\x80\x04}(K\x00K\x00\x86\x94" + _DOUBLED + b"Nu.")
    assert time.process_time() - began < 5


class _Keys(dict[object, object]):
    """A dictionary that takes no key but texts and pairs of which one number is 0."""

    def __setitem__(self, key: object, value: object) -> None:
        if type(key) is dict or isinstance(key, list | _Keys):
            raise TypeError
        assert type(key) is str or (type(key) is tuple and 0 in key), key
        super().__setitem__(key, value)


class _KeysSeen(pickle._Unpickler):  # type: ignore[name-defined,misc]
    dispatch = pickle._Unpickler.dispatch | {ord("}"): lambda self: self.append(_Keys())}  # type: ignore[attr-defined]


def test_no_file_chooses_the_hashes_of_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    reached = []

    def load(self: io.BytesIO) -> object:
        reached.append(self)
        return _KeysSeen(self).load()

    class Watched:
        def __init__(self, stream: io.BytesIO) -> None:
            self.load = lambda: load(stream)
            self.memo: dict[int, object] = {}

    monkeypatch.setattr(unpickling, "_Plain", Watched)
    values = [
        b"\x8c\x01a",
        b"\x8c\x01b\x94",
        b"h\x00",
        b"h\x01",
        b"h\x02",
        b"K\x05",
        b"N",
        b"K\x00K\x05\x86\x94",
    ]
    others = [b"}\x94", b"]\x94", b"(", b"u", b"e", b"a"]
    chance = random.Random(1)
    for _ in range(100_000):
        begin = chance.choice([b"}\x94(", b"}\x94(", b"]\x94", b"]\x94("])
        codes = b"".join(chance.choice(chance.choice([values, others])) for _ in range(chance.randrange(12)))
        with contextlib.suppress(pickle.UnpicklingError, TypeError, IndexError, AttributeError, KeyError):
            unpickling._usual(b"\x80\x04" + begin + codes + chance.choice([b"u.", b"e.", b"."]))
    assert len(reached) > 1000


@pytest.mark.parametrize("value", [b"K\x01", b"J\x00\x00\x00\x01", b"\x8a\x08" + b"\x01" * 8, b"N", b"\x88"])
def test_keys_are_texts(value: bytes) -> None:
    for items in (value + b"N", b"\x8c\x01aN" + value + b"N"):
        assert "for a key; keys are texts" in _refused(b"\x80\x04}\x94(" + items + b"u.")


def test_places_in_the_memo_count_as_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    monkeypatch.setattr(memory, "hold", held.append)
    unpickle(b"\x80\x04]" + b"\x94" * (1 << 18) + b".", "x", "")
    assert sum(held) >= (1 << 18) * 75


ODD_CODES = [
    *(b"N(e.", b"}\x94(e.", b"K\x05(e.", b"\x8c\x01a(e.", b"]\x94(}\x94(ee.", b"K\x01K\x02\x86\x94(e."),
    *(
        b"]\x94(K\x00K\x02\x86q\x05K\x00K\x02\x86q\x05e.",
        b"}\x94(\x8c\x01aK\x00K\x02\x86\x94h\x01Nu.",
        b"]\x94(]\x94\x8c\x01aah\x01K\x00}\x94se.",
        b"}\x94(\x8c\x01aN(eu.",
        b"N(u.",
        b"}\x94(\x8c\x01aN(e(eu.",
    ),
    *(b"]\x94K\x05aK\x00K\x06s.", b"]\x94(K\x05K\x06e(K\x00K\x07u.", b"]\x94K\x05a(u.", b"}\x94(u."),
    *(b"}\x94(K\x01Nu.", b"}\x94(NNu.", b"}\x94(\x88Nu.", b"}\x94(G\x00\x00\x00\x00\x00\x00\x00\x00Nu."),
    *(
        b"}\x94(K\x01K\x02\x86Nu.",
        b"}\x94(\x8c\x01aK\x01\x8c\x01aK\x02u.",
        b"}\x94(\x8c\x01a]\x94\x8c\x01aNu.",
    ),
    *(
        b"K\x05]\x94.",
        b"]\x94K\x05.",
        b"]\x94]\x94.",
        b"]\x94h\x00.",
        b"(]\x94.",
        b"(]\x94(.",
        b"]\x94.]",
        b"]\x94..",
    ),
    *(
        b"]\x94h\x00a.",
        b"}\x94(\x8c\x01ah\x00u.",
        b"].",
        b"}.",
        b"]]\x94a.",
        b"N.",
        b"\x8c\x01a.",
        b"K\x01K\x02\x86.",
    ),
    *(
        b"]\x94(K\x01K\x02\x86h\x00e.",
        b"]q\x05h\x05.",
        b"]q\x05\x94h\x01a.",
        b"]r\x05\x00\x00\x00j\x05\x00\x00\x00a.",
    ),
    *(b"\x8c\x02\xff\xfe.", b"]\x94(\x8c\x03\xed\xa0\x80\x8c\x03\xed\x95\x9ce.", b"]\x94(\x8c\x02\xc3\xa9e."),
    *(
        b"]\x94(\x8a\x00\x8a\x01\xff\x8a\x08\xff\xff\xff\xff\xff\xff\xff\x7f\x8a\x09\x00\x00\x00\x00\x00\x00\x00\x80\x00e.",
    ),
    *(
        b"\x80\x02]\x94.",
        b"\x80\x09]\x94.",
        b"\x80\x01]\x94.",
        b"]\x94h\x07a.",
        b"a.",
        b"e.",
        b"]\x94a.",
        b"}\x94K\x01a.",
    ),
    *(b"\x95" + struct.pack("<Q", size) + b"]\x94." for size in (0, 1, 2, 3, 4, 1 << 40, (1 << 64) - 1)),
    *(b"]\x94(" * depth + b"e" * depth + b"." for depth in (DEEPEST - 1, DEEPEST, DEEPEST + 1, 5000)),
]


@pytest.mark.parametrize("code", ODD_CODES, ids=lambda code: repr(code[:24]))
def test_odd_pickles_give_what_one_opcode_after_the_other_gives(code: bytes) -> None:
    for begin in (b"\x80\x04", b"\x80\x02", b""):
        _same(begin + code)


_OPCODES = st.sampled_from(
    [
        *(
            b"}\x94",
            b"]\x94",
            b"(",
            b"u",
            b"e",
            b"s",
            b"a",
            b"}",
            b"]",
            b"N",
            b"\x88",
            b"K\x00",
            b"K\x01K\x02\x86\x94",
        ),
        *(
            b"\x8c\x01a",
            b"\x8c\x01b\x94",
            b"h\x00",
            b"h\x01",
            b"j\x02\x00\x00\x00",
            b"q\x01",
            b"r\x03\x00\x00\x00",
        ),
        *(
            b"}\x94(\x8c\x01aK\x01u",
            b"]\x94(NNe",
            b"X\x01\x00\x00\x00c",
            b"X\x00\x01\x00\x00" + b"d" * 256,
            b"J\xff\xff\xff\xff",
            b"M\x01\x02",
            b"0",
            b".",
        ),
    ]
)


@given(st.lists(_OPCODES, max_size=14))
def test_any_opcodes_give_what_one_after_the_other_gives(opcodes: list[bytes]) -> None:
    for root in (b"", b"}\x94(\x8c\x01x", b"]\x94("):
        _same(b"\x80\x04" + root + b"".join(opcodes) + {b"": b".", b"]\x94(": b"e."}.get(root, b"u."))


_TEXT_OR_NUMBER = (
    st.text() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.none() | st.booleans()
)
_RECORDED = st.recursive(
    _TEXT_OR_NUMBER | st.tuples(st.integers(0, 255), st.integers(0, 255)),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=30,
)


@given(_RECORDED, st.integers(2, 5), st.binary(max_size=3), st.integers(0, 10_000), st.integers(0, 3))
def test_pickles_whole_or_damaged_give_what_one_opcode_after_the_other_gives(
    value: object, protocol: int, noise: bytes, place: int, dropped: int
) -> None:
    code = pickle.dumps({"a": value, "b": [value, value]}, protocol)
    _same(code)
    at = place % len(code)
    _same(code[:at] + noise + code[at + dropped :])


@pytest.mark.parametrize("protocol", [4, 5])
def test_a_snapshot_is_left_to_python(protocol: int) -> None:
    frames = [{"name": "forward", "filename": "model.py", "line": 5}]
    events = [
        {"action": "alloc", "addr": place << 40, "size": 512, "frames": frames} for place in range(2000)
    ]
    whole = {"segments": [{"blocks": [], "segment_pool_id": (0, 0)}], "device_traces": [events], "a": 1.5}
    found = unpickling._usual(pickle.dumps(whole, protocol))
    assert found is not None
    assert found.root == whole
    assert found.containers == 2009


def test_long_names_are_left_to_python() -> None:
    lengths = (255, 256, 257, 0x128, 0x12A, 0x12E, 0x158, 0x1ED, 511, 512, 4095)
    whole = [{"name": "é" * (length // 2) + "X" * (length % 2)} for length in lengths for _ in range(2)]
    code = pickle.dumps(whole, 4)
    found = unpickling._usual(code)
    assert found is not None
    assert found.root == whole
    for at, changed in itertools.product(
        range(0, len(code), 97), (b"", b"\xed", b"X\x00\x01\x00\x00", b"u.")
    ):
        _same(code[:at] + changed + code[at + 1 :])


def test_containers_count_as_held_before_any_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "may_hold", lambda count: count < 1 << 20)
    monkeypatch.setattr(unpickling._Plain, "load", lambda _: pytest.fail("left to Python's unpickler"))
    assert unpickling._usual(b"\x80\x04]\x94(" + b"]\x94" * (1 << 17) + b"e.") is None


def test_the_unpickler_of_python_refuses_to_import_even_where_it_is_asked_to(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    for code in (pickle.dumps(_Canary(canary)), b"\x80\x04K\x01Q."):
        with pytest.raises(pickle.UnpicklingError):
            unpickling._Plain(io.BytesIO(code)).load()
    assert not canary.exists()
