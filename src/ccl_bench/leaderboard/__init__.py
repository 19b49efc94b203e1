"""Published results: the store that keeps them, the pages that show and rank them, and publishing."""

from __future__ import annotations

from importlib.util import find_spec

from ccl_bench.base.errors import CclBenchError

_NEEDED = ("alembic", "fastapi", "psycopg", "python_multipart", "sqlalchemy", "uvicorn")


def check_installed() -> None:
    """Raise an error with the way out where the packages of the extra are missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise CclBenchError(
            f"the leaderboard needs packages that are not installed: {', '.join(missing)}",
            fix='pip install "ccl-bench[leaderboard]"',
        )
