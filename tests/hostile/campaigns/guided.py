"""Fuzz the readers guided by which of their lines an input reaches (atheris, libFuzzer).

    python tests/hostile/campaigns/guided.py --seconds 300

gives each reader its share of the time, in a process of its own, from real files as seeds. A reader may
return, or refuse with an InputError; anything else, 2 GiB of memory or 20 s for one input are findings, and
the input that shows it is left behind. Exit status 1 where there is one.
"""

from __future__ import annotations

import argparse
import io
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SEEDS = {
    "kineto": ("kineto",),
    "jax_trace": ("viewer trace",),
    "execution_trace": ("execution trace",),
    "memory_snapshot": ("snapshot",),
    "flight_recorder": ("dump",),
    "rocprof": ("rocprof",),
    "rocpd": ("rocpd",),
    "vllm": ("serving",),
    "aiperf": ("serving lines",),
    "nsys": ("database",),
    "xplane": ("profile",),
    "card": ("card",),
    "metadata": ("side file",),
    "device_samples": ("samples",),
    "nccl_tests": ("table",),
    "chakra": ("chakra",),
    "nccl_inspector": ("records",),
}
"""Reader -> kinds of files, as `subjects` names them, that it begins from."""

LONGEST = 32 << 10
"""Bytes of an input; a seed is cut to it."""
LONGER = {"xplane": 96 << 10}
"""Bytes of an input for readers to which a file says nothing that is cut."""
LIMITS = ("-timeout=20", "-rss_limit_mb=2048", "-print_final_stats=1", "-verbosity=0")
RUNS = re.compile(r"stat::number_of_executed_units: +(\d+)")


def reader(name: str) -> Callable[[bytes], object]:
    """Return what takes the bytes of a file."""
    from ccl_bench.card import card_in_text
    from ccl_bench.side_files import device_samples_in_text, metadata_in_text, nccl_tests_in_text
    from ccl_bench.trace import formats

    if name == "card":
        return lambda data: card_in_text(data.decode("utf-8", "replace"))
    if name == "metadata":
        return lambda data: metadata_in_text(data.decode("utf-8", "replace"))
    if name == "device_samples":
        return lambda data: device_samples_in_text(data.decode("utf-8", "replace"))
    if name == "nccl_tests":
        return lambda data: nccl_tests_in_text(data.decode("utf-8", "replace"), file="all_reduce.txt")
    form = formats.load().get(name)
    if form.read is not None:
        read = form.read
        return lambda data: read(io.BytesIO(data), "input")
    parts, part_of = form.in_parts.parts, form.in_parts.read
    place = Path(tempfile.mkdtemp(dir="/dev/shm"), "input.sqlite")

    def read_parts(data: bytes) -> None:
        place.write_bytes(data)
        for part in parts(place):
            part_of(place, "input.sqlite", part.id)

    return read_parts


def fuzz(name: str, arguments: list[str]) -> None:
    """Fuzz one reader in this process, which ends with it."""
    import atheris

    with atheris.instrument_imports(include=["ccl_bench"]):
        from ccl_bench.base.errors import InputError

        read = reader(name)

    def one(data: bytes) -> None:
        with suppress(InputError):
            read(data)

    atheris.Setup([sys.argv[0], *arguments], one)
    atheris.Fuzz()


def seeded(place: Path) -> dict[str, Path]:
    """Write the beginnings of real files, decompressed, one folder for each reader."""
    from subjects import made

    from ccl_bench.storage import open_file

    folders = {name: place / name for name in SEEDS}
    for folder in folders.values():
        folder.mkdir(parents=True)
    for subject in made(place / "subjects"):
        for file, kind in subject.files.items():
            with open_file(subject.folder / file) as stream:
                content = stream.read(max(LONGEST, *LONGER.values()))
            for name in (name for name, kinds in SEEDS.items() if kind in kinds):
                own = content[: LONGER.get(name, LONGEST)]
                (folders[name] / f"{subject.name}-{Path(file).name}").write_bytes(own)
    return {name: folder for name, folder in folders.items() if any(folder.iterdir())}


def main() -> int:
    """Fuzz every reader for its share of the time, or the one that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seconds", type=int, default=240, help="for all readers together")
    parser.add_argument("--only", choices=SEEDS, help="fuzz this reader alone")
    parser.add_argument("--inputs", type=Path, default=Path("build/fuzz"), help="where findings are left")
    chosen, rest = parser.parse_known_args()
    if rest:
        fuzz(chosen.only, rest)
    with tempfile.TemporaryDirectory(prefix="ccl-bench-guided-") as place:
        folders = seeded(Path(place))
        names = [chosen.only] if chosen.only else list(folders)
        share = max(1, chosen.seconds // len(names))
        found = [name for name in names if not is_sound(name, folders[name], share, chosen.inputs)]
    return 1 if found else 0


def is_sound(name: str, seeds: Path, seconds: int, inputs: Path) -> bool:
    """Fuzz one reader in a process of its own, tell what came of it, and return whether nothing was found."""
    left = inputs / name
    left.mkdir(parents=True, exist_ok=True)
    length = f"-max_len={LONGER.get(name, LONGEST)}"
    options = [*LIMITS, length, f"-max_total_time={seconds}", f"-artifact_prefix={left}/"]
    command = [sys.executable, __file__, "--only", name, *options, str(seeds)]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    inputs_run = RUNS.search(done.stderr)
    print(f"{name}: {inputs_run[1] if inputs_run else 'no'} inputs in {seconds} s", flush=True)
    if done.returncode:
        print(done.stdout[-2000:] + done.stderr[-4000:], flush=True)
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
