"""Results of nccl-tests or rccl-tests on the same machines: the table that they print, or JSON (`-J`).

A file may hold several tests. Bandwidths are computed anew from size and time: the printed ones have two
digits after the point. Of the two halves of a row, out of place and in place, the faster one counts.

Sources: nccl-tests, src/common.cu, src/util.cu and doc/PERFORMANCE.md.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from ccl_bench.base.errors import InputError, NoValue
from ccl_bench.card.yaml_tree import IssueLog, Reading, shown
from ccl_bench.catalog.collectives import bus_factor
from ccl_bench.side_files.json_file import json_value
from ccl_bench.storage.files import MIB, read_head, read_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from ccl_bench.storage.files import Location

SUFFIXES = (".txt", ".log", ".out", ".json")
"""How the names of such files end; their content decides."""

HEAD_BYTES = 256 << 10
"""Bytes in which a file shows what it is: a log begins with what the launcher and NCCL print."""

MAX_BYTES = 64 * MIB

_COLLECTIVES = {
    "reduce_scatter": "reduce_scatter",
    "all_reduce": "all_reduce",
    "all_gather": "all_gather",
    "broadcast": "broadcast",
    "alltoall": "all_to_all",
    "sendrecv": "send_recv",
    "scatter": "scatter",
    "gather": "gather",
    "reduce": "reduce",
}
"""Program without `_perf` → canonical collective; a name comes before those that are part of it."""

_PROGRAM = re.compile(r"\b([a-z_]+)_perf(?:_mpi)?\b")
_NAMED = re.compile("|".join(_COLLECTIVES))
_LIKELY = re.compile(r"[nr]ccl|perf|reduce|gather|all_?to_?all|broadcast|scatter|send_?recv|ceiling")
_LAUNCHER = re.compile(r"^(?:\[\d+,\d+\](?:<std(?:out|err)>)?:|\s*\d+:\s)\s*")
_STARTING = re.compile(r"#\s*Collective test starting:\s*(\S+)")
_THREADS = re.compile(r"#\s*nThread\s+\d+\s+nGpus\s+\d+")
_RANK = re.compile(
    r"#\s+Rank\s+(\d+)(?:\s+Group\s+(\d+))?\s+Pid\s+\d+ on\s+(\S+) device\s+\S+\s+\[[^\]]*\]\s*(.*)"
)

_FACTOR_OFF = 0.01
"""Share by which the printed bandwidths may differ from the factor of the collective: they are rounded."""
_ROUNDED_FROM = 10.0
"""Printed bandwidth, GB/s, from which rounding hides no more than a thousandth."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One size of one test."""

    collective: str
    ranks: int
    hosts: int | None
    """Machines that took part; None if the file does not say."""
    size_bytes: int
    time_s: float


@dataclass(frozen=True, slots=True)
class NcclTests:
    """Everything that was measured, of all files together."""

    measured: tuple[Measured, ...] = ()
    device_names: frozenset[str] = frozenset()
    """Product names of the devices."""
    files: tuple[str, ...] = ()
    """Names of the files."""


@dataclass(slots=True)
class _Test:
    """One test while it is read."""

    program: str = ""
    columns: list[str] = field(default_factory=list)
    ranks: list[tuple[int, int]] = field(default_factory=list)
    """Group and number in the group."""
    count: int | None = None
    """Ranks where no list of them is complete."""
    hosts: set[str] = field(default_factory=set)
    devices: set[str] = field(default_factory=set)
    rows: list[tuple[int, int, float, float, float]] = field(default_factory=list)
    """Line, size, time in us, algorithm and bus bandwidth as printed."""
    wrong: int = 0
    """Rows whose results were wrong."""
    line: int = 1


