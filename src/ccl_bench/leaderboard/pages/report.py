"""The report of a published run, drawn from the data in its bundle."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from ccl_bench.base.errors import CclBenchError, InputError
from ccl_bench.leaderboard.store.bundle import REPORT
from ccl_bench.report.page import report_page
from ccl_bench.report.render.html import run_page
from ccl_bench.result import report_data

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.pages.links import Links
    from ccl_bench.leaderboard.store.bundle import Bundle


def report(bundle: Bundle, to: Links) -> str:
    """Return the report as a page that leads back to the run."""
    return _drawn(bundle.folder / REPORT, to.asset("").rstrip("/"), to.run(bundle.id))


@lru_cache(maxsize=16)
def _drawn(path: Path, assets: str, run: str) -> str:
    if not path.exists():
        raise InputError("this run was published without a report")
    try:
        shown = report_page(report_data.from_json(path.read_bytes()))
        return run_page(shown, assets=assets, before=[(run, "Back to the run")])
    except CclBenchError:
        raise
    except Exception as error:  # a stranger wrote the file: whatever it holds must not take the server down
        raise InputError(f"the report of this run cannot be drawn: {error}") from error
