"""The native reader and the decoder make the same tables of the same bytes."""

import ctypes
import gzip
import shutil
from unittest import mock

import pytest
from both_ways import differences, needs_native, read_natively
from fuzzing import NATIVE, campaign, compiled, sanitized, sanitized_library
from hypothesis import given
from hypothesis import strategies as st
from writing import LAYOUTS, Text, bare, compact, event, finding_codes, kernel, many, names, op, pretty, read

from ccl_bench.trace import values
from ccl_bench.trace.formats.kineto.native import reader
from ccl_bench.trace.formats.kineto.native.reader import native_rows
from ccl_bench.trace.native import library

needs_gcc = pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc: apt-get install gcc")
pytestmark = needs_native

LINK = {"pid": 1, "cat": "fwdbwd", "name": "fwdbwd"}


def refused(data: bytes) -> int:
    """Return how many pieces of a trace the native reader leaves to the decoder."""
    assert differences(data) == []
    return read_natively(data)[1]


@pytest.mark.parametrize("write", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_ordinary_events_are_taken_natively(write):
    data = write(
        [
            *many(),
            kernel("ncclDevKernel", 50, grid=[4, 2, 1], block=[64, 1, 1], **{"Collective name": "allreduce"}),
            kernel("gemm", 51, **{"blocks per SM": 0.4848484992980957, "est. achieved occupancy %": 12}),
            event("gpu_memcpy", "Memcpy HtoD (Pageable -> Device)", 52, bytes=64, stream=7),
            event("gpu_memset", "Memset (Device)", 53, bytes=4, **{"external id": 3}),
            event("user_annotation", "ProfilerStep#1", 0, 100),
            event("gpu_user_annotation", "nccl:all_reduce", 50, 10, tid=7),
            event("cuda_runtime", "cudaLaunchKernel", 49, correlation=5, **{"External id": 3}),
            {"ph": "s", "id": 7, "tid": 1, "ts": 1} | LINK,
            {"ph": "f", "id": 7, "tid": 2, "ts": 60, "bp": "e"} | LINK,
            event("python_function", "file.py(3): <lambda \N{GREEK SMALL LETTER LAMDA}>", 1),
        ]
    )
    assert refused(data) == 0
    assert {name: table.height for name, table in read(data).tables.items() if table.height} == {
        "kernels": 2,
        "memcpy": 2,
        "cpu_ops": 40,
        "launches": 1,
        "annotations": 2,
        "collectives": 1,
        "autograd_links": 1,
    }


@pytest.mark.parametrize(
    "odd",
    [
        op(Text('"half \\ud83d of a pair"'), 1),
        op(Text('"half \\ude00 of a pair"'), 1),
        op(Text('"two first halves \\ud83d\\ud83d"'), 1),
        op(Text('"no digits \\u12g4"'), 1),
        op("x", Text("1.2345")),
        op("x", Text("1e3")),
        op("x", "1"),
        op("x", 1, tid="7"),
        op("x", 1, tid=Text("7.0")),
        op("x", 1, tid=True),
        event("unheard", "x", True),
        event("python_function", "x", 1, False),
        op("x", 1, **{"External id": "7"}),
        kernel("x", 1, grid=["1", 2, 3]),
        kernel("x", 1, grid="[1, 2, 3]"),
        kernel("x", 1, grid=[2**40, 2**40]),
        kernel("x", 1, **{"blocks per SM": "0.5"}),
        op("x", 1, extra=Text('"\\ud83d\\u0041"')),
        op("x", 1, extra=Text("[" * 80 + "]" * 80)),
        Text('{"ph": "X", "args": {"device": 1}, "args": {"stream": 1}}'),
        Text('{"ph": "X", "c\\u0061t": "cpu_op", "ts": 1, "dur": 1}'),
        Text('{"ph": null}'),
        Text('{"ph": "X", "name": 7}'),
        Text("7"),
    ],
    ids=str,
)
def test_anything_unusual_is_left_to_the_decoder(odd):
    assert refused(bare([op("first", 0), odd, op("last", 9)])) == 1


@pytest.mark.parametrize(
    "value",
    [
        *("0", "-0", "-7", "9223372036854775807", "9223372036854775808", "18446744073709551615"),
        *("123456789012345678901234567890", "null"),
    ],
)
def test_whole_numbers_are_the_same_up_to_the_last_digit(value):
    text = Text(value)
    assert refused(bare([op("x", 0, pid=text, tid=text, **{"External id": text, "external id": 5})])) == 0


@pytest.mark.parametrize(
    "time", ["0", "1", "-1.5", "0.001", "4458676803517.892", "1650000000123456.789", "12.3450", "7.1"]
)
def test_times_are_the_same_to_the_nanosecond(time):
    assert refused(bare([op("x", Text(time)), op("y", Text(time))])) == 0


@pytest.mark.parametrize(
    "value", ["0.1", "1e-05", "3", "0.48484849929809570", "123456789012345.67", "-2.5E-3"]
)
def test_real_numbers_are_the_same_to_the_last_bit(value):
    assert refused(bare([kernel("k", 1, **{"blocks per SM": Text(value)})])) == 0


def test_names_may_hold_any_character():
    data = bare([op(name, n) for n, name in enumerate(["\x7f", "é", "名前", "\N{GRINNING FACE}"])])
    raw = data.replace(b"\\u00e9", "é".encode())
    assert differences(raw) == differences(data) == []


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        (r"a \"quoted\" name", 'a "quoted" name'),
        (r"\\ \/ \b\f\n\r\t|", "\\ / \b\f\n\r\t|"),
        (r"\u0041\u00e9\u00E9\u20ac\uffff\u0000", "A\u00e9\u00e9\u20ac\uffff\0"),
        (r"\ud83d\ude00 \uD800\uDC00\udbff\udfff", "\U0001f600 \U00010000\U0010ffff"),
        (r"nccl\u003aall_reduce", "nccl:all_reduce"),
    ],
)
def test_escapes_in_names_are_read_natively(written, meant):
    data = bare([op("first", 0), op(Text(f'"{written}"'), 1), op("last", 9)])
    assert refused(data) == 0
    assert names(read(data)) == ["first", meant, "last"]