def is_nccl_tests(head: bytes) -> bool:
    """Whether a file that begins with these bytes holds what nccl-tests measured."""
    table = b"algbw" in head and b"busbw" in head and b"#wrong" in head
    old = b"algbw" in head and b"busbw" in head and b"nThread" in head
    words = (b'"args"', b"_perf", b'"start_time"')
    return table or old or (head.lstrip().startswith(b"{") and all(word in head for word in words))


def is_nccl_tests_file(path: Path) -> bool:
    """Whether a file holds what nccl-tests measured; never raises for what the file holds.

    Only names such as `nccl_tests.txt` or `all_reduce.log` are looked at: a run may hold many logs.
    """
    has_likely_name = path.suffix.lower() in SUFFIXES and _LIKELY.search(path.stem.lower())
    try:
        return bool(has_likely_name) and is_nccl_tests(read_head(path, HEAD_BYTES))
    except (OSError, InputError):
        return False


def read_nccl_tests(path: Location, before: NcclTests | None = None) -> Reading[NcclTests]:
    """Return the tests of one file behind those read `before`; InputError only where it is no text."""
    return nccl_tests_in_text(read_text(path, MAX_BYTES), file=str(path), before=before)


def nccl_tests_in_text(text: str, *, file: str = "", before: NcclTests | None = None) -> Reading[NcclTests]:
    """Return the tests in a text behind those read `before`; `file` names it in messages."""
    if text.lstrip().startswith("{"):
        data, log = json_value(text, file)
        tests = [_json_test(data, log)] if isinstance(data, dict) else []
    else:
        log, tests = IssueLog(file), [*_text_tests(text)]
    name = PurePath(file).name
    results = [result for test in tests for result in _measured(test, name, log)]
    devices = frozenset(device for test in tests for device in test.devices)
    if not results and not log.entries:
        fix = "give what all_reduce_perf and the like print"
        log.error("", "holds no measured size of any collective", fix)
    earlier = before or NcclTests()
    together = NcclTests(
        (*earlier.measured, *results), earlier.device_names | devices, (*earlier.files, name)
    )
    return Reading(together, log.in_order(), file)


def _text_tests(text: str) -> Iterator[_Test]:
    """Yield each test of a log."""
    test, program = _Test(), ""
    for number, raw in enumerate(text.splitlines(), start=1):
        line = _LAUNCHER.sub("", raw).strip()
        if match := _STARTING.match(line) or _THREADS.match(line):
            if test.rows or test.columns:
                yield test
                test = _Test(line=number)
            program_match = _PROGRAM.search(line)
            test.program = program_match[1] if program_match else test.program or program
            program = "" if match.re is _THREADS else program
        elif rank := _RANK.match(line):
            test.ranks.append((int(rank[2] or 0), int(rank[1])))
            test.hosts.add(rank[3])
            test.devices |= {rank[4].strip()} - {""}
        elif line.startswith("#"):
            columns = line.lstrip("# ").split()
            if columns[:2] == ["size", "count"]:
                test.columns = columns
        elif line[:1].isdigit() and test.columns:
            _read_row(line.split(), number, test)
        elif program_match := _PROGRAM.search(line):
            program = program_match[1]
    yield test


def _read_row(words: list[str], number: int, test: _Test) -> None:
    """Add one row of a table; a line that NCCL's own output was printed into is none."""
    starts = [index for index, name in enumerate(test.columns) if name in {"time", "cputime"}]
    try:
        halves = [tuple(float(words[start + offset]) for offset in range(3)) for start in starts]
        wrong = [words[start + 3] for start in starts if test.columns[start + 3] == "#wrong"]
        size = int(words[0])
    except (ValueError, IndexError):
        return
    if any(count not in {"0", "N/A", "0e+00"} for count in wrong):
        test.wrong += 1
    elif halves and size > 0:
        test.rows.append((number, size, *min(halves)))  # type: ignore[arg-type]


