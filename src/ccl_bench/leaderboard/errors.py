"""Errors of the leaderboard: missing packages, and requests that a server refuses."""

from __future__ import annotations

from http import HTTPStatus
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ccl_bench.base.errors import CclBenchError, InputError

if TYPE_CHECKING:
    from collections.abc import Mapping


_NEEDED = ("alembic", "cryptography", "fastapi", "psycopg", "python_multipart", "sqlalchemy", "uvicorn")


def check_installed() -> None:
    """Raise an error with the fix if packages of the extra are missing."""
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise CclBenchError(
            f"the leaderboard needs packages that are not installed: {', '.join(missing)}",
            fix='pip install "ccl-bench[leaderboard]"',
        )


class RequestRefused(InputError):  # noqa: N818 (an answer, not an error)
    """A request that the server refuses: the reason and the fix."""

    def __init__(
        self,
        message: str,
        *,
        where: str = "",
        fix: str = "",
        status: HTTPStatus = HTTPStatus.UNPROCESSABLE_ENTITY,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, where=where, fix=fix)
        self.status = status
        self.headers = dict(headers or {})
