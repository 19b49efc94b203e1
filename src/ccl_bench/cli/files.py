"""Files that commands write: never over one that is there, unless that is wanted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from ccl_bench.errors import UsageError

Output = Annotated[
    str | None, Parameter(alias="-o", metavar="FILE", help="File to write in place of stdout.")
]
Force = Annotated[bool, Parameter(help="Overwrite a file that is there already.")]


def target(output: str, *, force: bool) -> Path:
    """Return the file to write; raise UsageError where one is there already."""
    path = Path(output)
    if path.is_dir():
        raise UsageError(f"{path} is a directory", fix="name a file")
    if path.exists() and not force:
        raise UsageError(f"{path} is there already", fix="give --force to overwrite it, or another name")
    return path
