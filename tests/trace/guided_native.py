"""Fuzz the native reader guided by which of its lines a piece reaches, and hold it against the decoder.

    python tests/trace/guided_native.py --seconds 300

compiles it with a count for each branch and a watch on each access to memory (libFuzzer and AddressSanitizer,
which atheris brings; the compiler is ziglang's). Every piece that reached something new is then read by the
decoder too. A wrong access or another result is a finding, and left behind; the exit status is then not 0.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzing import NATIVE, ROOT, SHARED, difference, seeds

from ccl_bench.storage import open_file
from ccl_bench.trace.formats.kineto.native import reader
from ccl_bench.trace.native import library as native_library

if TYPE_CHECKING:
    from collections.abc import Iterator

LONGEST = 4096
"""Bytes of a piece."""
COUNTED = ("-fsanitize=fuzzer-no-link,address,undefined", "-fsanitize-trap=undefined")
LIMITS = (
    "-timeout=20",
    "-rss_limit_mb=4096",
    "-print_final_stats=1",
    "-mutate_depth=2",
    f"-max_len={LONGEST}",
)
HERE = Path(__file__)
SAID = re.compile(r"stat::number|\d+ kept pieces")


def instrumented(folder: Path, source: Path = NATIVE) -> Path:
    """Compile the native reader with counters, which are kept by what is loaded before all others."""
    zig = [sys.executable, "-m", "ziglang", "cc", "-c", "-I", source, "-I", SHARED, *COUNTED]
    objects = []
    for code in (*source.glob("*.c"), SHARED / "arrow.c", HERE.with_suffix(".c")):
        objects.append(folder / f"{code.stem}.o")
        subprocess.run([*zig, "-o", objects[-1], code], check=True, capture_output=True)
    library = folder / "librows.so"
    subprocess.run(["gcc", "-shared", "-o", library, *objects, "-lm"], check=True)
    return library


def begun(folder: Path, corpus: Path | None) -> None:
    """Write pieces to begin from: an event with each key, and one of each kind, made up or from real traces.

    Short ones, because a change must hit the byte that matters. A digit before them says must_end.
    """
    texts = [piece.decode() for piece in seeds()]
    for trace in sorted(corpus.glob("**/*.json*") if corpus else []):
        with open_file(trace) as stream:
            _, found, events = stream.read(1 << 20).decode(errors="replace").partition('"traceEvents"')
        if found:
            texts.append(events[events.index("[") + 1 :])
    kinds = {kind: text for piece in texts for kind, text in _kinds(piece)}
    pieces = [*kinds.values(), ",".join([*kinds.values()][:6]), *_single_keys()]
    for number, text in enumerate(pieces):
        (folder / f"{number}").write_bytes(f"{number % 2}{text}{']' * (number % 2)}".encode()[:LONGEST])


def _single_keys() -> Iterator[str]:
    for word in reader.native_words():
        key = word.text.decode()
        if word.role == 0:
            yield f'{{"{key}":1,"name":"n"}}'
        if word.role == 1:
            yield f'{{"ph":"X","cat":"kernel","name":"n","args":{{"{key}":1}}}}'


def _kinds(events: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Give the text of each event, under what kind of event it is."""
    at = 0
    with suppress(ValueError):  # the beginning of a file ends within an event
        while (at := events.find("{", at)) >= 0:
            event, end = json.JSONDecoder().raw_decode(events, at)
            arguments = event.get("args") or {}
            yield (event.get("ph"), event.get("cat"), *sorted(event), *sorted(arguments)), events[at:end]
            at = end


def words(file: Path) -> Path:
    """Write the words that the reader knows, as libFuzzer reads them."""
    known = {word.text.decode() for word in reader.native_words()}
    file.write_text("".join(f'"\\"{word}\\""\n' for word in sorted(known)), encoding="utf-8")
    return file


def guided(
    library: Path, folder: Path, *options: str, corpus: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Fuzz a library, then compare what was kept, in processes of their own; the folder keeps findings."""
    pieces = folder / "pieces"
    pieces.mkdir(parents=True)
    begun(pieces, corpus)
    known = f"-dict={words(folder / 'words')}"
    own = [*LIMITS, known, f"-artifact_prefix={folder}/", *options, str(pieces)]
    done = _watched("fuzz", str(library), *own)
    return done if done.returncode else _compared(library, pieces, done)


def _watched(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run this program with libFuzzer and AddressSanitizer loaded before all others."""
    import atheris

    watching = {"LD_PRELOAD": f"{atheris.path()}/asan_with_fuzzer.so", "ASAN_OPTIONS": "detect_leaks=0"}
    return subprocess.run(
        [sys.executable, str(HERE), *arguments],
        env=os.environ | watching,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def _compared(
    library: Path, pieces: Path, fuzzed: subprocess.CompletedProcess[str]
) -> subprocess.CompletedProcess[str]:
    done = _watched("compare", str(library), str(pieces))
    done.stderr = fuzzed.stderr + done.stderr
    return done


def _loaded(library: Path) -> ctypes.CDLL:
    native_library.LIBRARY_FILE = library
    native_library._loaded.cache_clear()
    found = native_library.load_library(reader.FUNCTIONS)
    if found is None:
        sys.exit(f"no native reader: {native_library.absence()}")
    return found


def fuzz(library: Path, options: list[str]) -> None:
    """Fuzz a library in this process, which ends with it."""
    native = _loaded(library)
    known, tables = reader.native_words(), reader.native_tables()
    native.guided_words(known, len(known), tables, len(reader.COLUMNS))
    given = (ctypes.c_char_p * (len(options) + 2))(b"guided", *(each.encode() for each in options), None)
    count = ctypes.c_int(len(options) + 1)
    ctypes.CDLL(None).LLVMFuzzerRunDriver(
        ctypes.byref(count), ctypes.byref(ctypes.pointer(given)), native.guided_piece
    )


def compare(library: Path, pieces: Path) -> None:
    """Read the kept pieces both ways; raise AssertionError at the first that differs."""
    _loaded(library)
    kept = sorted(pieces.iterdir())
    taken = 0
    for piece in kept:
        data = piece.read_bytes()
        wrong = difference(data[1:], must_end=data[:1] == b"1")
        if wrong:
            raise AssertionError(f"{wrong}: {data!r}")
        taken += wrong is None
    print(f"{len(kept)} kept pieces read alike; {taken} of them natively", file=sys.stderr)


def main() -> int:
    """Fuzz for as long as the command line says."""
    if sys.argv[1:2] == ["fuzz"]:
        fuzz(Path(sys.argv[2]), sys.argv[3:])
    if sys.argv[1:2] == ["compare"]:
        compare(Path(sys.argv[2]), Path(sys.argv[3]))
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=int, default=300)
    parser.add_argument("--inputs", type=Path, default=Path("build/fuzz"), help="where findings are left")
    chosen = parser.parse_args()
    where = os.environ.get("CCL_BENCH_CORPUS")
    corpus = Path(where, "kineto") if where else ROOT / "examples/runs"
    chosen.inputs.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="native-", dir=chosen.inputs))
    done = guided(instrumented(place), place / "found", f"-max_total_time={chosen.seconds}", corpus=corpus)
    lines = done.stderr.splitlines()
    print("\n".join(lines[-40:] if done.returncode else [line for line in lines if SAID.match(line)]))
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
