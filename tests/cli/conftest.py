"""What the tests of commands share: runs, tables that were read once, and a plain terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from ccl_bench.testing import Plan, write_run

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "runs"


@pytest.fixture(autouse=True)
def _plain_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLUMNS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture(scope="session")
def sharded() -> Path:
    """Return the example run with FSDP2 and tensor parallelism, four ranks, three recorded steps."""
    return EXAMPLES / "llama-tiny-fsdp2-tp2-gloo"


@pytest.fixture(scope="session")
def pipelined() -> Path:
    """Return the example run with four pipeline stages."""
    return EXAMPLES / "llama-tiny-pp4-gloo"


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a generated run of two ranks with three steps, 1 to 3."""
    folder = tmp_path_factory.mktemp("small")
    write_run(Plan(dp_shard=2, steps=3), folder)
    return folder


@pytest.fixture(scope="session")
def kineto(corpus: Path) -> Path:
    """Return the folder of real Kineto traces."""
    return corpus / "kineto"
