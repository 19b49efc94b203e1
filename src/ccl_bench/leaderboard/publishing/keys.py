"""Public keys of those who publish: registered, listed and revoked; signatures are held to them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from sqlalchemy import insert, select

from ccl_bench.base.errors import UsageError
from ccl_bench.leaderboard.bundle.minisign import WrongSignatureError, parse_public_key
from ccl_bench.leaderboard.bundle.origin import read_origin
from ccl_bench.leaderboard.errors import RequestRefused
from ccl_bench.leaderboard.publishing.tokens import revoke
from ccl_bench.leaderboard.store import writing
from ccl_bench.leaderboard.store.database import timestamp
from ccl_bench.leaderboard.store.tables import KEYS

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine

    from ccl_bench.leaderboard.bundle.minisign import PublicKey
    from ccl_bench.leaderboard.bundle.origin import Origin

_LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class KeyRow:
    """A registered key."""

    id: str
    submitter: str
    public_key: str
    created_at: str
    revoked_at: str | None


def register_key(engine: Engine, submitter: str, key: PublicKey) -> None:
    """Register a key with the name of who may sign with it; a key belongs to one name for ever."""
    if not 1 <= len(submitter) <= _LONGEST_NAME or " ".join(submitter.split()) != submitter:
        fix = f"up to {_LONGEST_NAME} characters: the name of their token, or the contributor of their cards"
        raise UsageError(f"{submitter[:100]!r} is not a valid name of a submitter", fix=fix)
    row = {
        "id": key.id,
        "submitter": submitter,
        "public_key": key.text,
        "created_at": timestamp(),
    }
    with writing(engine) as connection:
        known = connection.execute(select(KEYS).where(KEYS.c.id == key.id)).mappings().first()
        if known is None:
            connection.execute(insert(KEYS), [row])
        elif (known["submitter"], known["public_key"], known["revoked_at"]) != (submitter, key.text, None):
            what = "was revoked" if known["revoked_at"] else f"is registered for {known['submitter']}"
            raise UsageError(f"the key {key.id} {what}", fix="make a new one with ccl-bench keygen")


def revoke_key(engine: Engine, key_id: str) -> None:
    """Revoke a key: it signs nothing more, and what it signed before stays signed."""
    revoke(engine, KEYS, key_id, "key")


def list_keys(engine: Engine) -> list[KeyRow]:
    """Return all keys, the oldest first."""
    with engine.connect() as connection:
        rows = connection.execute(select(KEYS).order_by(KEYS.c.created_at, KEYS.c.id)).mappings()
        return [KeyRow(**row) for row in rows]


def check_origin(engine: Engine, folder: Path, submitter: str) -> Origin | None:
    """Return the statement of origin of a bundle; None without one.

    Raises RequestRefused unless a valid key of the submitter signed it and the files.
    """
    origin = read_origin(folder)
    if origin is None:
        return None
    key_id = origin.signature.key_id
    with engine.connect() as connection:
        asked = select(KEYS).where(KEYS.c.id == key_id, KEYS.c.submitter == submitter)
        known = connection.execute(asked).mappings().first()
    if known is None or known["revoked_at"]:
        what = "was revoked" if known else f"is not registered for {submitter or 'an unnamed submitter'}"
        fix = "have the operator register your public key: ccl-bench key DATA NAME FILE"
        raise RequestRefused(f"it is signed with the key {key_id}, which {what}", fix=fix)
    try:
        origin.verify(folder, parse_public_key(known["public_key"]))
    except WrongSignatureError as error:
        raise RequestRefused(error.message, where=error.where, fix=error.fix) from error
    if origin.publisher != submitter:
        wrong = f"it is signed for {origin.publisher}, and was sent by {submitter}"
        raise RequestRefused(wrong, fix="sign it with the name of the token")
    return origin
