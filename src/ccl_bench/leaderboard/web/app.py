"""The web application: its routes, and its answers to refused requests."""

from __future__ import annotations

import contextlib
import logging
import re
from http import HTTPStatus
from typing import TYPE_CHECKING

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse
from sqlalchemy.exc import SQLAlchemyError
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware

from ccl_bench import __version__
from ccl_bench.base.errors import CclBenchError, UsageError
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
from ccl_bench.report.formatting import plain

if TYPE_CHECKING:
    from fastapi import Request, Response

    from ccl_bench.leaderboard.store import Store

_LOG = logging.getLogger("ccl_bench.leaderboard")
_SECRET = re.compile(r"(cclb_[0-9a-f]{12}_)[A-Za-z0-9_-]+")
"""A token in an address: its secret is never logged."""
_ABOUT = "Published results of LLM training and inference, measured from their traces."
_BODY_BYTES = 64 << 10
"""Of every request except an upload, which has its own limits."""


def create_app(store: Store) -> FastAPI:
    """Return the application for a store."""
    app = FastAPI(
        title="ccl-bench leaderboard",
        version=__version__,
        summary=_ABOUT,
        license_info={"name": "MIT"},
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,  # it would send the browser to whatever host the request named
        max_body_size=_BODY_BYTES,
        responses={422: {"model": Refusal, "description": "The request is invalid."}},
    )
    app.state.store = store
    app.state.token_limiter = RateLimiter()
    app.add_middleware(GZipMiddleware, minimum_size=1000)
    app.add_middleware(AnswerCache, store=store)
    app.add_middleware(AddressLimit, data=store.data)
    app.add_middleware(SecurityHeaders)
    app.include_router(api.router)
    app.include_router(publishing.router)
    app.include_router(page_routes.router)
    app.add_exception_handler(CclBenchError, _answer_refusal)
    app.add_exception_handler(HTTPException, _answer_http_error)
    app.add_exception_handler(RequestValidationError, _answer_invalid_request)
    app.add_exception_handler(SQLAlchemyError, _answer_database_error)
    return app


def _answer_refusal(request: Request, error: Exception) -> Response:
    assert isinstance(error, CclBenchError)  # noqa: S101  what it is registered for
    if isinstance(error, RequestRefused):
        answer = _error_response(request, error.status, _message_with_place(error), error.fix)
        answer.headers.update(error.headers)
        return answer
    is_usage = isinstance(error, UsageError)
    unfit = HTTPStatus.UNPROCESSABLE_ENTITY if _is_api_call(request) else HTTPStatus.NOT_FOUND
    return _error_response(
        request, HTTPStatus.BAD_REQUEST if is_usage else unfit, _message_with_place(error), error.fix
    )


def _message_with_place(error: CclBenchError) -> str:
    """Return the message and its place, without folders of this machine."""
    where = error.where.rpartition("/")[2]
    return f"{where}: {error.message}" if where else error.message


def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)  # noqa: S101
    answer = _error_response(request, HTTPStatus(error.status_code), str(error.detail))
    answer.headers.update(error.headers or {})
    return answer


def _answer_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)  # noqa: S101
    wrong = "; ".join(f"{'.'.join(map(str, each['loc'][1:]))}: {each['msg']}" for each in error.errors())
    return _error_response(request, HTTPStatus.UNPROCESSABLE_ENTITY, wrong or "the request is invalid")


def _answer_database_error(request: Request, error: Exception) -> Response:
    _LOG.error("the database does not answer: %s", error)
    return _error_response(
        request, HTTPStatus.SERVICE_UNAVAILABLE, "the database does not answer", "try again soon"
    )


def _error_response(request: Request, status: HTTPStatus, detail: str, fix: str = "") -> Response:
    """Log a refusal and return it: JSON for programs, a page for people."""
    if _is_api_call(request) or status != HTTPStatus.NOT_FOUND:
        _log_refusal(request, status, detail)
    if _is_api_call(request):
        return JSONResponse({"detail": detail, "fix": fix}, status)
    to = page_links(request)
    page = render_page(
        "message.html", status.phrase, to, message=f"{detail[:1].upper()}{detail[1:]}.", fix=fix
    )
    return HTMLResponse(page, status)


def _log_refusal(request: Request, status: HTTPStatus, reason: str) -> None:
    """Log a refusal; the caller is named by the id of the token, never by the token."""
    caller = getattr(request.state, "caller", None)
    fields = {"method": request.method, "path": request.url.path, "query": request.url.query or None}
    fields["client"] = request.client.host if request.client else None
    fields |= {"reason": reason}
    fields = {name: text and plain(_SECRET.sub(r"\1...", text)) for name, text in fields.items()}
    fields |= {"submitter": caller.submitter, "token": caller.token} if caller else {}
    with contextlib.suppress(OSError):
        tokens.log_event(request.app.state.store.data, "refused", status=int(status), **fields)


def _is_api_call(request: Request) -> bool:
    return request.url.path.removeprefix(request.scope.get("root_path", "")).startswith("/api/")
