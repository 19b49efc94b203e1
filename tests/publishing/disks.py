"""Small file systems of their own, in memory or in a file, to look at as after a loss of power."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def mounted(place: Path, *options: str) -> Iterator[Path]:
    """Mount a file system on a new folder while this lasts; skip the test where that is not possible."""
    place.mkdir()
    done = subprocess.run(["mount", *options, str(place)], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted: run the tests as root ({done.stderr.decode().strip()})")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def small_disk(place: Path, mib: int) -> contextlib.AbstractContextManager[Path]:
    """Mount a disk of some MiB."""
    return mounted(place, "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs")


def image(file: Path, mib: int) -> Path:
    """Return a file that holds an empty ext4 file system."""
    if not shutil.which("mkfs.ext4"):
        pytest.skip("no mkfs.ext4 (apt-get install e2fsprogs)")
    file.touch()
    with file.open("r+b") as stream:
        stream.truncate(mib << 20)
    subprocess.run(["mkfs.ext4", "-q", str(file)], check=True)
    return file
