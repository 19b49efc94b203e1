"""Print how fast ccl-bench is and how much memory it takes, beside other ways to read the same files."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import sys
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import commands
import inputs
import peers
import targets
from measuring import Contestant, Figures, interleaved
from printing import OURS, table

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from inputs import Input
    from targets import Target

REPOSITORY = Path(__file__).resolve().parent.parent
RANKS = 8
SIZES = {"10 MB": 10**7, "1 GB": 10**9, "5 GB": 5 * 10**9}
"""Files of one rank by which growth with the size is measured."""

_PEERS = ("HTA", "json.load", "orjson", "simdjson", "DuckDB")
_COMMANDS = "commands"
_CONTROL = "control, "
_KINDS = {"one metric": ("--metric", "comm_comp_overlap"), "every metric": ("--all",)}


@dataclass(slots=True)
class Bench:
    """One run of the benchmark: how it is done, and what it found."""

    options: argparse.Namespace
    peer: Path
    """The Python that has the programs compared with."""
    figures: dict[str, dict[str, Figures]] = field(default_factory=dict)
    """Input -> contestant -> what was measured."""
    timed: dict[str, dict[str, commands.Timed]] = field(default_factory=dict)
    """Kind of commands -> command -> what was measured."""

    @property
    def cpus(self) -> list[int]:
        """The cores that may be used."""
        return sorted(os.sched_getaffinity(0))

    def loads(self, measured: Input, ours: Sequence[str], theirs: Sequence[str], what: str = "") -> None:
        """Measure contestants on one input, each on one core, and print it."""
        entering = [Contestant(name, Path(sys.executable), (self.cpus[0],)) for name in ours]
        entering += [Contestant(name, self.peer, (self.cpus[0],)) for name in theirs]
        self._print(table(measured, self._figures(measured, entering), reference=ours[0], what=what))

    def cores(self, measured: Input) -> None:
        """Measure many ranks, and a control, on one core and on two, and print it."""
        places = {f"{count} core" + "s" * (count > 1): tuple(self.cpus[:count]) for count in (1, 2)}
        found = self._figures(
            measured,
            [
                Contestant(kind + name, Path(sys.executable), cpus)
                for kind in ("", _CONTROL)
                for name, cpus in places.items()
            ],
            rounds=2 * self.options.rounds,
        )
        ours, control = ({kind + name: found[kind + name] for name in places} for kind in ("", _CONTROL))
        self._print(table(measured, ours, reference="2 cores", what=", by ccl-bench"))
        two = replace(measured, name="control", files=measured.files[:2], size=measured.size // RANKS * 2)
        self._print(table(two, control, reference=f"{_CONTROL}2 cores"))

    def _figures(
        self, measured: Input, entering: Sequence[Contestant], *, rounds: int = 0
    ) -> dict[str, Figures]:
        warm_up = self.options.corpus / inputs.WARM_UP
        figures = interleaved(entering, measured, warm_up, rounds=rounds or self.options.rounds)
        self.figures.setdefault(measured.name, {}).update(figures)
        return figures

    def _print(self, text: str) -> None:
        print(text, end="\n\n", flush=True)

    def whole(self, file: Input) -> None:
        """Measure whole commands, and print it."""
        found = self.timed[_COMMANDS] = commands.whole(file.files[0], self.options.rounds)
        self._print(commands.whole_table(file, found))

    def sizes(self, files: Sequence[Input]) -> None:
        """Measure files of several sizes, and print it."""
        for kind, wanted in _KINDS.items():
            found = self.timed[kind] = commands.by_size(files, wanted)
            self._print(commands.size_table(files, found, kind))

    def targets(self, one: Input, ranks: Input) -> Iterable[Target]:
        """Yield what is aimed at, beside what was measured."""
        yield from targets.of_loading(self.figures[one.name])
        yield from targets.of_cores(self.figures[ranks.name])
        yield from targets.of_commands(self.timed[_COMMANDS])
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


def _made(options: argparse.Namespace) -> tuple[Input, Input, Input, list[Input]]:
    """Return one repeated trace, the same compressed, one for each of several ranks, and some by size."""
    folder: Path = options.work / "bench"
    text = gzip.decompress((options.corpus / inputs.SOURCE).read_bytes())
    files = inputs.of_ranks(inputs.repeated(text, 6), RANKS, folder / "nccl-args-x6")
    packed = folder / "nccl-args-x6.json.gz"
    if not packed.exists():
        packed.write_bytes(gzip.compress(files[0].read_bytes(), 6, mtime=0))
    one = inputs.sized("nccl-args x 6", files[:1])
    wanted = {name: size for name, size in SIZES.items() if size < 10**8 or not options.quick}
    places = {name: folder / name.replace(" ", "-") for name in wanted}
    sizes = [inputs.sized(name, (inputs.of_size(text, size, places[name]),)) for name, size in wanted.items()]
    ranks = inputs.sized(f"{RANKS} ranks", files)
    return one, inputs.sized(f"{one.name}, gzip", (packed,)), ranks, sizes


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = _options(arguments)
    bench = Bench(options, peers.interpreter(options.work / "bench-peers"))
    versions = {"python": platform.python_version()} | peers.versions(bench.peer)
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"{named}; {options.rounds} rounds\n")
    one, packed, ranks, sizes = _made(options)
    bench.loads(one, [OURS], _PEERS)
    bench.loads(packed, [OURS, "inflate"], _PEERS)
    for measured in () if options.quick else inputs.corpus_sets(options.corpus):
        bench.loads(measured, [OURS, "inflate"] if measured.compressed else [OURS], _PEERS)
    bench.loads(one, ["ccl-bench, overlap"], ["HTA, overlap"], ", from file to the overlap of communication")
    bench.cores(ranks)
    bench.whole(one)
    bench.sizes([sizes[0], one, *sizes[1:]])
    print(targets.table(bench.targets(one, ranks)))
    print(targets.disturbance([*bench.figures[one.name].values(), bench.figures[ranks.name]["1 core"]]))
    if options.json:
        written = {"versions": versions, "loads": _plain(bench.figures), "commands": _plain(bench.timed)}
        options.json.write_text(json.dumps(written, indent=2) + "\n")


def _plain(found: dict[str, dict[str, Figures]] | dict[str, dict[str, commands.Timed]]) -> object:
    return {kind: {name: asdict(value) for name, value in each.items()} for kind, each in found.items()}


if __name__ == "__main__":
    main()
