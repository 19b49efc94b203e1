"""Print the speed and memory of ccl-bench, compared with other programs that read the same files."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import subprocess
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import commands
import inputs
import other_formats
import peers
import reports
import targets
import whole_traces
from measuring import Contestant, Figures, interleaved
from printing import MEGA, OURS, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from inputs import Input
    from targets import Target

REPOSITORY = Path(__file__).resolve().parent.parent
RANKS = 8
SIZES = {"10 MB": 10**7, "1 GB": 10**9, "5 GB": 5 * 10**9}
"""Files of one rank by which growth with the size is measured."""

FEW_RANKS, MANY_RANKS = 4, 24
"""Ranks of 10 MB between whose runs the cost of one more is measured."""
COPIES_OF_LAYOUTS = 2
"""Repetitions of the trace that is written again in several layouts: 20 MB."""

_PEERS = ("HTA", "TraceLens", "json.load", "orjson", "simdjson", "DuckDB")
_COMMANDS, _PIPES, _LARGE = "commands", "pipes", "1 GB"
_ROUNDS_OF_RANKS = 3
_OVERLAP = ", from file to the overlap of communication"
_OF_FORMATS: dict[str, tuple[tuple[str, tuple[str, ...]], ...]] = {
    "nsys": ((targets.TABLES, ()), ("ccl-bench, overlap", ("nsys-ai, overlap",))),
    "serving": ((targets.TABLES, ("orjson", "json.load")),),
    "memory snapshot": ((targets.TABLES, ("pickle.load",)),),
    "Execution Trace": ((targets.TABLES, ("orjson", "json.load")),),
}
"""Format → ways to read it that are compared, ours first."""
_CONTROL = "control, "
_KINDS = {"one metric": ("--metric", "comm_comp_overlap"), "every metric": ("--all",)}


@dataclass(slots=True)
class Bench:
    """One run of the benchmark: its settings and its figures."""

    options: argparse.Namespace
    peer: Path
    """The Python that has the programs compared with."""
    figures: dict[str, dict[str, Figures]] = field(default_factory=dict)
    """Input -> contestant -> what was measured."""
    timed: dict[str, dict[str, commands.Timed]] = field(default_factory=dict)
    """Kind of commands -> command -> what was measured."""
    by_ranks: dict[int, dict[str, commands.Timed]] = field(default_factory=dict)
    """Number of ranks -> command -> what was measured."""
    by_trace: dict[str, dict[str, commands.Timed]] = field(default_factory=dict)
    """Real trace -> program -> what was measured."""
    others: list[Input] = field(default_factory=list)
    """Files of other formats than Kineto's that were measured."""
    reports: dict[str, commands.Timed] = field(default_factory=dict)
    """Report or diagnosis of a large run -> what was measured."""
    board: dict[str, float] = field(default_factory=dict)
    """What a page, or a publication, costs -> CPU time, ms."""

    @property
    def cpus(self) -> list[int]:
        """The cores that may be used."""
        return sorted(os.sched_getaffinity(0))

    def loads(self, measured: Input, ours: Sequence[str], theirs: Sequence[str], what: str = "") -> None:
        """Measure contestants on one input, each on one core, and print it."""
        entering = [Contestant(name, Path(sys.executable), (self.cpus[0],)) for name in ours]
        entering += [Contestant(name, self.peer, (self.cpus[0],)) for name in theirs]
        self._print(table(measured, self._figures(measured, entering), reference=ours[0], what=what))

    def cores(self, measured: Input, control: Sequence[Path], kind: str = "") -> None:
        """Measure ours, called `kind` and the number of cores, and a control; print both."""
        places = {"1 core": tuple(self.cpus[:1]), "2 cores": tuple(self.cpus[:2])}
        entering = [Contestant(kind + name, Path(sys.executable), cpus) for name, cpus in places.items()]
        figures = self._figures(measured, entering, rounds=2 * self.options.rounds)
        self._print(table(measured, figures, reference=f"{kind}2 cores", what=", by ccl-bench"))
        beside = inputs.sized(f"{measured.name}, control", tuple(control))
        entering = [Contestant(_CONTROL + name, Path(sys.executable), cpus) for name, cpus in places.items()]
        control_found = self._figures(beside, entering, rounds=2 * self.options.rounds)
        self.figures[measured.name] |= control_found
        self._print(table(beside, control_found, reference=f"{_CONTROL}2 cores"))

    def _figures(
        self, measured: Input, entering: Sequence[Contestant], *, rounds: int = 0
    ) -> dict[str, Figures]:
        warm_up = measured.warm_up or self.options.corpus / inputs.WARM_UP
        figures = interleaved(entering, measured, warm_up, rounds=rounds or self.options.rounds)
        self.figures.setdefault(measured.name, {}).update(figures)
        return figures

    def _print(self, text: str) -> None:
        print(text, end="\n\n", flush=True)

    def whole(self, file: Input) -> None:
        """Measure whole commands, and print it."""
        costs = self.timed[_COMMANDS] = commands.whole(file.files[0], self.options.rounds)
        title = f"whole processes; the run is {file.name}, {file.size / MEGA:.0f} MB of JSON"
        self._print(commands.timed_table(title, costs))

    def whole_traces(self, files: dict[str, Path]) -> None:
        """Measure whole programs on real traces, cold, and print it."""
        for name, file in files.items():
            costs = self.by_trace[name] = whole_traces.compared(file, self.peer, self.options.rounds)
            self._print(whole_traces.table(file, name, costs))

    def sizes(self, files: Sequence[Input]) -> None:
        """Measure files of several sizes, and print it."""
        for kind, options in _KINDS.items():
            costs = self.timed[kind] = commands.by_size(files, options)
            self._print(commands.size_table(files, costs, kind))

    def ranks(self, runs: dict[int, Path]) -> None:
        """Measure every metric of runs with this many ranks, and print it."""
        rounds = min(self.options.rounds, _ROUNDS_OF_RANKS)
        for count, run in runs.items():
            costs = self.by_ranks[count] = commands.every_metric(run, rounds)
            self._print(commands.timed_table(f"whole processes; {count} ranks of 10 MB", costs))

    def pipes(self, runs: Sequence[Path]) -> None:
        """Measure `inspect` into a pipe, and print it."""
        costs = self.timed[_PIPES] = commands.inspections(runs)
        self._print(commands.timed_table("inspect into a pipe, without the cache", costs))

    def targets(self, kineto: Sequence[Input], ranks: Input, file: Input) -> Iterable[Target]:
        """Yield the targets with the measured values."""
        one_metric = self.timed["one metric"]
        yield from targets.of_commands(self.timed[_COMMANDS])
        yield from targets.of_whole_traces(self.by_trace)
        yield from targets.of_ranks(self.by_ranks)
        yield from targets.of_loading(self.figures, kineto)
        if digest := self.figures.get(_LARGE, {}).get("SHA-256"):
            yield from targets.of_digest(one_metric, digest, _LARGE)
        scaling = self.figures[file.name]
        yield from targets.of_cores(scaling, "one file on two cores", "file, 1 core", "file, 2 cores", 0.9)
        scaling = self.figures[ranks.name]
        yield from targets.of_cores(scaling, f"{RANKS} ranks on two cores", "1 core", "2 cores", 0.9)
        yield from targets.of_formats(self.figures, self.others)
        yield from targets.of_pipes(self.timed[_PIPES])
        if self.reports:
            yield from reports.of_reports(self.reports)
        if self.board:
            yield from targets.of_board(self.board)
        for kind in _KINDS:
            yield from targets.of_memory(self.timed[kind], "5 GB", kind)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    corpus = os.environ.get("CCL_BENCH_CORPUS")
    parser.add_argument("--corpus", type=Path, default=corpus, help="default: $CCL_BENCH_CORPUS")
    parser.add_argument("--work", type=Path, default=REPOSITORY / "build", help="where files are made")
    parser.add_argument("--rounds", type=int, help="processes of each contestant (default 5, quick 1)")
    parser.add_argument("--quick", action="store_true", help="no corpus sets, nothing above 60 MB")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE too")
    options = parser.parse_args(arguments)
    if options.corpus is None:
        parser.error("name the corpus with --corpus or CCL_BENCH_CORPUS")
    options.rounds = options.rounds or (1 if options.quick else 5)
    return options


