"""The HTTP API for submitters, maintainers and admins."""

from __future__ import annotations

import sys
from dataclasses import asdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Request, Response

from ccl_bench import __version__, metrics
from ccl_bench.leaderboard.bundle.archive import MEDIA_TYPE
from ccl_bench.leaderboard.publishing import moderation, tokens
from ccl_bench.leaderboard.publishing.ingest import ingest_archive
from ccl_bench.leaderboard.publishing.models import (
    Acceptance,
    Note,
    Receipt,
    Terms,
    TokenAnswer,
    TokenMade,
    TokenWanted,
)
from ccl_bench.leaderboard.publishing.moderation import receipt, receipts_in_state, visible_receipt
from ccl_bench.leaderboard.publishing.settings import Settings, load_settings
from ccl_bench.leaderboard.publishing.tokens import Caller, Role
from ccl_bench.leaderboard.web.api import Refusal
from ccl_bench.leaderboard.web.dependencies import Admin, AnyCaller, Maintainer, OptionalCaller  # noqa: TC001
from ccl_bench.leaderboard.web.upload import (
    Allowance,
    async_upload_folder,
    declared_bytes,
    receive_body,
    refuse_on_full_disk,
    turn,
)

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.store import Store

_MAX_CONCURRENT = CapacityLimiter(4)
"""Number of archives that are unpacked and checked concurrently; others wait, which bounds memory."""

_STATUSES = (400, 401, 403, 404, 409, 413, 415, 422, 429, 503, 507)
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": HTTPStatus(status).phrase} for status in _STATUSES
}
_ARCHIVE = {
    "requestBody": {
        "required": True,
        "description": "A bundle from ccl-bench publish.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}

router = APIRouter(prefix="/api/v1", tags=["publishing"], responses=_REFUSALS)


def _store_and_settings(request: Request) -> tuple[Store, Settings]:
    store: Store = request.app.state.store
    return store, load_settings(store.data)


@router.get("/publishing")
def terms(request: Request, caller: OptionalCaller) -> Terms:
    """Return what this server accepts, and the holder of the token."""
    _, settings = _store_and_settings(request)
    return Terms(
        version=__version__,
        metrics={metric.name: metric.revision for metric in metrics.load()},
        archive_bytes=settings.archive_bytes,
        quarantine=settings.quarantine,
        trace_storage=list(settings.trace_storage),
        submitter=caller.submitter if caller else None,
        role=caller.role.value if caller else None,
    )


@router.post(
    "/bundles",
    status_code=HTTPStatus.CREATED,
    responses={200: {"model": Acceptance, "description": "The same bundle existed already."}},
    openapi_extra=_ARCHIVE,
    max_body_size=sys.maxsize,  # receive_body holds it to the limit of the settings
)
async def publish(request: Request, response: Response, caller: AnyCaller) -> Acceptance:
    """Accept a bundle; the status is 201 for a new one, 200 for one that already exists."""
    store, settings = await to_thread.run_sync(_store_and_settings, request)
    allowance = Allowance(store.engine, caller.submitter, settings)
    with refuse_on_full_disk():
        size = declared_bytes(request, settings.archive_bytes, store.data)
        await to_thread.run_sync(allowance.begin, size)
        async with turn(request, caller.submitter), async_upload_folder(store.data) as folder:
            archive = folder / "bundle.tar.gz"
            try:
                await receive_body(request, archive, settings.archive_bytes, size)
            finally:
                await to_thread.run_sync(allowance.book_archive, archive.stat().st_size)
            received = (store, settings, caller, archive, folder, allowance)
            accepted = await to_thread.run_sync(_ingest, *received, limiter=_MAX_CONCURRENT)
    response.status_code = HTTPStatus.CREATED if accepted.is_new else HTTPStatus.OK
    return accepted


def _ingest(
    store: Store, settings: Settings, caller: Caller, archive: Path, folder: Path, allowance: Allowance
) -> Acceptance:
    try:
        ingested = ingest_archive(store, settings, caller, archive, folder, allowance.claim)
    finally:
        allowance.book()
    tokens.log_event(
        store.data,
        "published" if ingested.is_new else "published-again",
        run=ingested.run,
        state=ingested.state.value,
        submitter=caller.submitter,
        token=caller.token,
    )
    return Acceptance(
        **receipt(store, ingested.run).model_dump(),
        is_new=ingested.is_new,
        replaced=ingested.replaced,
        remarks=ingested.remarks,
    )


@router.get("/bundles")
def bundles(
    request: Request,
    caller: Maintainer,  # noqa: ARG001  who may ask
    state: Annotated[Literal["quarantined", "withdrawn", "superseded"], Query()] = "quarantined",
) -> list[Receipt]:
    """Return the bundles in a hidden state, the oldest first, at most 200."""
    store: Store = request.app.state.store
    return receipts_in_state(store, state)


@router.get("/bundles/{run}")
def bundle(request: Request, run: str, caller: OptionalCaller) -> Receipt:
    """Return the state of a bundle; only its submitter and maintainers see one in quarantine."""
    store: Store = request.app.state.store
    return visible_receipt(store, run, caller)


@router.post("/bundles/{run}/withdraw")
def withdraw(request: Request, run: str, caller: AnyCaller, note: Note | None = None) -> Receipt:
    """Withdraw a run; it keeps its page and history, but is no longer ranked."""
    store: Store = request.app.state.store
    moderation.withdraw(store, caller, run, note.note if note else "")
    return _log_and_receipt(request, "withdrawn", run, caller)


@router.post("/bundles/{run}/approve")
def approve(request: Request, run: str, caller: Maintainer, note: Note | None = None) -> Receipt:
    """List a run that waits in quarantine, or was withdrawn."""
    store, settings = _store_and_settings(request)
    moderation.approve(store, settings, caller, run, note.note if note else "")
    return _log_and_receipt(request, "approved", run, caller)


@router.post("/bundles/{run}/recompute")
def recompute(request: Request, run: str, caller: Maintainer) -> Receipt:
    """Queue a run for recomputing from its traces again."""
    store, settings = _store_and_settings(request)
    moderation.recompute(store, settings, caller, run)
    return _log_and_receipt(request, "recompute-asked", run, caller)


def _log_and_receipt(request: Request, event: str, run: str, caller: Caller) -> Receipt:
    store: Store = request.app.state.store
    tokens.log_event(store.data, event, run=run, submitter=caller.submitter, token=caller.token)
    return receipt(store, run)


@router.get("/tokens")
def all_tokens(request: Request, caller: Admin) -> list[TokenAnswer]:  # noqa: ARG001  who may ask
    """Return all tokens, without their secrets."""
    store: Store = request.app.state.store
    return [TokenAnswer(**asdict(row)) for row in tokens.list_tokens(store.engine)]


@router.post("/tokens", status_code=HTTPStatus.CREATED)
def make_token(request: Request, body: TokenWanted, caller: Admin) -> TokenMade:
    """Make a token."""
    store: Store = request.app.state.store
    token = tokens.create_token(store.engine, body.submitter, Role(body.role), days=body.days)
    tokens.log_event(store.data, "token-made", submitter=body.submitter, role=body.role, by=caller.submitter)
    return TokenMade(token=token)


@router.delete("/tokens/{token}", status_code=HTTPStatus.NO_CONTENT)
def revoke_token(request: Request, token: str, caller: Admin) -> None:
    """Revoke a token by its id."""
    store: Store = request.app.state.store
    tokens.revoke_token(store.engine, token)
    tokens.log_event(store.data, "token-revoked", token=token, by=caller.submitter)
