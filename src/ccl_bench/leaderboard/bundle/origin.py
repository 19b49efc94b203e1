"""The statement of origin of a bundle: who published which bytes and when, with a minisign signature.

The signed message is the output of `sha256sum` for the files of the bundle; its hash is the identifier of
the run. The trusted comment, which is also signed, states the run, the publisher and the time. Both are in
the file `origin.minisig`, which is not part of the identifier.

Keys and signatures are Ed25519 over the BLAKE2b-512 hash of a message. Each file has an unprotected line
and a line of Base64; a signature has two more, a comment and the signature of that comment. The formats are
described at https://jedisct1.github.io/minisign/.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import os
import re
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import IO, TYPE_CHECKING

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.base.text import plain
from ccl_bench.leaderboard.bundle.format import FILES, HISTORY, ORIGIN, bundle_id, hash_list

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_COMMENT = re.compile(
    r"ccl-bench origin\trun:(?P<run>[0-9a-f]{64})\tpublisher:(?P<publisher>[^\t]{1,64})"
    r"\ttime:(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)",
    re.ASCII,
)
_FIX = "publish the run again, with --sign"


@dataclass(frozen=True, slots=True)
class OriginStatement:
    """A statement of origin; it must not be trusted before `verify` succeeds."""

    publisher: str
    at: str
    """ISO 8601 in UTC, to the second, by the publisher's clock."""
    run: str
    """Identifier of the bundle that was signed."""
    signature: Signature

    def verify(self, folder: Path, key: PublicKey) -> None:
        """Raise WrongSignatureError unless this key signed this statement and the files as they are."""
        self.signature.verify_comment(key)
        if bundle_id(folder) != self.run:
            wrong = (
                f"a file changed after the bundle was signed: it was {self.run[:12]}, "
                "and is now another bundle"
            )
            raise WrongSignatureError(wrong, where=ORIGIN, fix="get the files again from their publisher")
        self.signature.verify(hash_list(folder), key)


def sign_bundle(folder: Path, key: SecretKey, publisher: str) -> None:
    """Write the statement of origin into the folder of a bundle."""
    comment = f"ccl-bench origin\trun:{bundle_id(folder)}\tpublisher:{publisher}"
    comment += f"\ttime:{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
    if not _COMMENT.fullmatch(comment) or publisher != plain(publisher):
        fix = "give a name of 1 to 64 characters in one line; for a directory it is the card's contributor"
        raise InputError(f"{publisher[:100]!r} is not a valid name of a publisher", fix=fix)
    (folder / ORIGIN).write_text(key.sign(hash_list(folder), comment).text, encoding="utf-8")


def verify_bundle(folder: Path, key: PublicKey) -> OriginStatement:
    """Return the statement of a bundle; raise InputError unless this key signed it and the files."""
    if not folder.is_dir():
        raise InputError("is not a directory", where=str(folder), fix="give the folder of a bundle")
    foreign = sorted({path.name for path in folder.iterdir()} - {*FILES, HISTORY, ORIGIN})
    if foreign:
        raise InputError("does not belong in a bundle", where=str(folder / foreign[0]), fix="remove it")
    origin = read_origin(folder)
    if origin is None:
        fix = f"if its publisher signed it, get {ORIGIN} too"
        raise InputError("is unsigned", where=str(folder), fix=fix)
    origin.verify(folder, key)
    return origin