@dataclass(frozen=True, slots=True)
class InputFiles:
    """The files that are made of one real trace."""

    one: Input
    """The trace repeated: 59 MB."""
    packed: Input
    """The same compressed."""
    ranks: Input
    """The same once for each of several ranks."""
    layouts: list[Input]
    """20 MB of it as tools write it again."""
    by_size: list[Input]
    others: list[Input]
    """One file of each format beside Kineto's."""
    small_ranks: dict[int, Path]
    """Number of ranks -> the run with as many of 10 MB."""


def _input_files(options: argparse.Namespace) -> InputFiles:
    folder: Path = options.work / "bench"
    text = gzip.decompress((options.corpus / inputs.SOURCE).read_bytes())
    files = inputs.of_ranks(inputs.repeated(text, 6), RANKS, folder / "nccl-args-x6")
    packed = folder / "nccl-args-x6.json.gz"
    if not packed.exists():
        packed.write_bytes(gzip.compress(files[0].read_bytes(), 6, mtime=0))
    one = inputs.sized("nccl-args x 6", files[:1])
    wanted_sizes = {name: size for name, size in SIZES.items() if size < 10**8 or not options.quick}
    places = {name: folder / name.replace(" ", "-") for name in wanted_sizes}
    sizes = [
        inputs.sized(name, (inputs.of_size(text, size, places[name]),)) for name, size in wanted_sizes.items()
    ]
    small = {count: folder / f"{count}-ranks" for count in (FEW_RANKS, MANY_RANKS)}
    for count, place in small.items():
        inputs.of_ranks(text, count, place)
    return InputFiles(
        one,
        inputs.sized(f"{one.name}, gzip", (packed,)),
        inputs.sized(f"{RANKS} ranks", files),
        inputs.layouts(inputs.repeated(text, COPIES_OF_LAYOUTS), folder / "layouts"),
        [sizes[0], one, *sizes[1:]],
        other_formats.other_formats(options.corpus, folder / "others", quick=options.quick),
        small,
    )