def test_escapes_in_categories_and_phases_are_read_natively():
    data = bare([Text('{"ph": "\\u0058", "cat": "cpu\\u005fop", "name": "x", "ts": 1, "dur": 1, "tid": 1}')])
    assert refused(data) == 0
    assert names(read(data)) == ["x"]


def test_bytes_that_are_no_text_are_left_to_the_salvage():
    data = bare([op("first", 0), op("name", 1), op("last", 2)]).replace(b"name", b"n\xffme", 2)
    assert differences(data) == []


def test_pieces_read_either_way_are_put_together_in_the_order_of_the_file(monkeypatch):
    monkeypatch.setattr(values, "BLOCK_BYTES", 300)
    odd = [op(f"op{n}", 5, extra=Text("[" * 80 + "]" * 80) if n % 3 == 0 else 0) for n in range(60)]
    data = compact(odd)
    assert 1 < refused(data) < 60
    assert names(read(data)) == [event["name"] for event in odd]


def test_unknown_categories_are_counted_alike():
    data = bare([event("strange", "x", n) for n in range(3)] + [event("odder", "y", 5), {"ph": "X"}])
    assert refused(data) == 0
    assert finding_codes(read(data)) == ["categories-unknown"]


@pytest.mark.parametrize("size", [*range(64, 400, 17), 1 << 20])
def test_where_pieces_are_cut_changes_nothing(monkeypatch, size):
    monkeypatch.setattr(values, "BLOCK_BYTES", size)
    for write in LAYOUTS.values():
        assert differences(write([*many(20), kernel("k", 50, grid=[1, 2, 3])])) == []


def test_a_trace_cut_anywhere_is_salvaged_alike():
    data = pretty(many(4))
    for end in range(0, len(data), 11):
        assert differences(data[:end]) == []


_value = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
_KEYS = [word.text.decode() for word in reader.native_words() if word.role <= 1]
_event = st.dictionaries(st.sampled_from(_KEYS) | st.text(max_size=4), _value, max_size=9)
_likely = st.builds(
    event,
    st.sampled_from([word.text.decode() for word in reader.native_words() if word.role == 2]),
    st.text(max_size=9) | st.sampled_from(["nccl:x", "c10d::send", "record_param_comms"]),
    st.integers(0, 10**15) | st.floats(0, 1e9).map(lambda value: round(value, 3)),
    st.integers(0, 10**6) | st.none(),
    ph=st.sampled_from("XXXXsfM"),
)


@given(events=st.lists(_event | _likely, max_size=8), write=st.sampled_from([bare, compact]))
def test_random_events_are_read_alike(events, write):
    assert differences(write(events)) == []


def test_nothing_of_an_earlier_piece_is_read_behind_the_end_of_a_shorter_one():
    events = bare(many(6)).strip()[1:]
    rows = native_rows()
    for end in range(1, len(events)):
        assert rows.feed(events, must_end=True) == len(events)
        alone = native_rows().feed(events[:end], must_end=True)
        assert rows.feed(events[:end], must_end=True) == alone is None


