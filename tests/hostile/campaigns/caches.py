"""Share one cache among processes of two versions of the program, which are killed and whose entries vanish.

    python tests/hostile/campaigns/caches.py --minutes 5 --seed 1

Exit status 1 where a number differs from the one without a cache, a command ends with a traceback, or what
killed processes left behind is anywhere but in the folder that is cleaned.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from disturbing import attempts, broken

if TYPE_CHECKING:
    import random

ROOT = Path(__file__).resolve().parents[3]
RUN = ROOT / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"
PROGRAM = """
import sys
from ccl_bench.trace import cache, content
cache.LAYOUT = int(sys.argv[1])
cache.LARGE_ROWS = content.LARGE_ROWS = int(sys.argv[2])
from ccl_bench.cli.metrics import main
sys.exit(main(sys.argv[3:]))
"""
METRICS = ("coll_call_num", "iteration_wall_clock_time", "comm_comp_overlap", "straggler")


def started(version: int, large_rows: int, *more: str, cache: Path) -> subprocess.Popen[str]:
    """Start a measurement by one version of the program, to which tables from some rows on are large."""
    words = [word for name in METRICS for word in ("--metric", name)]
    return subprocess.Popen(
        [
            sys.executable,
            "-c",
            PROGRAM,
            str(version),
            str(large_rows),
            str(RUN),
            *words,
            "--format",
            "json",
            *more,
        ],
        env={**os.environ, "CCL_BENCH_CACHE": str(cache)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def numbers(printed: str) -> dict[str, float | None]:
    """Return metric → value of what was printed."""
    return {result["metric"]: result["value"] for result in json.loads(printed)}


def disturb(cache: Path, chance: random.Random) -> str:
    """Remove or damage part of the cache in one of the ways there are, and return its name."""
    files = [path for path in cache.rglob("*") if path.is_file()]
    kind = chance.choice(
        ("nothing", "all removed", "an entry removed", "a file removed", "a file cut", "a file changed")
    )
    try:
        match kind:
            case "all removed":
                shutil.rmtree(cache, ignore_errors=True)
            case "an entry removed" if files:
                shutil.rmtree(chance.choice(files).parent, ignore_errors=True)
            case "a file removed" if files:
                chance.choice(files).unlink()
            case "a file cut" if files:
                path = chance.choice(files)
                os.truncate(path, chance.randrange(path.stat().st_size + 1))
            case "a file changed" if files:
                path = chance.choice(files)
                with path.open("r+b") as file:
                    file.seek(chance.randrange(path.stat().st_size + 1))
                    file.write(chance.randbytes(64))
    except OSError:  # another process was faster
        return f"{kind}, too late"
    return kind


def main() -> int:
    """Disturb processes until the time is over."""
    wrong, count, again = 0, 0, 0
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder) / "cache"
        whole = numbers(started(3, 1 << 20, "--no-cache", cache=cache).communicate()[0])
        for name, chance in attempts(__doc__):
            processes = [
                started(3 + each % 2, chance.choice((100, 1 << 20)), cache=cache) for each in range(4)
            ]
            time.sleep(3 * chance.random())
            what = disturb(cache, chance)
            if chance.random() < 0.5:
                processes[0].send_signal(signal.SIGKILL)
            problems = []
            for process in processes:
                out, err = process.communicate()
                count += 1
                if process.returncode == -signal.SIGKILL:
                    continue
                if problem := broken(process.returncode, err, {0, 3, 4}):
                    problems.append(problem)
                elif numbers(out) != whole and "run the command again" not in out + err:
                    problems.append(f"{numbers(out)} {err[-300:]}")
                else:
                    again += numbers(out) != whole
            if left := [path.name for path in cache.glob("traces/.*")]:
                problems.append(f"left behind {left}")
            wrong += len(problems)
            for problem in problems:
                print(f"{name}, {what}: {problem}", flush=True)
    print(f"{count} processes, {again} asked to be run again, {wrong} ended wrongly")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
