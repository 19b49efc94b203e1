"""Load trace files with each compared program, and measure it in this process.

Run as `python contestants.py NAME --cpus 0 --warm-up FILE FILE...`, it prints one JSON line.
It needs only the packages of the named contestant.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import importlib
import io
import json
import os
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cores

Load = Callable[[], object]

_ENOUGH_S = 1.0
"""Loads are repeated in one process until they took this long together."""

_MOST_LOADS = 5

_INFLATE_BYTES = 1 << 20

_DUCKDB_EVENTS = (
    "STRUCT(ph VARCHAR, cat VARCHAR, name VARCHAR, pid VARCHAR, tid VARCHAR, "
    "ts DOUBLE, dur DOUBLE, id VARCHAR, args JSON)[]"
)


def _tables(file: Path) -> Any:
    from ccl_bench import storage
    from ccl_bench.trace.formats.kineto.reader import read_kineto

    with storage.open_file(file) as stream:
        return read_kineto(stream, file.name)


def _content(file: Path) -> bytes:
    return gzip.decompress(file.read_bytes()) if file.suffix == ".gz" else file.read_bytes()


def ccl_bench(files: Sequence[Path]) -> Load:
    """Return ccl-bench's way from files to tables."""
    return lambda: [_tables(file) for file in files]


def hta(files: Sequence[Path]) -> Load:
    """Return HolisticTraceAnalysis' way from files to data frames, with its default settings."""
    trace = importlib.import_module("hta.common.trace").Trace

    def load() -> object:
        loaded = trace(trace_files={rank: str(file) for rank, file in enumerate(files)}, trace_dir="/")
        loaded.load_traces(use_multiprocessing=False)
        return loaded

    return load


def tracelens(files: Sequence[Path]) -> Load:
    """Return TraceLens' way from files to its trees of events."""
    analyzer = importlib.import_module("TraceLens.TreePerf").TreePerfAnalyzer
    return lambda: [analyzer.from_file(profile_filepath=str(file)) for file in files]


def json_load(files: Sequence[Path]) -> Load:
    """Return the standard library's way from files to objects."""

    def load() -> object:
        documents = []
        for file in files:
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
                documents.append(json.load(stream))
        return documents

    return load


def orjson(files: Sequence[Path]) -> Load:
    """Return orjson's way from files to objects."""
    loads = importlib.import_module("orjson").loads
    return lambda: [loads(_content(file)) for file in files]


def simdjson(files: Sequence[Path]) -> Load:
    """Return a parse by simdjson of bytes in memory, which creates no objects."""
    parser = importlib.import_module("simdjson").Parser()
    contents = [_content(file) for file in files]

    def load() -> object:
        for content in contents:
            parser.parse(content)
        return parser

    return load


def inflate(files: Sequence[Path]) -> Load:
    """Return decompression alone, by the library that ccl-bench uses."""
    igzip = importlib.import_module("isal.igzip")

    def load() -> None:
        for file in files:
            with igzip.open(file, "rb") as stream:
                while stream.read(_INFLATE_BYTES):
                    pass

    return load


def duckdb(files: Sequence[Path]) -> Load:
    """Return DuckDB's way from files to a table of events, with the arguments of each as text."""
    database = importlib.import_module("duckdb").connect()
    database.execute("SET threads = 1")
    options = {"columns": {"traceEvents": _DUCKDB_EVENTS}, "maximum_object_size": 1 << 30}

    def load() -> None:
        for number, file in enumerate(files):
            relation = database.read_json(str(file), format="unstructured", **options)
            relation.project("unnest(traceEvents, recursive := true)").create(f"events_{number}")
        for number in range(len(files)):
            database.execute(f"DROP TABLE events_{number}")

    return load


def digest(files: Sequence[Path]) -> Load:
    """Return the SHA-256 of files, as every result states for its traces."""
    import hashlib

    def load() -> None:
        for file in files:
            with file.open("rb") as stream:
                hashlib.file_digest(stream, "sha256")

    return load


def any_tables(files: Sequence[Path]) -> Load:
    """Return ccl-bench's way from a file of any format to its raw tables."""
    from ccl_bench.run import open_run
    from ccl_bench.trace.cache import read_content

    traces = [trace for file in files for trace in open_run(file).traces]
    return lambda: [read_content(trace, (), use_cache=False) for trace in traces]


