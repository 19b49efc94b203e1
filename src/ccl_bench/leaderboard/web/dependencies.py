"""Dependencies of routes: the store, the addresses of pages, and the caller with their role."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from ccl_bench.leaderboard.errors import RequestRefused
from ccl_bench.leaderboard.pages.links import Links
from ccl_bench.leaderboard.publishing.settings import load_settings
from ccl_bench.leaderboard.publishing.tokens import Caller, Role, authenticate, require_role
from ccl_bench.leaderboard.web.rate_limits import too_many

if TYPE_CHECKING:
    from collections.abc import Callable

    from ccl_bench.leaderboard.store import Store


def page_links(request: Request) -> Links:
    """Return the addresses of this server, behind any prefix."""
    return Links(request.scope.get("root_path", "").rstrip("/"))


def current_store(request: Request) -> Store:
    """Return the store, updated with new bundles in its folder."""
    store: Store = request.app.state.store
    store.catch_up_if_changed()
    return store


_BEARER = HTTPBearer(auto_error=False, scheme_name="token", description="A token of this server, cclb_...")

BearerToken = Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]


def optional_caller(request: Request, bearer: BearerToken) -> Caller | None:
    """Return the caller; None without a token; raise a refusal for an invalid or too busy one."""
    if "authorization" not in request.headers:
        return None
    caller = authenticate(request.app.state.store.engine, bearer.credentials) if bearer else None
    if caller is None:
        raise _unauthorized("the token is forged, revoked or expired")
    request.state.caller = caller
    allowed = load_settings(request.app.state.store.data).token_requests_per_minute
    if wait := request.app.state.token_limiter.take(caller.token, allowed):
        raise too_many(f"the token {caller.token}", allowed, wait)
    return caller


OptionalCaller = Annotated[Caller | None, Depends(optional_caller)]


def required_caller(caller: OptionalCaller) -> Caller:
    """Return the caller, or raise a refusal without a token."""
    if caller is None:
        raise _unauthorized("this request needs a token")
    return caller


AnyCaller = Annotated[Caller, Depends(required_caller)]


def _require(role: Role) -> Callable[[Caller], Caller]:
    def check(caller: AnyCaller) -> Caller:
        require_role(caller, role)
        return caller

    return check


Maintainer = Annotated[Caller, Depends(_require(Role.MAINTAINER))]
Admin = Annotated[Caller, Depends(_require(Role.ADMIN))]


def _unauthorized(what: str) -> RequestRefused:
    return RequestRefused(
        what,
        fix="ask the operator of this leaderboard for one, and put it into CCL_BENCH_TOKEN",
        status=HTTPStatus.UNAUTHORIZED,
        headers={"www-authenticate": "Bearer"},
    )
