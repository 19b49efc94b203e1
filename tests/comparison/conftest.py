"""Generated runs that several modules compare: each is written once, and nobody changes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from compared_runs import written

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the run that others are compared with; they lie beside it."""
    return written(tmp_path_factory.mktemp("compared") / "before")


@pytest.fixture(scope="session")
def slower(before: Path) -> Path:
    """Return a run whose backward pass takes 12 % longer."""
    return written(before.with_name("after"), seed=1, backward_ns=672_000)


@pytest.fixture(scope="session")
def other_batch(before: Path) -> Path:
    """Return a run of another batch size."""
    return written(before.with_name("other"), microbatch_size=2)