def test_some_damaged_pieces_are_read_alike():
    assert campaign(200, seed=7) > 15


@needs_gcc
def test_no_access_of_the_native_reader_is_outside_its_memory(watched_library):
    done = sanitized(200, seed=3, library=watched_library)
    assert done.returncode == 0, done.stdout + done.stderr


BEYOND = {
    "a buffer without the room behind it": (
        "rows.c",
        " + PADDING;\n        if (!grown(&rows->buffer",
        ";\n        if (!grown(&rows->buffer",
    ),
    "one text more than there are": ("rows.c", "rows->texts.count, schema", "rows->texts.count + 1, schema"),
    "half of the bits that rows need": ("rows.c", "room / 8 + PADDING", "room / 16"),
    "a place too few for the ends of texts": ("texts.c", "(most + 1) *", "most *"),
}


def ended_beyond(tmp_path, change):
    """Return how a campaign ends where the reader was changed."""
    file, before, after = change
    source = tmp_path / "native"
    shutil.copytree(NATIVE, source)
    text = (source / file).read_text()
    assert text.count(before) == 1
    (source / file).write_text(text.replace(before, after))
    return sanitized(1, library=sanitized_library(tmp_path, source=source))


@needs_gcc
def test_an_access_outside_of_its_memory_would_be_seen(tmp_path):
    done = ended_beyond(tmp_path, BEYOND["a place too few for the ends of texts"])
    assert done.returncode
    assert "ERROR: AddressSanitizer: " in done.stderr


@needs_gcc
def test_the_source_compiles_without_a_warning(tmp_path):
    assert compiled(tmp_path, "-O3", "-Wshadow", "-Wconversion", "-Wno-sign-conversion").exists()


def test_the_recorded_runs_are_read_natively_and_alike(corpus, request):
    runs = [*corpus.glob("kineto/*"), *request.config.rootpath.glob("examples/runs/*")]
    files = [min(run.glob("*.json.gz")) for run in runs if any(run.glob("*.json.gz"))]
    assert len(files) >= 7
    assert {file.name: refused(gzip.decompress(file.read_bytes())) for file in files} == dict.fromkeys(
        [file.name for file in files], 0
    )


def _opened(words, tables):
    native = library.load_library(reader.FUNCTIONS)
    given = (ctypes.c_int32 * sum(map(len, tables)))(*(number for table in tables for number in table))
    handle = native.rows_open((reader.Word * len(words))(*words), len(words), given, len(tables))
    native.rows_close(handle)
    return handle


def _word(length=1, role=0, slot=0):
    return reader.Word(b"x" * 99, length, role, slot, 8)


BEYOND_LIMITS = {
    "tables": ([], [[1, 0]] * 17),
    "no table": ([], []),
    "columns": ([], [[33, *range(33)]]),
    "less than no columns": ([], [[-1]]),
    "a column's slot": ([], [[1, 64]]),
    "a key's slot": ([_word(slot=64)], [[1, 0]]),
    "a key's negative slot": ([_word(slot=-1)], [[1, 0]]),
    "a role": ([_word(role=4)], [[1, 0]]),
    "a negative role": ([_word(role=-1)], [[1, 0]]),
    "a long word": ([_word(57)], [[1, 0]]),
    "words": ([_word(n % 56, slot=0) for n in range(129)], [[1, 0]]),
}


@pytest.mark.parametrize(("words", "tables"), BEYOND_LIMITS.values(), ids=BEYOND_LIMITS)
def test_what_is_beyond_a_limit_is_refused(words, tables):
    assert _opened([_word(56, 3, 63)], [[32, *range(32)]] * 16) is not None
    assert _opened(words, tables) is None


def test_a_library_of_another_version_is_not_used(monkeypatch):
    library._loaded.cache_clear()
    monkeypatch.setattr(library, "REVISION", -1)
    try:
        assert library.load_library({}) is None
        assert library.absence() == "it was built for another version"
    finally:
        monkeypatch.undo()
        library._loaded.cache_clear()


def test_a_missing_library_is_no_failure(tmp_path):
    library._loaded.cache_clear()
    with mock.patch.object(library, "LIBRARY_FILE", tmp_path / "none.so"):
        assert library.absence() == "it was not built"
        assert names(read(bare([op("x", 1)]))) == ["x"]
    library._loaded.cache_clear()


def test_an_environment_variable_switches_it_off(monkeypatch):
    monkeypatch.setenv(library.VARIABLE, "0")
    assert library.absence() == "CCL_BENCH_NATIVE=0"
    assert names(read(bare([op("x", 1)]))) == ["x"]
