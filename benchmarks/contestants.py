"""Load trace files in each way that is compared, and measure it in this process.

Run as `python contestants.py NAME --cpus 0 --warm-up FILE FILE...`, it prints one JSON line.
It needs nothing but the packages of the one contestant it is asked for.
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

Load = Callable[[], object]

_ENOUGH_S = 1.0
"""Loads are repeated in one process until they took this long together."""

_MOST_LOADS = 5

_INFLATE_BYTES = 1 << 20


def _tables(file: Path) -> Any:
    from ccl_bench import storage
    from ccl_bench.trace.formats.kineto.reader import read_kineto

    with storage.opened(file) as stream:
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


def json_load(files: Sequence[Path]) -> Load:
    """Return the standard library's way from files to objects."""

    def load() -> object:
        found = []
        for file in files:
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
                found.append(json.load(stream))
        return found

    return load


def orjson(files: Sequence[Path]) -> Load:
    """Return orjson's way from files to objects."""
    loads = importlib.import_module("orjson").loads
    return lambda: [loads(_content(file)) for file in files]


def simdjson(files: Sequence[Path]) -> Load:
    """Return a parse by simdjson of bytes that are in memory, making no object of them."""
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


def _ranks(files: Sequence[Path], jobs: int) -> Load:
    from ccl_bench import engine
    from ccl_bench.trace.discovery import found_in

    traces = [trace for trace in found_in(files[0].parent).traces if trace.path in files]
    tasks = [engine.Task(trace, ("steps",), use_cache=False) for trace in traces]

    def load() -> object:
        results = engine.run(tasks, jobs=jobs)
        if len(results) != len(files) or not all(result.tables for result in results):
            raise RuntimeError(f"{len(results)} of {len(files)} ranks were read")
        return results

    return load


def ranks_on_one_core(files: Sequence[Path]) -> Load:
    """Return ccl-bench's way from the files of many ranks to their steps, in one process."""
    return _ranks(files, 1)


def ranks_on_two_cores(files: Sequence[Path]) -> Load:
    """Return the same with two workers: threads or, without the native reader, processes and their start."""
    return _ranks(files, 2)


CONTESTANTS: dict[str, Callable[[Sequence[Path]], Load]] = {
    "ccl-bench": ccl_bench,
    "HTA": hta,
    "json.load": json_load,
    "orjson": orjson,
    "simdjson": simdjson,
    "inflate": inflate,
    "1 core": ranks_on_one_core,
    "2 cores": ranks_on_two_cores,
}


def _peak_bytes() -> int:
    """Return the largest resident memory this process or one it started ever had.

    `ru_maxrss` of this process itself would count what its parent held before it was started.
    """
    status = Path("/proc/self/status").read_text()
    own = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return max(own, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss) * 1024


def _cpu_s() -> float:
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def measured(load: Load, most: int) -> dict[str, object]:
    """Return the wall and CPU seconds of up to `most` loads, and the peak memory of the first."""
    walls: list[float] = []
    cpus: list[float] = []
    idle, peak = _peak_bytes(), 0
    while sum(walls) < _ENOUGH_S and len(walls) < most:
        wall, cpu = time.perf_counter(), _cpu_s()
        result = load()
        walls.append(time.perf_counter() - wall)
        cpus.append(_cpu_s() - cpu)
        peak = peak or _peak_bytes()
        del result
    return {"wall_s": walls, "cpu_s": cpus, "idle_bytes": idle, "peak_bytes": peak}


def main() -> None:
    """Measure one contestant and print what came of it."""
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
            prepared([options.warm_up])()  # imports, and what is set up at first use
            found = measured(prepared(options.files), _MOST_LOADS)
    except Exception as error:  # a contestant that fails is a result, whatever it raises
        found = {"error": f"{type(error).__name__}: {error}".splitlines()[0]}
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
