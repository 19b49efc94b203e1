"""Print how fast ccl-bench loads Kineto traces beside other ways to read the same files."""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import inputs
import peers
from measuring import Contestant, Figures, interleaved
from printing import scaling_table, table, verdicts

if TYPE_CHECKING:
    from collections.abc import Sequence

    from inputs import Input

    Results = dict[str, tuple[Input, dict[str, Figures]]]

REPOSITORY = Path(__file__).resolve().parent.parent
RANKS = 8


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    corpus = os.environ.get("CCL_BENCH_CORPUS")
    parser.add_argument("--corpus", type=Path, default=corpus, help="default: $CCL_BENCH_CORPUS")
    parser.add_argument("--work", type=Path, default=REPOSITORY / "build", help="where files are made")
    parser.add_argument("--rounds", type=int, help="processes of each contestant (default 5, quick 1)")
    parser.add_argument("--quick", action="store_true", help="a third of the bytes, no corpus sets")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure to FILE too")
    options = parser.parse_args(arguments)
    if options.corpus is None:
        parser.error("name the corpus with --corpus or CCL_BENCH_CORPUS")
    options.rounds = options.rounds or (1 if options.quick else 5)
    return options


def _made(options: argparse.Namespace) -> tuple[Input, Input, Input]:
    """Return one repeated trace, the same compressed, and one for each of several ranks."""
    copies, ranks = (2, RANKS // 2) if options.quick else (6, RANKS)
    folder: Path = options.work / "bench" / f"nccl-args-x{copies}"
    text = inputs.repeated(gzip.decompress((options.corpus / inputs.SOURCE).read_bytes()), copies)
    files = inputs.of_ranks(text, ranks, folder)
    packed = folder.with_suffix(".json.gz")
    if not packed.exists():
        packed.write_bytes(gzip.compress(files[0].read_bytes(), 6, mtime=0))
    one = inputs.sized(f"nccl-args x {copies}", files[:1])
    return one, inputs.sized(f"{one.name}, gzip", (packed,)), inputs.sized(f"{ranks} ranks", files)


def _loads(options: argparse.Namespace, contestants: list[Contestant], found: Sequence[Input]) -> Results:
    """Measure the loading of every input and print each as it is done."""
    results: Results = {}
    for measured in found:
        entering = [c for c in contestants if c.name != "inflate" or measured.compressed]
        figures = interleaved(entering, measured, options.corpus / inputs.WARM_UP, rounds=options.rounds)
        results[measured.name] = measured, figures
        print(table(measured, figures), end="\n\n", flush=True)
    return results


def _scaling(options: argparse.Namespace, ranks: Input) -> dict[str, Figures]:
    """Measure many ranks on one core and on two, and print it."""
    python, cpus = Path(sys.executable), sorted(os.sched_getaffinity(0))
    both = [Contestant("1 core", python, (cpus[0],)), Contestant("2 cores", python, tuple(cpus[:2]))]
    figures = interleaved(both, ranks, options.corpus / inputs.WARM_UP, rounds=options.rounds)
    print(scaling_table(ranks, figures), end="\n\n", flush=True)
    return figures


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the benchmark."""
    options = _options(arguments)
    peer = peers.interpreter(options.work / "bench-peers")
    versions = {"python": platform.python_version()} | peers.versions(peer)
    named = ", ".join(f"{name} {version}" for name, version in versions.items())
    print(f"{named}; one core; {options.rounds} rounds\n")
    cpu = (min(os.sched_getaffinity(0)),)
    ours = [Contestant(name, Path(sys.executable), cpu) for name in ("ccl-bench", "inflate")]
    theirs = [Contestant(name, peer, cpu) for name in ("HTA", "json.load", "orjson", "simdjson")]
    one, packed, ranks = _made(options)
    sets = () if options.quick else tuple(inputs.corpus_sets(options.corpus))
    results = _loads(options, [*ours[:1], *theirs, *ours[1:]], (one, packed, *sets))
    results[ranks.name] = ranks, _scaling(options, ranks)
    print(verdicts(results[one.name][1], results[ranks.name][1]))
    if options.json:
        written = {
            name: {"bytes": measured.size, "files": len(measured.files)}
            | {"contestants": {who: asdict(value) for who, value in figures.items()}}
            for name, (measured, figures) in results.items()
        }
        options.json.write_text(json.dumps({"versions": versions, "inputs": written}, indent=2) + "\n")


if __name__ == "__main__":
    main()
