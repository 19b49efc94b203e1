"""The undamaged runs of the campaign of meaning, and a copy of one whose traces a kind of damage changes."""

from __future__ import annotations

import gzip
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import bytes_damage
import msgspec
from subjects import CORPUS_VARIABLE

Document = dict[str, Any]

RUNS = {
    "megatron": "kineto/megatron-tp8",
    "dlrm": "kineto/dlrm-8rank",
    "resnet": "kineto/nccl-args",
    "mi300": "conclusions/healthy_nosync",
    "gloo": "kineto/gloo-fsdp2-tp2-args",
    "nsys": "nsys/two-gpu-sendrecv",
}
"""Name -> folder in the corpus: NCCL with and without arguments, one rank, AMD, gloo on CPUs, a database."""


class InapplicableError(Exception):
    """A run holds nothing that a kind of damage could change."""


class Traces:
    """A copy of a run: its traces are parsed when asked for, and those are written back."""

    def __init__(self, origin: Path, folder: Path) -> None:
        self.folder = folder
        self._read: dict[str, Document] = {}
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for path in origin.iterdir():
            shutil.copyfile(path, folder / path.name)

    @property
    def names(self) -> list[str]:
        """The Kineto traces, in order."""
        return sorted(path.name for path in self.folder.glob("*.json.gz"))

    def document(self, name: str) -> Document:
        """Return the content of a file; what the caller changes in it is kept."""
        if name not in self._read:
            self._read[name] = msgspec.json.decode(gzip.decompress((self.folder / name).read_bytes()))
        return self._read[name]

    def put(self, name: str, document: Document) -> None:
        """Write a file anew, or one more."""
        self._read[name] = document
        (self.folder / name).touch()

    def remove(self, name: str) -> None:
        """Leave a file out."""
        self._read.pop(name, None)
        (self.folder / name).unlink()

    def database(self) -> sqlite3.Connection:
        """Return the database of the run, in which each statement is written at once."""
        found = next((path for path in self.folder.iterdir() if path.suffix == ".sqlite"), None)
        if not found:
            raise InapplicableError
        return sqlite3.connect(found, isolation_level=None)

    def write(self) -> None:
        """Write the documents that were asked for."""
        for name, document in self._read.items():
            (self.folder / name).write_bytes(bytes_damage.packed(msgspec.json.encode(document)))


def origin(run: str) -> Path:
    """Return the folder of an undamaged run."""
    return Path(os.environ[CORPUS_VARIABLE]) / RUNS[run]
