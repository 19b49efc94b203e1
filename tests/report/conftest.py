"""What the tests of reports share: observed runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from observations import observation_of

if TYPE_CHECKING:
    from ccl_bench.result.report_data import ReportData

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "runs"


@pytest.fixture(scope="session")
def example() -> Path:
    """Return the example run with FSDP2 and tensor parallelism, four ranks, three recorded steps."""
    return EXAMPLES / "llama-tiny-fsdp2-tp2-gloo"


@pytest.fixture(scope="session")
def one_rank(example: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return what one rank recorded of it, for tests that ask in which form a report comes."""
    folder = tmp_path_factory.mktemp("one-rank") / "run"
    folder.mkdir()
    for name in ("workload_card.yaml", "run_metadata.json", "kineto_trace_0.json.gz"):
        shutil.copy(example / name, folder)
    return folder


@pytest.fixture(scope="session")
def observed(example: Path) -> ReportData:
    """Return the example run, observed."""
    return observation_of(example)
