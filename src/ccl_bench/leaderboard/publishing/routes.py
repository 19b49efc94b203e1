"""The interface for those who publish and those who look after what was published."""

from __future__ import annotations

from dataclasses import asdict
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Literal

from anyio import CapacityLimiter, to_thread
from fastapi import APIRouter, Query, Request, Response

from ccl_bench import __version__, metrics
from ccl_bench.leaderboard.bundle.archive import MEDIA_TYPE
from ccl_bench.leaderboard.publishing import audit, curating, rates, tokens
from ccl_bench.leaderboard.publishing.accepting import Accepted, accept_archive
from ccl_bench.leaderboard.publishing.access import Admin, AnyCaller, Maintainer, PerhapsCaller  # noqa: TC001
from ccl_bench.leaderboard.publishing.models import (
    Acceptance,
    Note,
    Receipt,
    Terms,
    TokenAnswer,
    TokenMade,
    TokenWanted,
)
from ccl_bench.leaderboard.publishing.receipts import in_state, receipt, visible
from ccl_bench.leaderboard.publishing.receiving import (
    incoming_folder,
    received,
    refuse_unfit,
    refusing_on_full_disk,
)
from ccl_bench.leaderboard.publishing.settings import Settings, settings_of
from ccl_bench.leaderboard.publishing.tokens import Caller, Role
from ccl_bench.leaderboard.web.models import Refusal

if TYPE_CHECKING:
    from pathlib import Path

    from ccl_bench.leaderboard.store import Store

_AT_ONCE = CapacityLimiter(4)
"""Archives that are unpacked and checked side by side; others wait, so that memory stays bounded."""

_STATUSES = (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 503, 507)
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": Refusal, "description": HTTPStatus(status).phrase} for status in _STATUSES
}
_ARCHIVE = {
    "requestBody": {
        "required": True,
        "description": "A bundle, as ccl-bench publish makes it.",
        "content": {MEDIA_TYPE: {"schema": {"type": "string", "format": "binary"}}},
    }
}

router = APIRouter(prefix="/api/v1", tags=["publishing"], responses=_REFUSALS)


def _of(request: Request) -> tuple[Store, Settings]:
    store: Store = request.app.state.store
    return store, settings_of(store.data)


@router.get("/publishing")
def terms(request: Request, caller: PerhapsCaller) -> Terms:
    """Return what this server takes, and whom the token belongs to."""
    _, settings = _of(request)
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
    responses={200: {"model": Acceptance, "description": "The same bundle was there already."}},
    openapi_extra=_ARCHIVE,
)
async def publish(request: Request, response: Response, caller: AnyCaller) -> Acceptance:
    """Take in a bundle; the answer is 201 for a new one, 200 for one that is there already."""
    store, settings = await to_thread.run_sync(_of, request)
    refuse_unfit(request, settings.archive_bytes, store.data)
    await to_thread.run_sync(rates.count_upload, store.engine, caller.submitter, settings)
    with refusing_on_full_disk():
        accepted = await _taken(request, store, settings, caller)
    response.status_code = HTTPStatus.CREATED if accepted.is_new else HTTPStatus.OK
    return accepted


async def _taken(request: Request, store: Store, settings: Settings, caller: Caller) -> Acceptance:
    """Receive an archive and take in what it holds."""
    async with incoming_folder(store.data) as folder:
        archive = folder / "bundle.tar.gz"
        try:
            await received(request, archive, settings.archive_bytes)
        finally:
            size = archive.stat().st_size
            await to_thread.run_sync(rates.count_bytes, store.engine, caller.submitter, size)
        took = (store, settings, caller, archive, folder)
        return await to_thread.run_sync(_accepted, *took, limiter=_AT_ONCE)


def _accepted(store: Store, settings: Settings, caller: Caller, archive: Path, folder: Path) -> Acceptance:
    found: Accepted = accept_archive(store, settings, caller, archive, folder)
    said = receipt(store, found.run)
    note = {
        "run": found.run,
        "state": found.state.value,
        "submitter": caller.submitter,
        "token": caller.token,
    }
    audit.note(store.data, "published" if found.is_new else "published-again", **note)
    replaced, remarks = found.replaced, found.remarks
    return Acceptance(**said.model_dump(), is_new=found.is_new, replaced=replaced, remarks=remarks)


@router.get("/bundles")
def bundles(
    request: Request,
    caller: Maintainer,  # noqa: ARG001  who may ask
    state: Annotated[Literal["quarantined", "withdrawn", "superseded"], Query()] = "quarantined",
) -> list[Receipt]:
    """Return the bundles in a state that the table does not show, the oldest first, at most 200."""
    store, _ = _of(request)
    return in_state(store, state)


@router.get("/bundles/{run}")
def bundle(request: Request, run: str, caller: PerhapsCaller) -> Receipt:
    """Return what a bundle counts as; one in quarantine is seen by its submitter and maintainers."""
    store, _ = _of(request)
    return visible(store, run, caller)


@router.post("/bundles/{run}/withdraw")
def withdraw(request: Request, run: str, caller: AnyCaller, said: Note | None = None) -> Receipt:
    """Take a run back; it keeps its page and history, and is ranked no more."""
    store, _ = _of(request)
    curating.withdraw(store, caller, run, said.note if said else "")
    return _done(request, "withdrawn", run, caller)


@router.post("/bundles/{run}/approve")
def approve(request: Request, run: str, caller: Maintainer, said: Note | None = None) -> Receipt:
    """List a run that waits in quarantine, or was withdrawn."""
    store, settings = _of(request)
    curating.approve(store, settings, caller, run, said.note if said else "")
    return _done(request, "approved", run, caller)


@router.post("/bundles/{run}/recompute")
def recompute(request: Request, run: str, caller: Maintainer) -> Receipt:
    """Have a run recomputed from its traces once more."""
    store, settings = _of(request)
    curating.recompute(store, settings, caller, run)
    return _done(request, "recompute-asked", run, caller)


def _done(request: Request, event: str, run: str, caller: Caller) -> Receipt:
    store, _ = _of(request)
    audit.note(store.data, event, run=run, submitter=caller.submitter, token=caller.token)
    return receipt(store, run)


@router.get("/tokens")
def all_tokens(request: Request, caller: Admin) -> list[TokenAnswer]:  # noqa: ARG001  who may ask
    """Return all tokens, without what they are."""
    store, _ = _of(request)
    return [TokenAnswer(**asdict(row)) for row in tokens.listed(store.engine)]


@router.post("/tokens", status_code=HTTPStatus.CREATED)
def make_token(request: Request, wanted: TokenWanted, caller: Admin) -> TokenMade:
    """Make a token."""
    store, _ = _of(request)
    made = tokens.make_token(store.engine, wanted.submitter, Role(wanted.role), days=wanted.days)
    audit.note(store.data, "token-made", submitter=wanted.submitter, role=wanted.role, by=caller.submitter)
    return TokenMade(token=made)


@router.delete("/tokens/{token}", status_code=HTTPStatus.NO_CONTENT)
def revoke_token(request: Request, token: str, caller: Admin) -> None:
    """Make a token worthless, given its id."""
    store, _ = _of(request)
    tokens.revoke(store.engine, token)
    audit.note(store.data, "token-revoked", token=token, by=caller.submitter)
