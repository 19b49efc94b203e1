"""The web application: its routes, and its answers to refused requests."""

from __future__ import annotations

import contextlib
import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING
from weakref import WeakValueDictionary

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from ccl_bench import __version__
from ccl_bench.base.errors import CclBenchError, UsageError
from ccl_bench.base.text import encode_json, plain
from ccl_bench.leaderboard.errors import RequestRefused
from ccl_bench.leaderboard.pages.render import render_page
from ccl_bench.leaderboard.publishing import tokens
from ccl_bench.leaderboard.web import api, page_routes
from ccl_bench.leaderboard.web import publish_routes as publishing
from ccl_bench.leaderboard.web.api import Refusal
from ccl_bench.leaderboard.web.dependencies import page_links
from ccl_bench.leaderboard.web.kept_answers import AnswerCache
from ccl_bench.leaderboard.web.rate_limits import AddressLimit, RateLimiter
from ccl_bench.leaderboard.web.security import SecurityHeaders

if TYPE_CHECKING:
    from fastapi import Request, Response

    from ccl_bench.leaderboard.store import Store

_LOG = logging.getLogger("ccl_bench.leaderboard")
_SECRET = re.compile(r"(cclb_[0-9a-f]{12}_)[A-Za-z0-9_-]+")
"""A token in an address: its secret is never logged."""
_PACKED = 4
"""Level of gzip: 33 MB of numbers take 0.7 s and become 15.1 MB; at level 9, 5 s and 14.6 MB."""
_LOGGED_PER_MINUTE = 100
"""Refusals of callers without a token that are logged: 0.4 GB a day, with the longest texts in each."""
_BODY_BYTES = 64 << 10
"""Of every request except an upload, which has its own limits."""


class JsonAnswer(JSONResponse):
    """An answer in JSON that is safe to print."""

    def render(self, content: object) -> bytes:
        """Return the answer as bytes."""
        return encode_json(content, indent=-1)


def create_app(store: Store) -> FastAPI:
    """Return the application for a store."""
    app = FastAPI(
        title="ccl-bench leaderboard",
        version=__version__,
        summary="Published results of LLM training and inference, measured from their traces.",
        license_info={"name": "MIT"},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would send the browser to whatever host the request named
        default_response_class=JsonAnswer,
        max_body_size=_BODY_BYTES,
        responses={422: {"model": Refusal, "description": "The request is invalid."}},
    )
    app.state.store = store
    app.state.token_limiter = RateLimiter()
    app.state.refusal_limiter = RateLimiter()
    app.state.upload_turns = WeakValueDictionary()
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=_PACKED)
    app.add_middleware(AnswerCache, store=store)
    app.add_middleware(AddressLimit, data=store.data)
    app.add_middleware(SecurityHeaders)
    app.include_router(api.router)
    app.include_router(publishing.router)
    app.include_router(page_routes.router)
    for refused in (CclBenchError, HTTPException, RequestValidationError, SQLAlchemyError):
        app.add_exception_handler(refused, _answer_error)
    return app


def _answer_error(request: Request, error: Exception) -> Response:
    """Log a refusal and return it: JSON for programs, a page for people."""
    is_api_call = request.url.path.removeprefix(request.scope.get("root_path", "")).startswith("/api/")
    fix = ""
    headers: dict[str, str] = {}
    if isinstance(error, CclBenchError):
        # A page of this server is missing; what a program sent cannot be used.
        status = HTTPStatus.UNPROCESSABLE_ENTITY if is_api_call else HTTPStatus.NOT_FOUND
        if isinstance(error, RequestRefused):
            status, headers = error.status, error.headers
        elif isinstance(error, UsageError):
            status = HTTPStatus.BAD_REQUEST
        where = error.where.rpartition("/")[2]  # without folders of this machine
        detail, fix = f"{where}: {error.message}" if where else error.message, error.fix
    elif isinstance(error, HTTPException):
        status, detail, headers = HTTPStatus(error.status_code), error.detail, dict(error.headers or {})
    elif isinstance(error, RequestValidationError):
        status = HTTPStatus.UNPROCESSABLE_ENTITY
        wrong = (f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors())
        detail = "; ".join(wrong) or "the request is invalid"
    else:
        _LOG.error("the database does not answer: %s", plain(error))
        status = HTTPStatus.SERVICE_UNAVAILABLE
        detail, fix = "the database does not answer", "try again soon"
    if is_api_call or status != HTTPStatus.NOT_FOUND:
        _log_refusal(request, status, detail)
    if is_api_call:
        return JsonAnswer({"detail": detail, "fix": fix}, status, headers)
    message = f"{detail[:1].upper()}{detail[1:]}."
    page = render_page("message.html", status.phrase, page_links(request), message=message, fix=fix)
    return HTMLResponse(page, status, headers)


def _log_refusal(request: Request, status: HTTPStatus, reason: str) -> None:
    """Log a refusal; the caller is named by the id of the token, never by the token."""
    caller = getattr(request.state, "caller", None)
    if caller is None and request.app.state.refusal_limiter.take("all", _LOGGED_PER_MINUTE):
        return
    texts = {
        "method": request.method,
        "path": request.url.path,
        "query": request.url.query or None,
        "client": request.client.host if request.client else None,
        "reason": reason,
    }
    fields = {name: text and _SECRET.sub(r"\1...", text) for name, text in texts.items()}
    fields |= {"submitter": caller.submitter, "token": caller.token} if caller else {}
    with contextlib.suppress(OSError):
        tokens.log_event(request.app.state.store.data, "refused", status=int(status), **fields)
