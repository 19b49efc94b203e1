"""Tokens and public keys of submitters: create, look up, revoke; every use is logged."""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import TYPE_CHECKING

from sqlalchemy import insert, select, update

from ccl_bench.base.errors import UsageError
from ccl_bench.base.text import encode_json
from ccl_bench.leaderboard.bundle.origin import WrongSignatureError, parse_public_key, read_origin
from ccl_bench.leaderboard.errors import RequestRefused
from ccl_bench.leaderboard.store import writing
from ccl_bench.leaderboard.store.database import timestamp
from ccl_bench.leaderboard.store.tables import KEYS, TOKENS
from ccl_bench.storage import open_private

if TYPE_CHECKING:
    from pathlib import Path

    from sqlalchemy import Engine, Table

    from ccl_bench.leaderboard.bundle.origin import OriginStatement, PublicKey

FILE = "publishing.log"
_LONGEST = 1000
"""Longest logged text from a request."""


def log_event(data: Path, event: str, **fields: str | int | None) -> None:
    """Append one line; several processes may do so at once. A token is never logged, only its id."""
    line = {"at": timestamp(), "event": event} | {
        name: value[:_LONGEST] if isinstance(value, str) else value
        for name, value in fields.items()
        if value is not None
    }
    with open_private(data / FILE, "ab", buffering=0) as stream:
        stream.write(encode_json(line, indent=-1) + b"\n")


_TOKEN = re.compile(r"cclb_([0-9a-f]{12})_[A-Za-z0-9_-]{43}")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_DAY_S = 86400
DEFAULT_DAYS, MAX_DAYS = 90, 366
"""Validity of a token in days: default and maximum."""


class Role(StrEnum):
    """Rights of the holder of a token; each role includes those before it."""

    SUBMITTER = "submitter"
    """Publish, and withdraw their own runs."""
    MAINTAINER = "maintainer"
    """Approve, withdraw and recompute runs of anyone."""
    ADMIN = "admin"
    """Make and revoke tokens."""


_ORDER = list(Role)


@dataclass(frozen=True, slots=True)
class Caller:
    """The holder of a token."""

    submitter: str
    role: Role
    token: str = ""
    """The token's id."""

    def may(self, role: Role) -> bool:
        """Whether they have at least a role."""
        return _ORDER.index(self.role) >= _ORDER.index(role)


@dataclass(frozen=True, slots=True)
class TokenRow:
    """A token in a list: without its secret."""

    id: str
    submitter: str
    role: Role
    created_at: str
    expires_at: str
    revoked_at: str | None


def require_role(caller: Caller, role: Role) -> None:
    """Raise RequestRefused if a caller does not have at least a role."""
    if not caller.may(role):
        raise RequestRefused(
            f"this requires the role {role}; yours is {caller.role}",
            fix=f"ask a holder of the role {role}",
            status=HTTPStatus.FORBIDDEN,
        )


def create_token(engine: Engine, submitter: str, role: Role, *, days: int = DEFAULT_DAYS) -> str:
    """Create a token that expires after some days and return it; it is stored nowhere."""
    if not 1 <= days <= MAX_DAYS:
        raise UsageError(f"a token is valid for 1 to {MAX_DAYS} days, not {days}", fix="give another --days")
    if not _NAME.fullmatch(submitter) or _TOKEN.fullmatch(submitter):
        fix = "up to 64 letters, digits and . _ @ -, such as ada or ada@lab.example"
        raise UsageError(f"{submitter[:100]!r} is not a valid name of a submitter", fix=fix)
    number = secrets.token_hex(6)
    token = f"cclb_{number}_{secrets.token_urlsafe(32)}"
    row = {
        "id": number,
        "submitter": submitter,
        "role": role.value,
        "digest": _digest(token),
        "created_at": timestamp(),
        "expires_at": timestamp(days * _DAY_S),
    }
    with writing(engine) as connection:
        connection.execute(insert(TOKENS), [row])
    return token


