"""Change files of real runs while commands read them, again and again at any moment.

    python tests/hostile/campaigns/changing.py --minutes 5 --seed 1

A file is truncated, grown, overwritten, replaced, removed or made a pipe at a random moment while the
command runs. Exit status 1 where a command ended with a traceback, a status of its own, or not at all.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from disturbing import attempts, broken

if TYPE_CHECKING:
    import random

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(sys.executable).parent
PATIENCE_S = 300
EXPECTED = {0, 1, 3, 4}
COMMANDS = (
    ["ccl-metrics", "RUN", "--all", "--format", "json"],
    ["ccl-bench", "inspect", "RUN"],
    ["ccl-bench", "report", "RUN", "--output", "OUT/report.html", "--force"],
    ["ccl-bench", "timeline", "RUN", "--output", "OUT/timeline.json", "--force"],
    ["ccl-bench", "publish", "RUN", "--to", "OUT/board", "--traces", "include"],
)


def _runs() -> list[Path]:
    """Return bundled runs and, where there is a corpus, one of each format."""
    runs = [ROOT / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"]
    if corpus := os.environ.get("CCL_BENCH_CORPUS"):
        names = ("nsys/tiny", "memory", "flight-recorder/ok", "serving/aiperf", "xplane/cpu-2x2-gloo/p0")
        runs += [Path(corpus, name) for name in names]
    return runs


def change(path: Path, chance: random.Random) -> str:
    """Change a file in one of the ways there are, and return its name."""
    kind = chance.choice(("truncated", "grown", "overwritten", "replaced", "removed", "a pipe"))
    content = path.read_bytes()
    part = chance.randrange(len(content) + 1)
    match kind:
        case "truncated":
            os.truncate(path, part)
        case "grown":
            with path.open("ab") as file:
                file.write(content[:part])
        case "overwritten":
            with path.open("r+b") as file:
                file.seek(part)
                file.write(chance.randbytes(min(1 << 20, len(content) - part)))
        case "replaced":
            other = path.with_name(f".{path.name}")
            other.write_bytes(content[::-1])
            other.replace(path)
        case _:
            path.unlink()
            if kind == "a pipe":
                os.mkfifo(path)
    return kind


def attempted(run: Path, place: Path, words: list[str], chance: random.Random) -> tuple[str, str]:
    """Return what was done to a run while a command read it, and what the command did wrong, if anything."""
    copy = shutil.copytree(run, place / "run")
    (place / "out").mkdir()
    path = chance.choice(sorted(each for each in copy.rglob("*") if each.is_file()))
    line = [word.replace("RUN", str(copy)).replace("OUT", str(place / "out")) for word in words]
    environment = {**os.environ, "CCL_BENCH_CACHE": str(place / "cache")}
    delay = 2.5 * chance.random()
    process = subprocess.Popen(
        [str(PROGRAMS / line[0]), *line[1:]],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    done: list[str] = []
    timer = threading.Timer(delay, lambda: done.append(change(path, chance)))
    timer.start()
    try:
        _, err = process.communicate(timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return f"{path.name} {done}", "does not end"
    finally:
        timer.cancel()
        timer.join()
    what = f"{words[1] if words[0] == 'ccl-bench' else words[0]}: {path.name} {done} after {delay:.2f} s"
    return what, broken(process.returncode, err, EXPECTED)


def main() -> int:
    """Change files until the time is over."""
    number, count, wrong = 0, 0, 0
    for name, chance in attempts(__doc__):
        number += 1
        with tempfile.TemporaryDirectory() as place:
            what, problem = attempted(chance.choice(_runs()), Path(place), chance.choice(COMMANDS), chance)
        count += "[]" not in what
        if problem:
            wrong += 1
            print(f"{name}, {what}: {problem}", flush=True)
    print(f"{number} commands, {count} with a file that changed, {wrong} ended wrongly")
    return wrong > 0


if __name__ == "__main__":
    sys.exit(main())