def _measure(bench: Bench, files: InputFiles) -> list[Input]:
    """Measure everything, and return the Kineto traces that were compared."""
    quick, corpus = bench.options.quick, bench.options.corpus
    bench.loads(files.one, [OURS], _PEERS)
    bench.loads(files.packed, [OURS, "inflate"], _PEERS)
    sets = [] if quick else list(inputs.corpus_sets(corpus))
    for measured in sets:
        bench.loads(measured, [OURS, "inflate"] if measured.compressed else [OURS], _PEERS)
    for measured in files.layouts:
        bench.loads(measured, [OURS], ("HTA", "TraceLens", "simdjson"))
    bench.loads(files.one, ["ccl-bench, overlap"], ["HTA, overlap"], _OVERLAP)
    for measured in files.others:
        for ours, theirs in _OF_FORMATS[measured.name]:
            bench.loads(measured, [ours], theirs, _OVERLAP if ours != targets.TABLES else "")
    bench.others = files.others
    for measured in files.by_size:
        if measured.name == _LARGE:
            bench.loads(measured, ["SHA-256"], [])
    bench.cores(files.ranks, files.ranks.files[:2])
    bench.cores(inputs.sized("one file", files.one.files), files.ranks.files[:2], "file, ")
    bench.whole(files.one)
    bench.whole_traces(whole_traces.traces(corpus, bench.options.work / "bench" / "real"))
    bench.ranks(files.small_ranks)
    bench.pipes(sorted((corpus / "kineto").iterdir()))
    bench.sizes(files.by_size)
    if not quick:
        different = files.ranks.files[0].parent.with_name(f"{RANKS}-different-ranks")
        (export,) = (one.files[0] for one in files.others if one.name == "nsys")
        ranks = reports.different_ranks(files.ranks.files, different)
        bench.reports = reports.measured(ranks, export, min(bench.options.rounds, _ROUNDS_OF_RANKS))
        bench.board = _growth_of_the_board()
    return [files.one, files.packed, *sets, *files.layouts]


def _growth_of_the_board() -> dict[str, float]:
    """Return the cost of pages and publications, ms, as `leaderboard.py --growth` prints it."""
    command = [sys.executable, str(Path(__file__).with_name("leaderboard.py")), "--growth"]
    lines = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    parts = (line.rpartition(": ") for line in lines)
    return {what: float(ms.removesuffix(" ms")) for what, _, ms in parts}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = _options(arguments)
    bench = Bench(options, peers.interpreter(options.work / "bench-peers"))
    versions = {"python": platform.python_version()} | peers.versions(bench.peer)
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"{named}; {options.rounds} rounds\n")
    files = _input_files(options)
    kineto = _measure(bench, files)
    file = inputs.sized("one file", files.one.files)
    print(targets.table(bench.targets(kineto, files.ranks, file)))
    undisturbed = [*bench.figures[files.one.name].values(), bench.figures[files.ranks.name]["1 core"]]
    print(targets.disturbance(undisturbed))
    if options.json:
        written = {"versions": versions, "loads": _plain(bench.figures), "commands": _plain(bench.timed)}
        options.json.write_text(json.dumps(written, indent=2) + "\n")


def _plain(groups: dict[str, dict[str, Figures]] | dict[str, dict[str, commands.Timed]]) -> object:
    return {kind: {name: asdict(value) for name, value in each.items()} for kind, each in groups.items()}


if __name__ == "__main__":
    main()
