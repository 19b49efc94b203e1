"""Hold the native reader against the decoder on damaged and odd pieces of traces.

    python tests/trace/fuzzing.py --inputs 50000 --sanitized

compares that many pieces; with `--sanitized` by a library that watches every access to memory.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

from writing import compact, kernel, many, op, pretty

from ccl_bench.base.lazy_imports import pl
from ccl_bench.trace.formats.kineto.native.reader import native_rows
from ccl_bench.trace.formats.kineto.rows import RowBuilder
from ccl_bench.trace.native import library

ROOT = Path(__file__).parents[2]
SHARED = Path(library.__file__).parent
NATIVE = SHARED.parent / "formats" / "kineto" / "native"
SANITIZERS = ("-g", "-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")

_ODD = [
    *(b"\x00", b"\x1f", b"\x7f", b"\xff", b"\xc3\xa9", b"\xed\xa0\x80", b"\xf0\x9f\x98\x80", b"\xc0\xaf"),
    *(b'"', b"\\", b'\\"', b"\\u0041", b"\\ud83d\\ude00", b"\\ud800", b"\\u00", b"\\x", b"\\n"),
    *(b"{", b"}", b"[", b"]", b",", b":", b"},{", b"]}", b"[[[[", b'{"a":{"b":[', b" ", b"\n", b"\t\r"),
    *(b"null", b"true", b"false", b"NaN", b"inf", b"nul", b"-", b"+1", b"01", b"1.", b".5", b"-0", b"1e5"),
    *(b"1e400", b"1e-400", b"1E+2", b"9223372036854775807", b"9223372036854775808", b"-9223372036854775808"),
    *(b"-9223372036854775809", b"18446744073709551616", b"1" * 30, b"1" * 400, b"0." + b"3" * 40, b"1.0"),
    *(b"4458676803517.8925", b"4458676803517.89200", b"1650000000123456.789", b"2305843009213693.952"),
    *(b'"7"', b'""', b'"stream 7"', b"[1,2,3]", b"[]", b"[1,null]", b"[1.5]", b'["1"]', b"{}", b"[[1]]"),
    *(b'"[1, 2, 3]"', b"[9999999999,9999999999,99]", b'"args":{"device":1},', b'"ts":1,', b'"name":null,'),
    *(b'"cat":"kernel",', b'"cat":"gpu_memset",', b'"cat":"strange",', b'"cat":null,', b'"ph":"s",'),
    *(b'"External id":5,', b'"external id":6,', b'"Collective name":"x",', b'"Seq":[1],', b'"dtype":1,'),
    *(b'"Concrete Inputs":["",{"a":[1]}],', b'"grid":[2,3,4],', b'"name":"nccl:x",', b'"\\u0070h":"s",'),
]


def seeds() -> list[bytes]:
    """Return traces with every kind of event, in three layouts."""
    events = [
        *many(4),
        kernel("ncclDevKernel", 30, grid=[2, 3, 1], block=[64, 1, 1], **{"Collective name": "allreduce"}),
        kernel(
            "gemm", 31.125, **{"blocks per SM": 0.48, "est. achieved occupancy %": 37, "shared memory": 0}
        ),
        op("record_param_comms", 33, **{"External id": 9, "Process Group Ranks": [0, 1], "Seq": 3}),
        op(
            "c10d::allreduce_",
            34,
            **{"Input Dims": [[[2, 3]]], "Input type": ["float"], "x": {"y": [{}, []]}},
        ),
        {"ph": "s", "id": 1, "pid": 1, "tid": 2, "ts": 3, "cat": "fwdbwd", "name": "fwdbwd"},
        {"ph": "f", "id": 1, "pid": 1, "tid": 2, "ts": 4.5, "cat": "fwdbwd", "name": "fwdbwd", "bp": "e"},
        {"ph": "M", "name": "process_name", "pid": "Spans", "args": {"name": "python"}},
        {"ph": "X", "cat": "gpu_memcpy", "name": "Memcpy HtoD", "ts": 8, "dur": 1, "args": {"bytes": 64}},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "ProfilerStep#1", "ts": 1, "dur": 99, "tid": 7},
        {"ph": "X", "cat": "unheard", "name": "é", "ts": 1, "dur": 99},
    ]
    written = [layout(events) for layout in (pretty, compact)]
    return [text[text.index(b"[", text.index(b"traceEvents")) + 1 :] for text in written]


def mutated(text: bytes, rng: random.Random) -> bytes:
    """Return `text` with one to three changes, or none."""
    for _ in range(rng.choice((0, 1, 1, 1, 1, 2, 3))):
        at = rng.randrange(len(text) + 1)
        how = rng.randrange(6)
        if how == 0:
            text = text[:at] + rng.choice(_ODD) + text[at:]
        elif how == 1:
            text = text[:at] + rng.choice(_ODD) + text[at + rng.randrange(12) :]
        elif how == 2:
            text = text[:at] + text[at + rng.randrange(1, 30) :]
        elif how == 3:
            text = text[:at] + bytes([rng.randrange(256)]) + text[at + 1 :]
        elif how == 4:
            text = _with_other_value(text, rng)
        else:
            text = text[:at]
    return text


def _with_other_value(text: bytes, rng: random.Random) -> bytes:
    """Return `text` with something else behind a colon or before a key."""
    marks = [at for at, byte in enumerate(text) if byte in b":{"]
    if not marks:
        return text
    at = rng.choice(marks)
    end = at + 1
    if text[at : at + 1] == b":":
        while end < len(text) and text[end] not in b",}\n":
            end += 1
    return text[: at + 1] + rng.choice(_ODD) + text[end:]


def difference(text: bytes, *, must_end: bool) -> str | None:
    """Return in what the two ways of reading a piece differ; None for nothing, "" where it was refused."""
    native, reference = RowBuilder(native_rows()), RowBuilder(None)
    end = native.take_natively(text, must_end=must_end)
    if end is None:
        return "" if not native.events else "events of a refused piece were kept"
    expected_end = reference.take(text, must_end=must_end)
    if expected_end is None:
        return "the decoder refuses what was taken"
    if end != expected_end:
        return "the array ends elsewhere"
    found, expected = _tables(native), _tables(reference)
    wrong = [name for name, table in expected.items() if not table.equals(found[name], null_equal=True)]
    counts = native.ignored == reference.ignored and native.events == reference.events
    counts = counts and native.ambiguous >= reference.ambiguous
    return None if not wrong and counts else f"{wrong or 'counts'} differ"


def _tables(rows: RowBuilder) -> dict[str, pl.DataFrame]:
    rows.finish()
    return dict(rows.tables(0))


FULL = (511, 512, 513, 1023, 1024, 1025)
"""Numbers of rows and texts at which the native reader has used all of its memory, or one more or less."""

SHORT = range(0, 64, 7)
"""Lengths of texts that are shorter than the room behind each."""


def _events(count: int) -> bytes:
    return compact([op(f"op{number}", number) for number in range(count)]).partition(b"[")[2][:-2]


def campaign(inputs: int, seed: int = 1) -> int:
    """Compare that many pieces; return how many of them the native reader took."""
    for text in (*map(_events, FULL), *(_events(1)[:length] for length in SHORT)):
        if wrong := difference(text, must_end=False):
            raise AssertionError(f"{wrong}: {text[:999]!r}")
    rng = random.Random(seed)
    texts = seeds()
    taken = 0
    for _ in range(inputs):
        text = mutated(rng.choice(texts), rng)
        must_end = rng.random() < 0.7
        wrong = difference(text, must_end=must_end)
        if wrong:
            raise AssertionError(f"{wrong}: {text!r}")
        taken += wrong is None
    return taken


def compiled(
    folder: Path, *flags: str, compiler: str = "gcc", source: Path = NATIVE, shared: Path = SHARED
) -> Path:
    """Compile the native readers with other flags; raises where the compiler complains."""
    target = folder / "librows.so"
    sources = [
        f"-I{shared}",
        *(str(code) for place in (source, shared) for code in sorted(place.glob("*.c"))),
    ]
    strict = ("-fPIC", "-shared", "-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror")
    subprocess.run([compiler, *strict, *flags, "-o", str(target), *sources, "-lm"], check=True)
    return target


def sanitized_library(folder: Path, *, source: Path = NATIVE, shared: Path = SHARED) -> Path:
    """Compile the native readers so that they stop at the first wrong access, and read pages one by one."""
    return compiled(folder, *SANITIZERS, "-DLONGEST_RUN=1", source=source, shared=shared)


def sanitized(inputs: int, seed: int = 1, library: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a campaign in a process of its own, with a library that stops at the first wrong access."""
    with tempfile.TemporaryDirectory() as folder:
        target = library or sanitized_library(Path(folder))
        command = [
            sys.executable,
            __file__,
            "--inputs",
            str(inputs),
            "--seed",
            str(seed),
            "--library",
            str(target),
        ]
        return subprocess.run(command, env=watching(), capture_output=True, text=True, check=False)


def watching() -> dict[str, str]:
    """Return the environment in which a library compiled with SANITIZERS can be loaded."""
    runtime = [
        subprocess.check_output(["gcc", f"-print-file-name={name}"], text=True).strip()
        for name in ("libasan.so", "libubsan.so")
    ]
    return os.environ | {"LD_PRELOAD": ":".join(runtime), "ASAN_OPTIONS": "detect_leaks=0"}


def main() -> int:
    """Run a campaign as the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--library", type=Path, default=library.LIBRARY_FILE)
    parser.add_argument("--sanitized", action="store_true")
    chosen = parser.parse_args()
    if chosen.sanitized:
        done = sanitized(chosen.inputs, chosen.seed)
        print(done.stdout + done.stderr, end="")
        return done.returncode
    with mock.patch.object(library, "LIBRARY_FILE", chosen.library):
        library._loaded.cache_clear()  # importing what this rests on has loaded the usual one
        if library.absence() is not None:
            print(f"no native reader: {library.absence()}")
            return 1
        taken = campaign(chosen.inputs, chosen.seed)
    print(f"{chosen.inputs} pieces read alike; {taken} of them natively")
    return 0


if __name__ == "__main__":
    sys.exit(main())
