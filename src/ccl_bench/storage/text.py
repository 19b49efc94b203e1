"""Small text files: read with a limit, never a device, never more than asked for; replaced at once."""

from __future__ import annotations

from pathlib import Path

from ccl_bench.base.errors import InputError
from ccl_bench.storage.files import to_path, unreadable, write_atomically

Location = str | Path

MIB = 1 << 20


def read_text(name: Location, limit: int = MIB) -> str:
    """Return the text of a file of at most `limit` bytes, with damaged UTF-8 marked as U+FFFD."""
    raw = _raw(name, limit)
    if len(raw) > limit:
        raise InputError(
            f"is larger than {limit / MIB:g} MiB",
            where=str(name),
            fix="check that this is the right file; files of this kind are small",
        )
    if b"\0" in raw:
        raise InputError("is a binary file, not text", where=str(name), fix="name a text file in UTF-8")
    return raw.decode("utf-8-sig", errors="replace")


def _raw(name: Location, limit: int) -> bytes:
    path = to_path(name)
    try:
        if not path.is_file():
            problem = "is not a regular file" if path.exists() else "does not exist"
            raise InputError(problem, where=str(name), fix="check the path")
        with path.open("rb") as stream:
            return bytes(stream.read(limit + 1))
    except OSError as error:
        raise unreadable(path, error) from error
    except ValueError as error:
        raise InputError(f"is no path: {error}", where=repr(name), fix="check the path") from error


def replace_text(target: Path, text: str) -> None:
    """Write beside the target and rename, so that no reader ever sees half a file."""
    target = target.resolve()
    with write_atomically(target) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="")
        temporary.chmod(target.stat().st_mode & 0o777 if target.exists() else 0o644)
