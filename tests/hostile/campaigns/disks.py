"""Give every command disks that are full or read-only, for its cache, its outputs and its folder of work.

    python tests/hostile/campaigns/disks.py [COMMAND...]

As root, in a mount namespace of its own. Exit status 1 where a command ended with a traceback, with a status
that its help does not name, without a word about what cannot be written, or left half an output behind.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PROGRAMS = Path(sys.executable).parent
RUN = ROOT / "examples" / "runs" / "llama-tiny-fsdp2-tp2-gloo"
PATIENCE_S = 300

COMMANDS = {
    "approve": "board approve DATA 0123456789",
    "audit": "board audit DATA",
    "backup": "board backup DATA OUT/backup",
    "baseline": "baseline keep mine RUN",
    "chakra": "chakra RUN --output OUT/chakra",
    "collect": "collect --output OUT/recorded -- true",
    "gather": "collect --output OUT/gathered --source RUN",
    "compare": "compare RUN RUN --output OUT/compared.html",
    "completion": "completion bash",
    "demo": "demo --output OUT/demo",
    "diagnose": "diagnose RUN",
    "hang": "hang RUN",
    "index": "board index DATA",
    "inspect": "inspect RUN",
    "key": "board key DATA ada PUBLIC",
    "keygen": "sign new OUT/mine",
    "log": "log RUN --to tensorboard:OUT/events",
    "mcp": "mcp RUN",
    "metrics": "ccl-metrics RUN -m comm_comp_overlap",
    "new": "new OUT/made",
    "publish": "publish RUN --to OUT/board",
    "publish-into": "publish RUN --to DATA",
    "report": "report RUN --output OUT/report.html",
    "report-json": "report RUN --output OUT/report.json",
    "serve": "serve DATA --port 0",
    "site": "board site DATA --output OUT/site",
    "tables": "tables RUN --output OUT/tables",
    "timeline": "timeline RUN --output OUT/timeline.json",
    "token": "board token DATA ada",
    "validate": "validate RUN",
    "verify": "sign verify BUNDLE --key PUBLIC",
    "watch": "watch RUN --output OUT/watched --once",
    "what-if": "what-if RUN",
    "withdraw": "board withdraw RUN_ID --at DATA",
    "worker": "board worker DATA --until-empty",
}
"""Command → its words. OUT, DATA and the cache are on the disk, the rest is not."""
EXPECTED = {0, 1, 2, 3, 4}


@dataclass
class Disk:
    """A disk in memory that takes nothing more."""

    place: Path
    is_full: bool

    def mount(self, data: Path) -> None:
        """Mount it with a copy of a leaderboard, and let nothing more be written."""
        self.place.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "none", self.place], check=True)
        shutil.copytree(data, self.place / "data")
        for name in ("out", "cache", "tmp"):
            (self.place / name).mkdir()
        if self.is_full:
            used = sum(path.stat().st_blocks * 512 for path in self.place.rglob("*"))
            options = f"remount,size={used + (64 << 10)}"
            subprocess.run(["mount", "-o", options, self.place], check=True)
            with (self.place / "filler").open("wb", buffering=0) as filler:
                try:
                    while filler.write(bytes(4096)):
                        pass
                except OSError:
                    pass
        else:
            subprocess.run(["mount", "-o", "remount,ro", self.place], check=True)

    def unmount(self) -> None:
        """Forget it."""
        subprocess.run(["umount", "-l", self.place], check=True)
        self.place.rmdir()


GROWING = ("-shm", "-wal", ".lock", "index.sqlite", "windows.jsonl", ".0")
"""Files that may be empty, and that the next command fills."""


def _listed(folder: Path) -> dict[str, int]:
    """Return the files below a folder and their sizes, without links and without files that grow."""
    return {
        str(path.relative_to(folder)): path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not path.is_symlink() and not path.name.endswith(GROWING)
    }


def attempted(command: str, disk: Disk, words: dict[str, str], *, has_temporary: bool) -> list[str]:
    """Return the promises that a command broke on a disk."""
    names = words | {"OUT": str(disk.place / "out"), "DATA": str(disk.place / "data")}
    line = COMMANDS[command].split()
    for name, value in names.items():
        line = [value if part == name else part.replace(f"{name}/", f"{value}/") for part in line]
    program = [] if line[0] == "ccl-metrics" else ["ccl-bench"]
    environment = {
        **os.environ,
        "CCL_BENCH_CACHE": str(disk.place / "cache"),
        "XDG_DATA_HOME": str(disk.place / "out"),
        "COLUMNS": "200",
        **({} if has_temporary else {"TMPDIR": str(disk.place / "tmp")}),
    }
    before = _listed(disk.place)
    full = [*program, *line]
    process = subprocess.Popen(
        [str(PROGRAMS / full[0]), *full[1:]],
        cwd=disk.place,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        out, err = process.communicate(timeout=8 if command in {"serve", "mcp"} else PATIENCE_S)
    except subprocess.TimeoutExpired:
        process.terminate()
        out, err = process.communicate(timeout=PATIENCE_S)
        process.returncode = 0 if command in {"serve", "mcp"} else process.returncode
    broken = []
    if "Traceback" in out + err:
        broken.append("traceback: " + err.strip().splitlines()[-1][:200])
    if process.returncode not in EXPECTED:
        broken.append(f"status {process.returncode}: {err.strip()[-300:]}")
    if process.returncode and "fix: " not in err:
        broken.append(f"no fix: {err.strip()[-300:]}")
    new = {name: size for name, size in _listed(disk.place).items() if before.get(name) != size}
    if disk.is_full and process.returncode and new:
        broken.append(f"left behind: {new}")
    return broken


def prepared(folder: Path) -> dict[str, str]:
    """Return a leaderboard with one run, and a key, and what commands are given."""

    def bench(*words: str) -> str:
        done = subprocess.run(
            [PROGRAMS / "ccl-bench", *words], cwd=folder, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    bench("sign", "new", "ada")
    page = bench("publish", str(RUN), "--to", "data")
    run = page.rpartition("/")[2]
    return {
        "RUN": str(RUN),
        "RUN_ID": run,
        "PUBLIC": str(folder / "ada.pub"),
        "BUNDLE": str(folder / "data" / "runs" / run),
    }


def main(names: list[str]) -> int:
    """Attempt every command on every disk."""
    if os.environ.get("DISKS_OF_ITS_OWN") != "1":
        environment = {**os.environ, "DISKS_OF_ITS_OWN": "1"}
        return subprocess.run(["unshare", "-m", sys.executable, *sys.argv], env=environment).returncode
    count = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        words = prepared(folder)
        for is_full in (True, False):
            for command in names or COMMANDS:
                for has_temporary in (True, False):
                    disk = Disk(folder / "disk", is_full)
                    disk.mount(folder / "data")
                    try:
                        broken = attempted(command, disk, words, has_temporary=has_temporary)
                    finally:
                        disk.unmount()
                    kind = "full" if is_full else "read-only"
                    place = f"{command} on a {kind} disk{'' if has_temporary else ', temporary files too'}"
                    for promise in broken:
                        count += 1
                        print(f"{place}: {promise}", flush=True)
    print(f"{count} promises were not kept")
    return count > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
