#!/usr/bin/env python3
"""Measure the public recordings that `benchmark/` describes, as far as they are at hand, and publish them.

Each folder of `benchmark/` has the workload card of a run, and the hashes and sources of its traces in
`traces.toml`. The traces are below the folder CCL_BENCH_CORPUS; what is missing there is left out and named.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import msgspec

from ccl_bench import storage
from ccl_bench.base.errors import CclBenchError, InputError
from ccl_bench.leaderboard.bundle.upload import UploadRequest, prepare_upload
from ccl_bench.leaderboard.publishing.client import DirectoryDestination
from ccl_bench.leaderboard.publishing.worker import Worker
from ccl_bench.leaderboard.store import open_store
from ccl_bench.report.console import aligned, show
from ccl_bench.result.step_choice import step_choice

CARDS = Path(__file__).resolve().parents[1] / "benchmark"
CORPUS = "CCL_BENCH_CORPUS"
COLUMNS = ("iteration_wall_clock_time", "gpu_busy", "exposed_communication_time", "comm_comp_overlap", "mfu")


class TraceSource(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One trace of a run."""

    corpus: str
    """Path below the corpus."""
    sha256: str
    address: str = ""
    """Address of the file; empty where only its repository is known."""


class Sources(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What `traces.toml` states."""

    licence: str
    repository: str
    """Address of the repository that published the traces."""
    file: list[TraceSource]
    marker: str | None = None
    """Ranges that are the steps, where the profiler marked none; as `--marker`."""


@dataclass(frozen=True)
class Row:
    """A published run."""

    name: str
    run: str
    state: str
    is_new: bool
    values: dict[str, str]


def read_sources(folder: Path) -> Sources:
    """Return the sources of the traces of a run."""
    path = folder / "traces.toml"
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Sources)
    except (OSError, msgspec.MsgspecError) as error:
        raise InputError(f"cannot be used: {error}", where=str(path), fix="correct the file") from error


def gather_run(folder: Path, sources: Sources, corpus: Path, target: Path) -> list[TraceSource]:
    """Copy the card and the traces of a run into a new folder, and return the traces that are missing.

    Raises InputError if a file is not the one that `traces.toml` names.
    """
    missing = [each for each in sources.file if not (corpus / each.corpus).is_file()]
    if missing:
        return missing
    for each in sources.file:
        path = corpus / each.corpus
        if (digest := storage.sha256(path)) != each.sha256:
            fix = f"get it again from {each.address or sources.repository}"
            wrong = f"is not the published file: its SHA-256 is {digest}, not {each.sha256}"
            raise InputError(wrong, where=str(path), fix=fix)
    target.mkdir()
    shutil.copyfile(folder / "workload_card.yaml", target / "workload_card.yaml")
    for each in sources.file:
        shutil.copyfile(corpus / each.corpus, target / Path(each.corpus).name)
    return []


def publish(run: Path, sources: Sources, data: Path, scratch: Path) -> Row:
    """Measure a run and publish it with its traces into a board; nothing changes if it is there already."""
    request = UploadRequest(str(run), with_traces=True, choice=step_choice(marker=sources.marker))
    upload = prepare_upload(request, scratch)
    published = DirectoryDestination(data).take(upload, scratch, None)
    results = {each.metric: each for each in upload.bundle.results if each.value is not None}
    values = {name: f"{results[name].value:.4g} {results[name].unit}" for name in COLUMNS if name in results}
    return Row(run.name, upload.id, published.state, published.is_new, values)


def verify(data: Path) -> dict[str, str]:
    """Recompute the published runs whose traces are on the board, and return the state of each run."""
    store = open_store(data)
    store.catch_up()
    Worker(store).run(until_empty=True)
    states = {run: store.bundle(run).history[-1].state.value for run in store.folders()}
    store.engine.dispose()
    return states


def measure(cards: Path, corpus: Path, data: Path, names: list[str], *, recompute: bool) -> list[Row]:
    """Publish the runs of a folder of cards whose traces are at hand, and print those that are left out."""
    rows = []
    for folder in sorted(each.parent for each in cards.glob("*/traces.toml")):
        if names and folder.name not in names:
            continue
        sources = read_sources(folder)
        with tempfile.TemporaryDirectory(prefix="ccl-bench-") as temporary:
            run, scratch = Path(temporary, folder.name), Path(temporary, "scratch")
            scratch.mkdir()
            if missing := gather_run(folder, sources, corpus, run):
                place = missing[0].address or f"the repository {sources.repository}"
                what = f"{missing[0].corpus} is missing; it is from {place}"
                print(f"{folder.name}: left out, {what}", file=sys.stderr)
                continue
            rows.append(publish(run, sources, data, scratch))
    if recompute and rows:
        states = verify(data)
        rows = [Row(each.name, each.run, states[each.run], each.is_new, each.values) for each in rows]
    return rows


def main(arguments: list[str] | None = None) -> int:
    """Measure, publish and print a table; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="runs to measure, by their folders; all by default")
    parser.add_argument("--to", type=Path, default=Path("build/benchmark"), help="folder of the board")
    parser.add_argument("--cards", type=Path, default=CARDS, help="folder of the cards")
    parser.add_argument("--recompute", action="store_true", help="verify the numbers, as a worker does")
    given = parser.parse_args(arguments)
    corpus = os.environ.get(CORPUS)
    if not corpus:
        print(f"{CORPUS} is not set\n  fix: set it to the folder with the traces", file=sys.stderr)
        return 2
    try:
        rows = measure(given.cards, Path(corpus), given.to, given.names, recompute=given.recompute)
    except CclBenchError as error:
        print(error, file=sys.stderr)
        return error.exit_status
    cells = [
        (
            each.name,
            *(each.values.get(name, "") for name in COLUMNS),
            each.state.replace("_", "-"),
            "new" if each.is_new else "as before",
            each.run[:12],
        )
        for each in rows
    ]
    show(aligned(("RUN", *COLUMNS, "STATE", "", "ID"), cells))
    if rows:
        show(f"look at it with ccl-bench serve {given.to}")
    return 0 if rows else 3


if __name__ == "__main__":
    sys.exit(main())