def read_origin(folder: Path) -> OriginStatement | None:
    """Return the unverified statement in the folder of a bundle; None if there is none."""
    path = folder / ORIGIN
    try:
        signature = parse_signature(path.read_bytes().decode("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage.unreadable(path, error) from error
    except ValueError as error:
        raise InputError(f"is not a minisign signature: {error}", where=ORIGIN, fix=_FIX) from error
    statement = _COMMENT.fullmatch(signature.comment)
    if statement is None or statement["publisher"] != plain(statement["publisher"]):
        raise InputError("does not state its run, publisher and time", where=ORIGIN, fix=_FIX)
    return OriginStatement(statement["publisher"], statement["at"], statement["run"], signature)


_ALGORITHM, _PREHASHED = b"Ed", b"ED"
_NO_PASSWORD, _CHECKSUM = bytes(2), b"B2"
_SALT_AND_COSTS = bytes(32 + 8 + 8)
_ID_BYTES, _KEY_BYTES, _SIGNATURE_BYTES = 8, 32, 64
_UNTRUSTED, _TRUSTED = "untrusted comment: ", "trusted comment: "
_FILE_BYTES = 16 << 10
"""Largest file that is read; minisign's own limit for a comment is 8 KiB."""


class WrongSignatureError(InputError):
    """A signature does not match this message, this comment or this key."""


@dataclass(frozen=True, slots=True)
class PublicKey:
    """A public key, with the number that signatures state."""

    number: bytes
    raw: bytes

    @property
    def id(self) -> str:
        """The number as minisign prints it: sixteen hexadecimal digits."""
        return _key_id(self.number)

    @property
    def text(self) -> str:
        """The key as one line of Base64."""
        return _encoded(_ALGORITHM + self.number + self.raw)

    def write(self, path: Path) -> None:
        """Write the key into a file that is not there yet."""
        _write_new(path, f"{_UNTRUSTED}minisign public key {self.id}\n{self.text}\n")


@dataclass(frozen=True, slots=True)
class Signature:
    """A signature and its comment; `verify` checks both."""

    number: bytes
    signed: bytes
    """Signature of the hash of the message."""
    comment: str
    comment_signed: bytes
    """Signature of `signed` and the comment."""

    @property
    def key_id(self) -> str:
        """The number of the key, as minisign prints it."""
        return _key_id(self.number)

    @property
    def text(self) -> str:
        """The file, as minisign writes it."""
        first = _encoded(_PREHASHED + self.number + self.signed)
        return (
            f"{_UNTRUSTED}signature of ccl-bench\n{first}\n"
            f"{_TRUSTED}{self.comment}\n{_encoded(self.comment_signed)}\n"
        )

    def verify_comment(self, key: PublicKey) -> None:
        """Raise WrongSignatureError unless the comment was signed with this key."""
        if key.number != self.number:
            wrong = f"it is signed with the key {self.key_id}, not with {key.id}"
            raise WrongSignatureError(wrong, fix="use the public key of its publisher")
        _verify(key, self.comment_signed, self.signed + self.comment.encode(), "its comment")

    def verify(self, message: bytes, key: PublicKey) -> None:
        """Raise WrongSignatureError unless message and comment were signed with this key."""
        self.verify_comment(key)
        _verify(key, self.signed, _prehash(message), "the message")


@dataclass(frozen=True, slots=True)
class SecretKey:
    """A secret key without a password."""

    number: bytes
    seed: bytes

    @property
    def public(self) -> PublicKey:
        """The public key that belongs to it."""
        raw = self._private.public_key().public_bytes(
            serialization.Encoding.Raw, serialization.PublicFormat.Raw
        )
        return PublicKey(self.number, raw)

    @property
    def _private(self) -> Ed25519PrivateKey:
        return Ed25519PrivateKey.from_private_bytes(self.seed)

    def sign(self, message: bytes, comment: str) -> Signature:
        """Return the signature of a message, and of a comment of one line."""
        signed = self._private.sign(_prehash(message))
        return Signature(self.number, signed, comment, self._private.sign(signed + comment.encode()))

    def write(self, path: Path) -> None:
        """Write the key into a file that is not there yet and that only its owner can read."""
        head = _ALGORITHM + _NO_PASSWORD + _CHECKSUM + _SALT_AND_COSTS
        key_data = head + self.number + self.seed + self.public.raw + bytes(32)
        _write_new(
            path,
            f"{_UNTRUSTED}minisign secret key of ccl-bench\n{_encoded(key_data)}\n",
            storage.open_private,
        )


def new_key() -> SecretKey:
    """Return a new key."""
    return SecretKey(os.urandom(_ID_BYTES), os.urandom(_KEY_BYTES))


def read_public_key(path: Path) -> PublicKey:
    """Return the key in a file; it may also hold the line of Base64 alone."""
    lines = _lines(path)
    try:
        return parse_public_key(lines[-1] if lines else "")
    except ValueError as error:
        fix = "give the .pub file that ccl-bench sign new or minisign -G wrote"
        raise InputError("is not a minisign public key", where=str(path), fix=fix) from error


def parse_public_key(text: str) -> PublicKey:
    """Return the key of a line of Base64, or raise ValueError."""
    raw = _decoded(text, len(_ALGORITHM) + _ID_BYTES + _KEY_BYTES)
    if not raw.startswith(_ALGORITHM):
        raise ValueError("is of another algorithm")
    # Bit 255 is the sign of x; a number beyond the prime stands for its remainder.
    if (int.from_bytes(raw[10:], "little") & _WITHOUT_SIGN) % _PRIME in _SMALL_ORDER:
        raise ValueError("is a key with which anybody can sign anything")
    return PublicKey(raw[2:10], raw[10:])


_PRIME, _WITHOUT_SIGN = 2**255 - 19, 2**255 - 1
_ORDER_8 = int.from_bytes(
    bytes.fromhex("26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05"), "little"
)
_SMALL_ORDER = {0, 1, _PRIME - 1, _ORDER_8, _PRIME - _ORDER_8}
"""Values of y of the eight points of small order (libsodium, `ge25519_has_small_order`).

With such a key, a signature that needs no secret fits every message, or one of two to eight.
"""


def read_secret_key(path: Path) -> SecretKey:
    """Return the key in a file, which must have no password."""
    lines = _lines(path)
    fix = "give the .key file that ccl-bench sign new or minisign -G -W wrote"
    try:
        raw = _decoded(lines[-1] if lines else "", 6 + len(_SALT_AND_COSTS) + 8 + 64 + 32)
    except ValueError as error:
        raise InputError("is not a minisign secret key", where=str(path), fix=fix) from error
    key_data = raw[6 + len(_SALT_AND_COSTS) :]
    if raw[:2] == _ALGORITHM and raw[2:4] != _NO_PASSWORD:
        take_off = f"take a copy without one: cp {path.name} copy.key; minisign -C -W -s copy.key"
        raise InputError("is protected by a password", where=str(path), fix=take_off)
    key = SecretKey(key_data[:8], key_data[8:40])
    if raw[:2] != _ALGORITHM or key.public.raw != key_data[40:72]:
        raise InputError("is a damaged secret key", where=str(path), fix="restore it from a copy")
    return key


def parse_signature(text: str) -> Signature:
    """Return the signature in a text, or raise ValueError."""
    lines = text.splitlines()
    if len(lines) != 4 or not lines[0].startswith(_UNTRUSTED) or not lines[2].startswith(_TRUSTED):
        raise ValueError("does not have the four lines of a signature")
    first = _decoded(lines[1], len(_PREHASHED) + _ID_BYTES + _SIGNATURE_BYTES)
    if not first.startswith(_PREHASHED):
        raise ValueError("does not sign a hash")
    comment = lines[2].removeprefix(_TRUSTED)
    return Signature(first[2:10], first[10:], comment, _decoded(lines[3], _SIGNATURE_BYTES))


def _verify(key: PublicKey, signature: bytes, message: bytes, what: str) -> None:
    try:
        Ed25519PublicKey.from_public_bytes(key.raw).verify(signature, message)
    except InvalidSignature as error:
        wrong = f"the signature of {what} is wrong: it was changed, or the key {key.id} never signed it"
        raise WrongSignatureError(wrong, fix="get file and signature again from their publisher") from error


def _prehash(message: bytes) -> bytes:
    return hashlib.blake2b(message).digest()


def _key_id(number: bytes) -> str:
    return number[::-1].hex().upper()


def _encoded(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _decoded(text: str, size: int) -> bytes:
    """Return the `size` bytes of a line of Base64."""
    try:
        raw = base64.b64decode(text.strip().encode("ascii"), validate=True)
    except (binascii.Error, UnicodeEncodeError) as error:
        raise ValueError("is not Base64") from error
    if len(raw) != size:
        raise ValueError(f"has {len(raw)} bytes, not {size}")
    return raw


def _lines(path: Path) -> list[str]:
    try:
        with path.open("rb") as stream:
            return stream.read(_FILE_BYTES).decode("utf-8", errors="replace").splitlines()
    except OSError as error:
        fix = "check the path; ccl-bench sign new makes keys"
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), fix=fix) from error


def _write_new(path: Path, text: str, opened: Callable[..., IO[str]] = open) -> None:
    try:
        stream = opened(path, "x", encoding="ascii")
    except OSError as error:
        fix = "choose another name; a key is never overwritten"
        raise InputError(f"cannot be written: {error.strerror}", where=str(path), fix=fix) from error
    try:
        with stream:
            stream.write(text)
    except OSError as error:
        path.unlink()  # half a key would keep its name from a whole one
        error.filename = str(path)
        raise
