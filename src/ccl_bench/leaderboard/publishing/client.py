"""The other side of the interface: what `ccl-bench` asks of a leaderboard over HTTP."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

import httpx
from pydantic import TypeAdapter, ValidationError

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.leaderboard.bundle.archive import MEDIA_TYPE
from ccl_bench.leaderboard.publishing.models import Acceptance, Receipt, Terms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

TOKEN_VARIABLE = "CCL_BENCH_TOKEN"  # noqa: S105  the name of a variable
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}
_TIMEOUT = httpx.Timeout(30.0, read=600.0, write=120.0)
_PAUSES_S = (1.0, 2.0, 4.0, 8.0)
"""Waits between attempts to send a bundle. It may arrive twice: the second time it is there already."""
_AGAIN = {HTTPStatus.BAD_GATEWAY, HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.GATEWAY_TIMEOUT}
_BLOCK_BYTES = 1 << 20
_TERMS, _ACCEPTANCE = TypeAdapter(Terms), TypeAdapter(Acceptance)
_RECEIPT, _RECEIPTS = TypeAdapter(Receipt), TypeAdapter(list[Receipt])

T = TypeVar("T")


def token_from(file: str | None) -> str | None:
    """Return the token in a file, else that of the environment; None where there is none."""
    if file is None:
        return os.environ.get(TOKEN_VARIABLE, "").strip() or None
    try:
        return Path(file).expanduser().read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        fix = f"write the token into it, or into {TOKEN_VARIABLE}"
        raise InputError(f"cannot be read: {error}", where=file, fix=fix) from error


@dataclass(frozen=True, slots=True)
class Leaderboard:
    """A leaderboard at an address, asked with a token."""

    address: str
    token: str | None = None

    def __post_init__(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise UsageError(
                f"{self.address} is no address of a leaderboard", fix="give https://HOST or a directory"
            )
        if self.token and parts.scheme == "http" and parts.hostname not in _LOOPBACK:
            raise UsageError(
                f"{self.address} is not encrypted, and everybody on the way could read the token",
                fix="use https://, or a tunnel: ssh -L 8000:localhost:8000 HOST",
            )

    def terms(self) -> Terms:
        """Return what the leaderboard takes, and whom the token belongs to."""
        return _read(_TERMS, self._asked("GET", "publishing"))

    def publish(self, archive: Path, *, told: Callable[[int, int], None] | None = None) -> Acceptance:
        """Send a bundle; `told` is called with the bytes that are under way and their number."""
        size = archive.stat().st_size
        headers = {"content-type": MEDIA_TYPE, "content-length": str(size)}

        def body() -> Iterator[bytes]:
            sent = 0
            with archive.open("rb") as stream:
                while block := stream.read(_BLOCK_BYTES):
                    yield block
                    sent += len(block)
                    if told:
                        told(sent, size)

        answer = self._asked("POST", "bundles", body=body, headers=headers, pauses_s=_PAUSES_S)
        return _read(_ACCEPTANCE, answer)

    def withdraw(self, run: str, note: str) -> Receipt:
        """Take a run back."""
        return _read(_RECEIPT, self._asked("POST", f"bundles/{run}/withdraw", json={"note": note}))

    def approve(self, run: str, note: str) -> Receipt:
        """List a run that waits."""
        return _read(_RECEIPT, self._asked("POST", f"bundles/{run}/approve", json={"note": note}))

    def waiting(self) -> list[Receipt]:
        """Return the bundles in quarantine."""
        return _read(_RECEIPTS, self._asked("GET", "bundles"))

    def page(self, run: str) -> str:
        """Return the address of a run's page."""
        return f"{self.address.rstrip('/')}/runs/{run}"

    def _asked(
        self,
        method: str,
        path: str,
        *,
        body: Callable[[], Iterator[bytes]] | None = None,
        pauses_s: Sequence[float] = (),
        **how: Any,
    ) -> httpx.Response:
        """Return the answer to a call, made again after each pause where it did not arrive.

        Raises InputError where it is refused, or never arrives.
        """
        address = f"{self.address.rstrip('/')}/api/v1/{path}"
        headers = how.pop("headers", {}) | ({"authorization": f"Bearer {self.token}"} if self.token else {})
        for pause in (*pauses_s, None):
            try:
                content = body() if body else None
                answer = httpx.request(
                    method, address, content=content, headers=headers, timeout=_TIMEOUT, **how
                )
            except httpx.TransportError as error:
                if pause is None:
                    fix = "check the address and that the server runs"
                    raise InputError(f"cannot be reached: {error}", where=self.address, fix=fix) from error
            else:
                if answer.status_code not in _AGAIN or pause is None:
                    return _good(answer, self.address)
            time.sleep(pause)
        raise AssertionError("the last attempt returns or raises")


def _good(answer: httpx.Response, address: str) -> httpx.Response:
    if answer.is_success:
        return answer
    try:
        said = answer.json()
        message, fix = str(said["detail"]), str(said.get("fix", ""))
    except (ValueError, LookupError, TypeError):
        message, fix = (
            f"answers with status {answer.status_code}",
            "check that the address is a leaderboard's",
        )
    raise InputError(message, where=address, fix=fix)


def _read(kind: TypeAdapter[T], answer: httpx.Response) -> T:
    try:
        return kind.validate_json(answer.content)
    except ValidationError as error:
        fix = "check the address, and that both sides have the same version of ccl-bench"
        raise InputError("does not answer as a leaderboard does", where=str(answer.url), fix=fix) from error