def pickle_load(files: Sequence[Path]) -> Load:
    """Return the standard library's way from memory snapshots to objects. It executes code in them."""
    import pickle

    def load() -> object:
        snapshots = []
        for file in files:
            with file.open("rb") as stream:
                snapshots.append(pickle.load(stream))
        return snapshots

    return load


def overlap(files: Sequence[Path]) -> Load:
    """Return ccl-bench's way from files to `comm_comp_overlap`, without its cache."""
    from ccl_bench.evaluate.compute import evaluate
    from ccl_bench.run import open_run

    place = files[0] if len(files) == 1 else files[0].parent

    def load() -> object:
        (result,) = evaluate(open_run(place), ["comm_comp_overlap"], jobs=1, use_cache=False)
        return result

    return load


def hta_overlap(files: Sequence[Path]) -> Load:
    """Return HTA's way from files to the overlap of communication and computation."""
    analysis = importlib.import_module("hta.trace_analysis").TraceAnalysis
    named = {rank: str(file) for rank, file in enumerate(files)}
    return lambda: analysis(trace_files=named, trace_dir="/").get_comm_comp_overlap(visualize=False)


def nsys_ai_overlap(files: Sequence[Path]) -> Load:
    """Return nsys-ai's way from exports to the overlap of each device, without the copy that it keeps."""
    profile = importlib.import_module("nsys_ai.profile").Profile
    analysis = importlib.import_module("nsys_ai.overlap").overlap_analysis

    def load() -> object:
        overlaps = []
        for file in files:
            opened = profile(str(file), cache_mode="direct")
            overlaps += [analysis(opened, device) for device in opened.meta.devices]
            opened.close()
        return overlaps

    return load


CONTESTANTS: dict[str, Callable[[Sequence[Path]], Load]] = {
    "ccl-bench": ccl_bench,
    "HTA": hta,
    "TraceLens": tracelens,
    "json.load": json_load,
    "orjson": orjson,
    "simdjson": simdjson,
    "DuckDB": duckdb,
    "inflate": inflate,
    "SHA-256": digest,
    "ccl-bench, tables": any_tables,
    "pickle.load": pickle_load,
    "ccl-bench, overlap": overlap,
    "HTA, overlap": hta_overlap,
    "nsys-ai, overlap": nsys_ai_overlap,
    "1 core": cores.ranks_on_one,
    "2 cores": cores.ranks_on_two,
    "file, 1 core": cores.ranks_on_one,
    "file, 2 cores": cores.ranks_on_two,
    "control, 1 core": lambda files: cores.control_on_one([_content(file) for file in files[:2]]),
    "control, 2 cores": lambda files: cores.control_on_two([_content(file) for file in files[:2]]),
}


def _peak_bytes() -> int:
    """Return the largest resident memory this process or one it started ever had.

    `ru_maxrss` of this process itself would count what its parent held before it was started.
    """
    status = Path("/proc/self/status").read_text()
    own_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return max(own_kib, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024


def _cpu_s() -> float:
    uses = [resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def measured(load: Load, most: int) -> dict[str, object]:
    """Return the wall and CPU seconds of up to `most` loads, and the peak memory of the first."""
    walls: list[float] = []
    cpus: list[float] = []
    idle, peak = _peak_bytes(), 0
    while sum(walls) < _ENOUGH_S and len(walls) < most:
        _forget_hashes()
        wall, cpu = time.perf_counter(), _cpu_s()
        result = load()
        walls.append(time.perf_counter() - wall)
        cpus.append(_cpu_s() - cpu)
        peak = peak or _peak_bytes()
        del result
    return {"wall_s": walls, "cpu_s": cpus, "idle_bytes": idle, "peak_bytes": peak}


def _forget_hashes() -> None:
    """Let ccl-bench hash its files at each load: in one process it hashes a file once, unless it changes."""
    if cache := sys.modules.get("ccl_bench.trace.cache"):
        cache._HASHES.clear()


def main() -> None:
    """Measure one contestant and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("contestant", choices=CONTESTANTS)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument("--cpus", required=True)
    parser.add_argument("--warm-up", required=True, type=Path)
    options = parser.parse_args()
    os.sched_setaffinity(0, {int(cpu) for cpu in options.cpus.split(",")})
    prepared = CONTESTANTS[options.contestant]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            prepared([options.warm_up])()  # imports and setup at first use
            figures = measured(prepared(options.files), _MOST_LOADS)
    except Exception as error:  # a contestant that fails is a result, whatever it raises
        figures = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    json.dump(figures, sys.stdout)


if __name__ == "__main__":
    main()
