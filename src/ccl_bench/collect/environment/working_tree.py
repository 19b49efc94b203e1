"""The state of the working directory in git: commit, branch, and whether something is not committed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.collect.environment.sources import Absent, output_of

if TYPE_CHECKING:
    from pathlib import Path

_PATIENCE_S = 10.0


def described(folder: Path) -> dict[str, str | bool | int]:
    """Return commit, branch and the number of changed files of the checkout that `folder` is in."""
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no").splitlines()
    return {
        "commit": commit,
        "branch": _git(folder, "rev-parse", "--abbrev-ref", "HEAD"),
        "is_clean": not changed,
        "changed_files": len(changed),
    }


def _git(folder: Path, *arguments: str) -> str:
    """Return what git says; optional locks stay untaken, so that nothing is written into the checkout."""
    try:
        said = output_of("git", "--no-optional-locks", "-C", str(folder), *arguments, patience_s=_PATIENCE_S)
    except Absent as reason:
        if "not a git repository" in str(reason):
            raise Absent("the working directory is no git checkout") from reason
        raise
    return said.strip()
