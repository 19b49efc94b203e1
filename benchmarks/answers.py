"""Writes what the commands answer about each run of the corpus, to compare two versions with `diff -r`.

python benchmarks/answers.py FOLDER [--only PART]...

Run it once with each version and compare the folders: a change of the code that keeps every answer leaves
them equal, byte for byte. What differs between two calls of one version, the time at which a result was made,
is replaced.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import tempfile
import traceback
from pathlib import Path

os.environ["CCL_BENCH_CACHE"] = tempfile.mkdtemp()  # What another version kept is not compared.
os.environ["POLARS_MAX_THREADS"] = "1"

from ccl_bench.cli.bench import main as bench
from ccl_bench.cli.metrics import main as metrics

CORPUS = Path(os.environ["CCL_BENCH_CORPUS"])
EXAMPLES = Path(__file__).parents[1] / "examples" / "runs"
NO_RUNS = {
    "collective-tables",
    "config-ground-truth",
    "serving-ground-truth",
    "straggler-ops",
    "upstream-rows",
}
TIME = re.compile(r"\b20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)?")

COMMANDS = {
    "metrics.json": (metrics, ["--all", "--format", "json", "--jobs", "1"]),
    "metrics.txt": (metrics, ["--all", "--why", "--jobs", "1"]),
    "inspect.json": (bench, ["inspect", "--format", "json", "--jobs", "1"]),
    "diagnose.json": (bench, ["diagnose", "--format", "json", "--jobs", "1"]),
    "report.html": (bench, ["report", "--format", "html", "--jobs", "1"]),
    "report.txt": (bench, ["report", "--format", "text", "--jobs", "1"]),
    "validate.txt": (bench, ["validate"]),
}


def _runs() -> list[tuple[str, Path]]:
    """Return name and path of each run: a folder or a file, two levels below the corpus, and the examples."""
    below = [path for part in sorted(CORPUS.iterdir()) if part.is_dir() for path in sorted(part.iterdir())]
    below = [path for path in below if path.parent.name not in NO_RUNS and path.suffix != ".py"]
    runs = [*below, *sorted(path for path in EXAMPLES.iterdir() if path.is_dir())]
    return [(f"{path.parent.name}.{path.name}", path) for path in runs]


def _answer(name: str, run: Path) -> str:
    """Return what a command writes to stdout and stderr, and its exit status, without times and roots."""
    main, words = COMMANDS[name]
    said, remarked = io.StringIO(), io.StringIO()
    status: object
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(remarked):
        try:
            status = main([words[0], str(run), *words[1:]] if main is bench else [str(run), *words])
        except Exception as error:  # an error of the program, which is an answer too
            status = "".join(traceback.format_exception_only(error))
    text = f"{said.getvalue()}\n--- stderr\n{remarked.getvalue()}\n--- status {status}\n"
    return TIME.sub("TIME", text.replace(str(EXAMPLES.parents[1]), "CHECKOUT").replace(str(CORPUS), "CORPUS"))


def main() -> None:
    """Write the answers that the command line asks for."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("folder", type=Path, help="where to write; made if it does not exist")
    parser.add_argument(
        "--only", action="append", default=[], metavar="PART", help="runs whose name contains it"
    )
    wanted = parser.parse_args()
    for run, path in _runs():
        if wanted.only and not any(part in run for part in wanted.only):
            continue
        folder = wanted.folder / run
        folder.mkdir(parents=True, exist_ok=True)
        for name in COMMANDS:
            (folder / name).write_text(_answer(name, path), encoding="utf-8")
        print(run, flush=True)


if __name__ == "__main__":
    main()
