"""Give commands runs of 12,000 and of 49,000 files of each kind, and compare what they take.

    python tests/hostile/campaigns/many_files.py [KIND...]

Exit status 1 where four times the files take more than six times the processor, or half as much memory again.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from ccl_bench.testing import Plan, write_run

PROGRAMS = Path(sys.executable).parent
COUNTS = (12_000, 49_000)
KINDS = {
    "junk": ("file_{}.txt", b"x"),
    "empty objects": ("file_{}.json", b"{}"),
    "traces": ("rank{}_trace.json", b'{"traceEvents":[]}'),
    "side files": ("training_metrics_{}.json", b'{"loss":[1]}'),
    "cards": ("card_{}.yaml", b"version: 1\n"),
    "databases": ("r{}.sqlite", b"SQLite format 3\0" + bytes(84)),
}
COMMANDS = (["ccl-bench", "inspect"], ["ccl-metrics", "--metric", "comm_comp_overlap"])


def taken(words: list[str], run: Path, cache: Path) -> tuple[float, float]:
    """Return the processor time in seconds and the memory in MiB that a command takes for a run."""
    process = subprocess.Popen(
        [str(PROGRAMS / words[0]), *words[1:], str(run), "--no-cache"],
        env={**os.environ, "CCL_BENCH_CACHE": str(cache)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    assert process.stderr is not None
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in {0, 3, 4} or "Traceback" in said:
        raise SystemExit(f"{words}: status {process.returncode}: {said[-500:]}")
    return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def main(kinds: list[str]) -> int:
    """Measure every kind with every command."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    wrong = 0
    for kind in kinds or KINDS:
        name, content = KINDS[kind]
        found: dict[str, list[tuple[float, float]]] = {}
        for count in COUNTS:
            with tempfile.TemporaryDirectory() as place:
                run = Path(place) / "run"
                write_run(Plan(dp_shard=2, steps=3), run)
                for number in range(count - 10):
                    folder = run / f"d{number // 1000}"
                    folder.mkdir(exist_ok=True)
                    (folder / name.format(number)).write_bytes(content)
                for words in COMMANDS:
                    found.setdefault(words[1], []).append(taken(words, run, Path(place) / "cache"))
        for command, ((few_s, few_mb), (many_s, many_mb)) in found.items():
            is_wrong = many_s > 6 * few_s or many_mb > 1.5 * few_mb
            wrong += is_wrong
            print(
                f"{kind}, {command}: {few_s:.1f} and {many_s:.1f} s, {few_mb:.0f} and {many_mb:.0f} MiB"
                f"{': too much' if is_wrong else ''}",
                flush=True,
            )
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
