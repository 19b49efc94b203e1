"""Signatures of origin: minisign understands ours and we its, and no false one gets onto a board."""

from __future__ import annotations

import base64
import re
import shutil
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest
from commands import invoke
from publishing_archives import CARD, another, archive
from sqlalchemy import delete

from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.leaderboard.bundle.format import ORIGIN, hash_list
from ccl_bench.leaderboard.bundle.origin import (
    PublicKey,
    SecretKey,
    WrongSignatureError,
    new_key,
    parse_public_key,
    parse_signature,
    read_public_key,
    read_secret_key,
    sign_bundle,
)
from ccl_bench.leaderboard.publishing import tokens
from ccl_bench.leaderboard.publishing.audit import audit_store
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.leaderboard.store import writing
from ccl_bench.leaderboard.store.tables import KEYS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from publishing_archives import Files
    from publishing_server import Leaderboard

ITS_KEY = "RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3"
"""The key that minisign itself is released with."""
ITS_SIGNATURE = """untrusted comment: signature from minisign secret key
RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=
trusted comment: timestamp:1633700835\tfile:test\tprehashed
wLMDjy9FLAuxZ3q4NlEvkgtyhrr0gtTu6KC4KBJdITbbOeAi1zBIYo0v4iTgt8jJpIidRJnp94ABQkJAgAooBQ==
"""
"""Its signature of the four letters `test`, from the documentation of its verifier in Rust."""
RFC_8032_SEED = "9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60"
RFC_8032_PUBLIC = "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"


@pytest.fixture(scope="session")
def ada() -> SecretKey:
    """Return ada's key."""
    return new_key()


@pytest.fixture
def signed(bundle: Files, ada: SecretKey, tmp_path: Path) -> Files:
    """Return the files of the bundle, signed by ada."""
    return _signed(bundle, ada, "ada", tmp_path)


def _signed(files: Files, key: SecretKey, publisher: str, place: Path) -> Files:
    folder = place / "signing"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)
    sign_bundle(folder, key, publisher)
    return {**files, ORIGIN: (folder / ORIGIN).read_bytes()}


def test_a_published_signature_of_minisign_is_verified() -> None:
    signature, key = parse_signature(ITS_SIGNATURE), parse_public_key(ITS_KEY)
    assert signature.key_id == key.id == "E7620F1842B4E81F"
    signature.verify(b"test", key)
    assert signature.comment == "timestamp:1633700835\tfile:test\tprehashed"


@pytest.mark.parametrize(
    ("message", "old", "new"),
    [
        (b"Test", "", ""),
        (b"test", "1633700835", "1633700836"),
        (b"test", "RUQf6LRCGA9i559r3", "RUQf6LRCGA9i559r4"),
        (b"test", "wLMDjy9", "wLMDjy8"),
    ],
    ids=["the message", "the comment", "the signature", "the signature of the comment"],
)
def test_a_signature_does_not_outlive_a_change(message: bytes, old: str, new: str) -> None:
    signature = parse_signature(ITS_SIGNATURE.replace(old, new))
    with pytest.raises(WrongSignatureError):
        signature.verify(message, parse_public_key(ITS_KEY))


def test_another_key_with_the_same_number_does_not_verify() -> None:
    its = parse_public_key(ITS_KEY)
    with pytest.raises(WrongSignatureError):
        parse_signature(ITS_SIGNATURE).verify(b"test", PublicKey(its.number, new_key().public.raw))


