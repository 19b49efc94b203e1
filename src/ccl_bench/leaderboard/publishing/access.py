"""Who calls, and whether they may."""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from ccl_bench.leaderboard.publishing.curating import caller_must
from ccl_bench.leaderboard.publishing.tokens import Caller, Role, caller_of
from ccl_bench.leaderboard.refusal import Refused

if TYPE_CHECKING:
    from collections.abc import Callable

_BEARER = HTTPBearer(auto_error=False, scheme_name="token", description="A token of this server, cclb_...")

Given = Annotated[HTTPAuthorizationCredentials | None, Depends(_BEARER)]


def perhaps_caller(request: Request, given: Given) -> Caller | None:
    """Return who calls; None without a token, and a refusal with one that is not good."""
    if "authorization" not in request.headers:
        return None
    found = caller_of(request.app.state.store.engine, given.credentials) if given else None
    if found is None:
        raise _unknown("the token is forged, revoked or expired")
    request.state.caller = found
    return found


PerhapsCaller = Annotated[Caller | None, Depends(perhaps_caller)]


def some_caller(caller: PerhapsCaller) -> Caller:
    """Return who calls, or a refusal without a token."""
    if caller is None:
        raise _unknown("this takes a token")
    return caller


AnyCaller = Annotated[Caller, Depends(some_caller)]


def _with(role: Role) -> Callable[[Caller], Caller]:
    def check(caller: AnyCaller) -> Caller:
        caller_must(caller, role)
        return caller

    return check


Maintainer = Annotated[Caller, Depends(_with(Role.MAINTAINER))]
Admin = Annotated[Caller, Depends(_with(Role.ADMIN))]


def _unknown(what: str) -> Refused:
    return Refused(
        what,
        fix="ask the operator of this leaderboard for one, and put it into CCL_BENCH_TOKEN",
        status=HTTPStatus.UNAUTHORIZED,
        headers={"www-authenticate": "Bearer"},
    )
