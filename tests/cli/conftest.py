"""What the tests of commands share: the example runs, real Kineto traces, and a plain terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

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
def kineto(corpus: Path) -> Path:
    """Return the folder of real Kineto traces."""
    return corpus / "kineto"
