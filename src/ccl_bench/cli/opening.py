"""Opening a run for measuring: one that holds nothing to measure is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ccl_bench.errors import InputError
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.run import Run


def opened_run(place: str | Path, *, card: str | Path | None = None, profile_mode: str = "auto") -> Run:
    """Return the run at `place`; raise InputError where it holds neither a trace nor a side file."""
    run = open_run(place, card=card, profile_mode=profile_mode)
    if run.traces or run.stated.files:
        return run
    unreadable = [f"{finding.file} {finding.message}" for finding in run.findings]
    if unreadable:
        more = f" and {len(unreadable) - 1} more" if len(unreadable) > 1 else ""
        raise InputError(
            unreadable[0] + more, where=str(run.path), fix="check the files and their permissions"
        )
    what = f"no {profile_mode} trace" if profile_mode != "auto" else "no trace of a known format"
    found = f", only files such as {run.others[0].name}" if run.others and run.path.is_dir() else ""
    raise InputError(
        f"holds {what}{found}" if run.path.is_dir() else f"is {what}",
        where=str(run.path),
        fix="give the directory or file that the profiler wrote; ccl-bench inspect shows what is recognised",
    )