def test_a_key_file_by_the_description_of_the_format_gives_the_key_of_the_rfc(tmp_path: Path) -> None:
    """The layout is that of minisign's page, the numbers are the first test of RFC 8032."""
    seed, public = bytes.fromhex(RFC_8032_SEED), bytes.fromhex(RFC_8032_PUBLIC)
    raw = b"Ed" + b"\0\0" + b"B2" + bytes(32 + 8 + 8) + b"12345678" + seed + public + bytes(32)
    path = tmp_path / "rfc.key"
    path.write_text(f"untrusted comment: any\n{base64.b64encode(raw).decode()}\n", encoding="ascii")
    assert read_secret_key(path).public.raw == public
    with_password = raw[:2] + b"Sc" + raw[4:]
    path.write_text(f"untrusted comment: any\n{base64.b64encode(with_password).decode()}\n", encoding="ascii")
    with pytest.raises(InputError, match="protected by a password") as refused:
        read_secret_key(path)
    assert "minisign -C -W" in refused.value.fix
    damaged = raw[:70] + bytes([raw[70] ^ 1]) + raw[71:]
    path.write_text(f"untrusted comment: any\n{base64.b64encode(damaged).decode()}\n", encoding="ascii")
    with pytest.raises(InputError, match="damaged secret key"):
        read_secret_key(path)


SMALL_ORDER = [
    *("00" * 32, "01" + "00" * 31, "00" * 31 + "80", "01" + "00" * 30 + "80"),
    *(f"{low}{'ff' * 30}{high}" for low in ("ec", "ed", "ee") for high in ("7f", "ff")),
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
    "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc85",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
    "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac03fa",
]
"""Every encoding of the eight points of small order (Chalkias et al., Taming the many EdDSAs, table 3)."""


@pytest.mark.parametrize("point", SMALL_ORDER)
def test_a_key_that_signs_for_everybody_is_none(point: str) -> None:
    """To such a key, one signature without a secret fits every message, or every second to eighth."""
    with pytest.raises(ValueError, match="anybody can sign anything"):
        parse_public_key(base64.b64encode(b"Ed" + b"12345678" + bytes.fromhex(point)).decode())


@pytest.fixture(scope="module")
def minisign() -> str:
    """Return the path of minisign's program."""
    found = shutil.which("minisign")
    if found is None:
        pytest.skip("minisign is not installed: make services")
    return found