def authenticate(engine: Engine, token: str) -> Caller | None:
    """Return the holder of a token; None if it is forged, revoked or expired."""
    match = _TOKEN.fullmatch(token)
    if match is None:
        return None
    with engine.connect() as connection:
        row = connection.execute(select(TOKENS).where(TOKENS.c.id == match[1])).mappings().first()
    digest = row["digest"] if row else "0" * 64
    is_right = hmac.compare_digest(digest, _digest(token))
    if row is None or not is_right or row["revoked_at"] or row["expires_at"] <= timestamp():
        return None
    return Caller(row["submitter"], Role(row["role"]), row["id"])


def revoke_token(engine: Engine, token_id: str) -> None:
    """Revoke a token by its id; a revoked one stays revoked."""
    revoke(engine, TOKENS, token_id, "token")


def list_tokens(engine: Engine) -> list[TokenRow]:
    """Return all tokens, the oldest first."""
    columns = [TOKENS.c[name] for name in TokenRow.__slots__]
    with engine.connect() as connection:
        rows = connection.execute(select(*columns).order_by(TOKENS.c.created_at, TOKENS.c.id)).mappings()
        return [TokenRow(**{**row, "role": Role(row["role"])}) for row in rows]


def _digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def revoke(engine: Engine, table: Table, row_id: str, kind: str) -> None:
    """Revoke the row of this id; `kind` is its name in messages; a revoked one stays as it is.

    Raises RequestRefused if there is none.
    """
    with writing(engine) as connection:
        row = connection.execute(select(table.c.revoked_at).where(table.c.id == row_id)).first()
        if row is None:
            fix = "list them to see their ids"
            raise RequestRefused(f"there is no {kind} {row_id[:20]!r}", fix=fix, status=HTTPStatus.NOT_FOUND)
        if row[0] is None:
            connection.execute(update(table).where(table.c.id == row_id).values(revoked_at=timestamp()))


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
    """Register a key with the name of its owner; a key belongs to one name for ever."""
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
        stored_key = connection.execute(select(KEYS).where(KEYS.c.id == key.id)).mappings().first()
        if stored_key is None:
            connection.execute(insert(KEYS), [row])
        elif (stored_key["submitter"], stored_key["public_key"], stored_key["revoked_at"]) != (
            submitter,
            key.text,
            None,
        ):
            what = (
                "was revoked" if stored_key["revoked_at"] else f"is registered for {stored_key['submitter']}"
            )
            raise UsageError(f"the key {key.id} {what}", fix="make a new one with ccl-bench sign new")


def revoke_key(engine: Engine, key_id: str) -> None:
    """Revoke a key: new signatures are refused, earlier ones stay valid."""
    revoke(engine, KEYS, key_id, "key")


def list_keys(engine: Engine) -> list[KeyRow]:
    """Return all keys, the oldest first."""
    with engine.connect() as connection:
        rows = connection.execute(select(KEYS).order_by(KEYS.c.created_at, KEYS.c.id)).mappings()
        return [KeyRow(**row) for row in rows]


def check_origin(engine: Engine, folder: Path, submitter: str) -> OriginStatement | None:
    """Return the statement of origin of a bundle; None without one.

    Raises RequestRefused unless a valid key of the submitter signed it and the files.
    """
    origin = read_origin(folder)
    if origin is None:
        return None
    key_id = origin.signature.key_id
    with engine.connect() as connection:
        statement = select(KEYS).where(KEYS.c.id == key_id, KEYS.c.submitter == submitter)
        registered_key = connection.execute(statement).mappings().first()
    if registered_key is None or registered_key["revoked_at"]:
        what = (
            "was revoked"
            if registered_key
            else f"is not registered for {submitter or 'an unnamed submitter'}"
        )
        fix = "ask the operator to register your public key: ccl-bench board key DATA NAME FILE"
        raise RequestRefused(f"it is signed with the key {key_id}, which {what}", fix=fix)
    try:
        origin.verify(folder, parse_public_key(registered_key["public_key"]))
    except WrongSignatureError as error:
        raise RequestRefused(error.message, where=error.where, fix=error.fix) from error
    if origin.publisher != submitter:
        wrong = f"it is signed for {origin.publisher}, but was sent by {submitter}"
        raise RequestRefused(wrong, fix="sign it with the name of the token")
    return origin