def _json_test(data: dict[str, Any], log: IssueLog) -> _Test:
    """Return the test of a JSON file; entries without a key, or with another kind of value, are left out."""
    words = [word for word in _list(data.get("args")) if isinstance(word, str)]
    match = _PROGRAM.search(words[0]) if words else None
    test = _Test(match[1] if match else "")
    raw_config = data.get("config")
    config: dict[str, Any] = raw_config if isinstance(raw_config, dict) else {}
    devices = [device for device in _list(config.get("devices")) if isinstance(device, dict)]
    threads, devices_each = config.get("nthreads"), config.get("ngpus")
    if devices and isinstance(threads, int) and isinstance(devices_each, int) and threads * devices_each > 0:
        test.count = threads * devices_each * len(devices)  # a process lists its first device alone
    test.hosts = {str(device["hostname"]) for device in devices if device.get("hostname")}
    test.devices = {str(device["device_info"]) for device in devices if device.get("device_info")}
    for number, row in enumerate(_list(data.get("results"))):
        halves = [row.get(key) for key in ("out_of_place", "in_place")] if isinstance(row, dict) else []
        size = row.get("size") if isinstance(row, dict) else None
        results = [half for half in halves if isinstance(half, dict)]
        if not isinstance(size, int) or not results:
            message = f"{shown(repr(row))} is not a result for a size"
            log.error(f"results[{number}]", message, "write the file again; it may be cut off")
        elif any(half.get("nwrong") for half in results):
            test.wrong += 1
        else:
            timings = [tuple(half.get(key) for key in ("time", "alg_bw", "bus_bw")) for half in results]
            whole = [half for half in timings if all(isinstance(value, int | float) for value in half)]
            if whole and size > 0:
                test.rows.append((0, size, *min(whole)))  # type: ignore[arg-type]
    return test


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _measured(test: _Test, name: str, log: IssueLog) -> Iterable[Measured]:
    """Return the measured sizes of a test; none without its collective and number of ranks."""
    if not test.rows and not test.wrong:
        return []
    where = f"test at line {test.line}"
    if test.wrong:
        log.error(where, f"results of {test.wrong} sizes were wrong; they are left out", "find out why first")
    match = _NAMED.fullmatch(test.program)
    if test.program and not match:
        log.error(where, f"{shown(test.program)} is not a collective with a bus bandwidth", "leave it out")
        return []
    guess = match or _NAMED.search(PurePath(name).stem.lower())
    if guess is None:
        fix = "name the file after the program, as in all_reduce_perf.txt"
        log.error(where, "does not state which collective was measured", fix)
        return []
    ranks, collective = test.count, _COLLECTIVES[guess[0]]
    if ranks is None:
        fix = "keep the lines that begin with `#  Rank`; with several processes, use a build with MPI"
        sizes = {*Counter(group for group, _ in test.ranks).values()}
        if not test.ranks:
            log.error(where, "does not state how many ranks took part", fix)
            return []
        if len({*test.ranks}) < len(test.ranks):
            log.error(where, "lists a rank twice: the processes measured separately", fix)
            return []
        if len(sizes) > 1:
            log.error(where, "lists groups of different sizes", fix)
            return []
        ranks = sizes.pop()
    try:
        factor = bus_factor(collective, ranks)
    except NoValue:
        factor = 0.0
    if not factor:
        log.error(where, f"{collective} over {ranks} ranks has no bus bandwidth", "leave it out")
        return []
    printed_factors = [row[4] / row[3] for row in test.rows if row[3] >= _ROUNDED_FROM]
    if any(abs(printed_factor - factor) > _FACTOR_OFF * factor for printed_factor in printed_factors):
        message = (
            f"busbw / algbw is {printed_factors[-1]:.4g}, "
            f"which is not that of {collective} over {ranks} ranks"
        )
        log.error(where, message, "check that the file is complete and named after its collective")
        return []
    hosts = len(test.hosts) or None
    return [Measured(collective, ranks, hosts, row[1], row[2] / 1e6) for row in test.rows if row[2] > 0]
