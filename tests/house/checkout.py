"""The files of the checkout, as git knows them."""

from __future__ import annotations

import ast
import subprocess
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "ccl_bench"


@cache
def files() -> tuple[Path, ...]:
    """Return every file that is, or would be, under version control."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        return tuple(path for path in ROOT.rglob("*") if path.is_file() and ".venv" not in path.parts)
    return tuple(
        path for name in listed.stdout.decode().split("\0") if name and (path := ROOT / name).is_file()
    )


def modules() -> list[Path]:
    """Return the modules of the package."""
    return sorted(path for path in files() if path.suffix == ".py" and SOURCE in path.parents)


@cache
def tree(path: Path) -> ast.Module:
    """Return the syntax tree of a module."""
    return ast.parse(path.read_text(encoding="utf-8"))