def _program(minisign: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [minisign, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def test_the_program_minisign_verifies_what_we_sign(minisign: str, bundle: Files, tmp_path: Path) -> None:
    assert invoke(["ccl-bench", "sign", "new", str(tmp_path / "ada")]).returncode == 0
    _signed(bundle, read_secret_key(tmp_path / "ada.key"), "ada", tmp_path)
    message = tmp_path / "list"
    message.write_bytes(hash_list(tmp_path / "signing"))
    how = ("-x", tmp_path / "signing" / ORIGIN, "-p", tmp_path / "ada.pub")
    done = _program(minisign, "-Vm", message, *how)
    assert done.returncode == 0, done.stderr
    assert "publisher:ada" in done.stdout
    assert _program(minisign, "-S", "-W", "-s", tmp_path / "ada.key", "-m", message).returncode == 0
    message.write_bytes(message.read_bytes() + b"\n")
    assert _program(minisign, "-Vm", message, *how).returncode != 0


def test_we_verify_what_the_program_minisign_signs(minisign: str, bundle: Files, tmp_path: Path) -> None:
    public, secret = tmp_path / "its.pub", tmp_path / "its.key"
    assert _program(minisign, "-G", "-W", "-p", public, "-s", secret).returncode == 0
    ours = _signed(bundle, read_secret_key(secret), "ada", tmp_path)
    (message := tmp_path / "list").write_bytes(hash_list(tmp_path / "signing"))
    comment = parse_signature(ours[ORIGIN].decode()).comment
    done = _program(minisign, "-S", "-W", "-s", secret, "-m", message, "-t", comment)
    assert done.returncode == 0, done.stderr
    its = parse_signature((tmp_path / "list.minisig").read_text(encoding="utf-8"))
    its.verify(message.read_bytes(), read_public_key(public))
    assert its.signed == parse_signature(ours[ORIGIN].decode()).signed
    (tmp_path / "signing" / ORIGIN).write_bytes((tmp_path / "list.minisig").read_bytes())
    assert (
        invoke(["ccl-bench", "sign", "verify", str(tmp_path / "signing"), "--key", str(public)]).returncode
        == 0
    )


def test_a_new_secret_key_is_its_owners_alone_and_replaces_none(tmp_path: Path) -> None:
    assert invoke(["ccl-bench", "sign", "new", str(tmp_path / "ada")]).returncode == 0
    before = (tmp_path / "ada.key").read_bytes()
    assert stat.S_IMODE((tmp_path / "ada.key").stat().st_mode) == 0o600
    again = invoke(["ccl-bench", "sign", "new", str(tmp_path / "ada")])
    assert (again.returncode, "already exists" in again.stderr) == (4, True)
    assert (tmp_path / "ada.key").read_bytes() == before


def test_verifying_needs_the_files_the_key_and_nothing_else(
    bundle: Files, ada: SecretKey, tmp_path: Path
) -> None:
    _signed(bundle, ada, "ada", tmp_path)
    folder, public, other = tmp_path / "signing", tmp_path / "ada.pub", tmp_path / "eve.pub"
    ada.public.write(public)
    new_key().public.write(other)

    def verified(key: Path) -> tuple[int, str]:
        done = invoke(["ccl-bench", "sign", "verify", str(folder), "--key", str(key)])
        return done.returncode, done.stdout + done.stderr

    assert verified(public)[0] == 0
    assert "signed by ada" in verified(public)[1]
    assert (verified(other)[0], "not with" in verified(other)[1]) == (4, True)
    (folder / "more.json").write_text("{}", encoding="utf-8")
    assert (verified(public)[0], "does not belong" in verified(public)[1]) == (4, True)
    (folder / "more.json").unlink()
    (folder / CARD).write_bytes(bundle[CARD] + b"# later\n")
    assert (verified(public)[0], "changed after the bundle was signed" in verified(public)[1]) == (4, True)
    (folder / ORIGIN).unlink()
    assert (verified(public)[0], "is unsigned" in verified(public)[1]) == (4, True)


on_either = pytest.mark.parametrize("database", ["sqlite"], indirect=True)
"""For what is refused or shown alike on either database."""


@pytest.fixture
def board(opened: Callable[..., Leaderboard], ada: SecretKey, database: str | None) -> Iterator[Leaderboard]:
    """Return a board that knows ada's key, on either database."""
    made = opened(database=database)
    tokens.register_key(made.store.engine, "ada", ada.public)
    return made


@on_either
def test_a_signed_run_is_shown_as_signed_and_an_unsigned_one_as_unsigned(
    board: Leaderboard, bundle: Files, signed: Files, ada: SecretKey
) -> None:
    mine = board.sent(archive(signed), board.token("ada"))
    other = board.sent(archive(another(bundle, "bob's")), board.token("bob"))
    assert (mine.status_code, other.status_code) == (201, 201), mine.text
    marks = {run["id"]: run["signed_by"] for run in board.runs()}
    assert marks == {mine.json()["id"]: ada.public.id, other.json()["id"]: None}
    assert f"signed with the key {ada.public.id}" in board.page(f"runs/{mine.json()['id']}").text
    assert "<dd>unsigned</dd>" in board.page(f"runs/{other.json()['id']}").text
    heads = re.findall(r'<th scope="row".*?</th>', board.page("").text, re.DOTALL)
    assert {
        run[:12]: any(run[:12] in head and ", signed</span>" in head for head in heads) for run in marks
    } == {run[:12]: bool(key) for run, key in marks.items()}
    assert (
        board.page(f"runs/{mine.json()['id']}/files/{ORIGIN}").content.splitlines()[2:]
        == (signed[ORIGIN].splitlines()[2:])
    )
    found = audit_store(board.store)
    assert (found.problems, found.runs, found.signed) == ([], 2, 1)


@on_either
def test_a_false_signature_is_refused_with_what_is_wrong(
    board: Leaderboard, bundle: Files, signed: Files, ada: SecretKey, tmp_path: Path
) -> None:
    eve, token = new_key(), board.token("ada")
    tokens.register_key(board.store.engine, "eve", eve.public)
    lines = signed[ORIGIN].decode().splitlines()
    other = _signed(bundle, new_key(), "ada", tmp_path)[ORIGIN].decode().splitlines()
    false = {
        "changed after the bundle was signed": {**signed, CARD: bundle[CARD] + b"# later\n"},
        "is not registered for ada": _signed(bundle, eve, "ada", tmp_path),
        "signature of the message is wrong": _resigned(signed, ada, b"another message"),
        "signature of its comment is wrong": {**signed, ORIGIN: _text([*lines[:3], other[3]])},
        "signed for bob, but was sent by ada": _signed(bundle, ada, "bob", tmp_path),
        "four lines of a signature": {**signed, ORIGIN: b"signed by ada\n"},
        "does not have the four lines": {**signed, ORIGIN: b""},
        "is not Base64": {**signed, ORIGIN: _text([lines[0], "RUQ!", lines[2], ""])},
        "has 0 bytes, not 74": {**signed, ORIGIN: _text([lines[0], " ", lines[2], " "])},
        "does not sign a hash": {**signed, ORIGIN: _text([lines[0], _of_message(lines[1]), *lines[2:]])},
        "wrong: it was changed": {
            **signed,
            ORIGIN: _text([lines[0], _one_order_more(lines[1]), *lines[2:]]),
        },
        "does not state its run": {**signed, ORIGIN: _text([*lines[:2], _eastern(lines[2]), lines[3]])},
        "its run, publisher and time": _commented(signed, ada, "timestamp:1\tfile:list"),
        "holds 'origin.minisig' of more than 16,384 bytes": {**signed, ORIGIN: signed[ORIGIN] * 100},
    }
    for reason, files in false.items():
        answer = board.sent(archive(files), token)
        assert (answer.status_code, reason in answer.json()["detail"]) == (422, True), (reason, answer.text)
    assert board.sent(archive(signed), board.token("eve")).status_code == 422
    assert board.states() == {}


def _text(lines: list[str]) -> bytes:
    return "\n".join([*lines, ""]).encode()


def _of_message(line: str) -> str:
    """Return a line that claims to sign the message itself, as minisign did before it hashed."""
    return base64.b64encode(b"Ed" + base64.b64decode(line)[2:]).decode()


def _one_order_more(line: str) -> str:
    """Return a signature of which the second number is larger by the order of the group (RFC 8032, 5.1.7)."""
    raw = base64.b64decode(line)
    order = 2**252 + 27742317777372353535851937790883648493
    larger = int.from_bytes(raw[42:], "little") + order
    return base64.b64encode(raw[:42] + larger.to_bytes(32, "little")).decode()


def _eastern(comment: str) -> str:
    """Return the comment with digits that only look like other ones."""
    head, time = comment.split("time:")
    return head + "time:" + "".join(chr(0x660 + int(each)) if each.isdigit() else each for each in time)


def _resigned(files: Files, key: SecretKey, message: bytes) -> Files:
    comment = parse_signature(files[ORIGIN].decode()).comment
    return {**files, ORIGIN: key.sign(message, comment).text.encode()}


def _commented(files: Files, key: SecretKey, comment: str) -> Files:
    return {**files, ORIGIN: key.sign(b"any", comment).text.encode()}


def test_a_revoked_key_signs_nothing_more(
    board: Leaderboard, bundle: Files, signed: Files, ada: SecretKey, tmp_path: Path
) -> None:
    token = board.token("ada")
    assert board.sent(archive(signed), token).status_code == 201
    tokens.revoke_key(board.store.engine, ada.public.id)
    later = board.sent(archive(_signed(another(bundle, "later"), ada, "ada", tmp_path)), token)
    assert (later.status_code, "was revoked" in later.text) == (422, True)
    assert audit_store(board.store).problems == []
    with pytest.raises(UsageError, match="was revoked"):
        tokens.register_key(board.store.engine, "ada", ada.public)


def test_a_signed_run_stays_signed_whoever_sends_it_again_without_or_after_another_key(
    board: Leaderboard, bundle: Files, signed: Files, ada: SecretKey, tmp_path: Path
) -> None:
    """Without its signature, by others, with a new key of its submitter, and with the old one revoked."""
    token = board.token("ada")
    run = board.sent(archive(signed), token).json()["id"]
    for who in (token, board.token("eve"), board.token("mae", Role.MAINTAINER)):
        assert board.sent(archive(bundle), who).status_code == 200
        assert board.runs()[0]["signed_by"] == ada.public.id
    new = new_key()
    tokens.register_key(board.store.engine, "ada", new.public)
    assert board.sent(archive(_signed(bundle, new, "ada", tmp_path)), token).status_code == 200
    assert board.runs()[0]["signed_by"] == new.public.id
    tokens.revoke_key(board.store.engine, ada.public.id)
    assert board.sent(archive(signed), token).status_code == 422
    assert board.runs()[0]["signed_by"] == new.public.id
    assert board.states() == {run: ["self_reported", "self_reported"]}
    assert audit_store(board.store).problems == []


def test_a_withdrawn_run_is_listed_by_nobody_who_sends_it_again(
    board: Leaderboard, signed: Files, bundle: Files
) -> None:
    """Its files stay public, so that anybody can send them, also under another name or with another card."""
    ada, eve = board.token("ada"), board.token("eve")
    run = board.sent(archive(signed), ada).json()["id"]
    assert board.asked("POST", f"bundles/{run}/withdraw", ada).status_code == 200
    mine = {**bundle, CARD: bundle[CARD] + b"# mine\n"}
    assert [board.sent(archive(files), who).status_code for files, who in ((signed, ada), (bundle, eve))] == [
        200,
        200,
    ]
    refused = board.sent(archive(mine), eve)
    assert (refused.status_code, "were published by ada" in refused.text) == (409, True)
    assert board.states() == {run: ["self_reported", "withdrawn"]}
    assert board.runs() == []
    again = board.sent(archive(mine), ada)
    assert (again.status_code, again.json()["state"]) == (201, "self_reported")


def test_traces_that_a_maintainer_withdrew_are_free_for_whom_they_belong_to(
    board: Leaderboard, bundle: Files, signed: Files
) -> None:
    """Also if the thief signs the withdrawn run afterwards, which writes another change of it."""
    thief, mae = board.token("ada"), board.token("mae", Role.MAINTAINER)
    run = board.sent(archive(bundle), thief).json()["id"]
    assert board.asked("POST", f"bundles/{run}/withdraw", mae).status_code == 200
    assert board.sent(archive(signed), thief).status_code == 200
    owner = board.sent(archive({**bundle, CARD: bundle[CARD] + b"# mine\n"}), board.token("bob"))
    assert owner.status_code == 201, owner.text


def test_a_run_that_was_signed_for_another_board_needs_the_name_and_the_key_on_this_one(
    opened: Callable[..., Leaderboard], signed: Files, ada: SecretKey
) -> None:
    """Whoever copies it has neither ada's token nor her key there; it can only be sent without signature."""
    board = opened()
    assert board.sent(archive(signed), board.token("eve")).status_code == 422
    assert board.sent(archive(signed), board.token("ada")).status_code == 422
    tokens.register_key(board.store.engine, "eve", ada.public)
    answer = board.sent(archive(signed), board.token("eve"))
    assert (answer.status_code, "signed for ada, but was sent by eve" in answer.text) == (422, True)


def test_a_run_that_was_published_unsigned_can_be_signed_by_its_submitter_only(
    board: Leaderboard, bundle: Files, signed: Files, ada: SecretKey, tmp_path: Path
) -> None:
    eve = new_key()
    tokens.register_key(board.store.engine, "eve", eve.public)
    run = board.sent(archive(bundle), board.token("ada")).json()["id"]
    assert board.sent(archive(_signed(bundle, eve, "eve", tmp_path)), board.token("eve")).status_code == 200
    assert board.runs()[0]["signed_by"] is None
    for _ in range(2):
        answer = board.sent(archive(signed), board.token("ada"))
        assert (answer.status_code, answer.json()["id"]) == (200, run)
        assert board.runs()[0]["signed_by"] == ada.public.id
    assert board.states() == {run: ["self_reported", "self_reported"]}
    assert audit_store(board.store).problems == []


def test_an_audit_finds_a_signature_that_is_gone_or_false(
    board: Leaderboard, bundle: Files, signed: Files, ada: SecretKey, tmp_path: Path
) -> None:
    run = board.sent(archive(signed), board.token("ada")).json()["id"]
    path = board.data / "runs" / run / ORIGIN

    def problems() -> list[str]:
        return [problem.message for problem in audit_store(board.store).problems]

    path.write_bytes(_signed(bundle, new_key(), "ada", tmp_path)[ORIGIN])
    assert ["not with" in problem for problem in problems()] == [True]
    path.write_bytes(_resigned(signed, ada, b"another message")[ORIGIN])
    assert ["signature of the message is wrong" in problem for problem in problems()] == [True]
    path.unlink()
    assert problems() == ["its signature is missing"]
    path.write_bytes(signed[ORIGIN])
    assert problems() == []
    with writing(board.store.engine) as connection:
        connection.execute(delete(KEYS))
    assert problems() == [f"it is signed with the key {ada.public.id}, which is not registered"]


def test_from_a_key_to_a_signed_run_with_the_commands_that_people_type(
    opened: Callable[..., Leaderboard], recorded: Path, tmp_path: Path
) -> None:
    board = opened()
    data, key = str(board.data), str(tmp_path / "ada.key")
    assert invoke(["ccl-bench", "sign", "new", str(tmp_path / "ada")]).returncode == 0
    registered = invoke(["ccl-bench", "board", "key", data, "ada", str(tmp_path / "ada.pub")])
    assert registered.returncode == 0, registered.stderr
    command = ["ccl-bench", "publish", str(recorded), "--to", board.address, "--sign", key]
    preview = invoke([*command, "--dry-run"], CCL_BENCH_TOKEN=board.token("ada"))
    assert (preview.returncode, ORIGIN in preview.stdout) == (0, True), preview.stderr
    done = invoke(command, CCL_BENCH_TOKEN=board.token("ada"))
    assert done.returncode == 0, done.stderr
    assert board.runs()[0]["signed_by"] == registered.stdout.strip()
    folder = next((board.data / "runs").iterdir())
    assert (
        invoke(["ccl-bench", "sign", "verify", str(folder), "--key", str(tmp_path / "ada.pub")]).returncode
        == 0
    )
    assert (tmp_path / "ada.pub").read_text(encoding="ascii").splitlines()[1] in invoke(
        ["ccl-bench", "board", "key", data, "--list"]
    ).stdout
    secret = (tmp_path / "ada.key").read_bytes().splitlines()[1]
    kept = [path for path in board.data.rglob("*") if path.is_file()]
    assert [path for path in kept if secret in path.read_bytes()] == []
    assert invoke(["ccl-bench", "board", "key", data, "--revoke", registered.stdout.strip()]).returncode == 0
    assert "revoked" in invoke(["ccl-bench", "board", "key", data, "--list"]).stdout
    assert invoke(["ccl-bench", "board", "key", data, "--revoke", "0"]).returncode == 4
    assert invoke(["ccl-bench", "board", "key", data, "ada"]).returncode == 2
