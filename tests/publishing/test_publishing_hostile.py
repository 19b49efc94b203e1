"""What people who mean harm send: it is refused in words, written into the log, and leaves nothing behind."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import tarfile
import zipfile
from typing import TYPE_CHECKING, Any

import pytest
from publishing_archives import (
    CARD,
    PROVENANCE,
    REPORT,
    RESULTS,
    another,
    archive,
    edited,
    member,
    with_results,
)
from publishing_server import Leaderboard

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from publishing_archives import Files

MIB = 1 << 20


def _first_trace(name: str, value: object) -> Callable[[Files], Files]:
    """Return what changes the first trace of `provenance.json`."""
    return lambda files: edited(files, PROVENANCE, lambda made: made["traces"][0].update({name: value}))


def _stated(name: str, value: object) -> Callable[[Files], Files]:
    return lambda files: edited(files, PROVENANCE, lambda made: made.update({name: value}))


def _result(**changes: object) -> Callable[[Files], Files]:
    """Return what changes the first result that has a number."""

    def change(results: list[Any]) -> None:
        next(result for result in results if result["status"] == "ok").update(changes)

    return lambda files: with_results(files, change)


def _card(text: str) -> Callable[[Files], Files]:
    return lambda files: {**files, CARD: text.encode()}


def _aliases() -> str:
    """Return YAML of a few hundred bytes whose aliases stand for 10^9 texts."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 9)]
    return "\n".join(lines)


NAMES = {
    "out of the folder": "run/../../../etc/cron.d/evil",
    "out of the folder at once": "../evil",
    "an absolute name": "/etc/passwd",
    "an absolute name below the run": "run//etc/passwd",
    "a hidden file": "run/.bashrc",
    "a hidden folder": "run/.ssh/authorized_keys",
    "a file of its own": "notes.txt",
    "its own history": "history.json",
    "a backslash": "run/..\\..\\evil",
    "a line end": "run/trace\n.json",
    "too many folders": "run/" + "a/" * 20 + "b",
    "a name that is too long": "run/" + "a" * 70 + "/" + "b" * 79 + "/" + "c" * 99,
}
MEMBERS = {
    "a symbolic link": member("run/trace.json", tarfile.SYMTYPE, "/etc/passwd"),
    "a symbolic link for a card": member(CARD, tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link": member("run/trace.json", tarfile.LNKTYPE, "/etc/passwd"),
    "a device": member("run/null", tarfile.CHRTYPE),
    "a disk": member("run/sda", tarfile.BLKTYPE),
    "a pipe": member("run/pipe", tarfile.FIFOTYPE),
    "a folder": member("run/folder", tarfile.DIRTYPE),
    "a sparse file": member("run/sparse", tarfile.GNUTYPE_SPARSE),
    "an extended header": member("run/pax", tarfile.XHDTYPE),
    "a long name's header": member("././@LongLink", tarfile.GNUTYPE_LONGNAME),
}
CHANGES: dict[str, tuple[Callable[[Files], Files], str]] = {
    "no card": (lambda files: {k: v for k, v in files.items() if k != CARD}, "workload_card.yaml is missing"),
    "nothing at all": (lambda _: {}, "is missing"),
    "a card that is none": (_card("- 1\n- 2\n"), "no mapping"),
    "a card that calls a function": (_card("!!python/object/apply:os.system ['id']"), CARD),
    "a bomb of aliases": (_card(_aliases()), "expands to, more than 100,000 values"),
    "a card that is nested deeply": (_card("[" * 5000), "workload_card.yaml"),
    "a card of many bytes": (_card("# " + "x" * MIB), "more than 65,536 bytes"),
    "results that are nested deeply": (lambda f: {**f, RESULTS: b"[" * 100_000}, RESULTS),
    "details that are nested deeply": (
        _result(details={"deep": json.loads("[" * 900 + "]" * 900)}),
        "nested",
    ),
    "results that are no JSON": (lambda f: {**f, RESULTS: b"\xff\xfe{"}, RESULTS),
    "another type of value": (_result(value="1; DROP TABLE runs"), RESULTS),
    "an infinite number": (
        lambda f: {**f, RESULTS: f[RESULTS].replace(b'"value": ', b'"value": 1e999, "x": ', 1)},
        RESULTS,
    ),
    "a metric that nobody knows": (_result(metric="reputation"), "is not a metric"),
    "a metric in another unit": (_result(unit="parsecs"), "is in s, lower is better"),
    "another revision of a metric": (
        _result(provenance={"tool_version": "0.1.0", "metric_revision": 99}),
        "revision 99",
    ),
    "a number that is said not to be": (_result(status="failed"), "contradicts its status"),
    "a metric twice": (lambda f: with_results(f, lambda results: results.append(results[0])), "2 times"),
    "a forged hash": (_first_trace("sha256", "0" * 64), "with another hash"),
    "a hash that is none": (_first_trace("sha256", "<script>"), "has no valid SHA-256"),
    "a trace outside of the run": (_first_trace("file", "../../etc/passwd"), "leads out of the run"),
    "a path for a name": (_stated("run", "/home/ada/run"), "is empty, a path, or not printable"),
    "a name of two lines": (_stated("run", 'run\n{"event": "published"}'), "not printable"),
    "a trace whose name has two lines": (_first_trace("file", "trace\n.json"), "not printable"),
    "an address that is none": (_stated("trace_url", "javascript:alert(1)"), "is not a full address"),
    "a version that is none": (_stated("tool_version", "<b>1</b>"), "is not a version"),
    "a field that no card has": (_stated("fields", {"__class__": 1}), "not a field of a card"),
    "a number twice, of which programs read either": (
        lambda f: {**f, RESULTS: f[RESULTS].replace(b'"value": ', b'"value": 99.0, "value": ', 1)},
        "'value' occurs twice",
    ),
    "a number twice, written in two ways": (
        lambda f: {**f, RESULTS: f[RESULTS].replace(b'"value": ', b'"val\\u0075e": 99.0, "value": ', 1)},
        "'value' occurs twice",
    ),
    "a name twice in what was measured": (
        lambda f: {**f, PROVENANCE: f[PROVENANCE].replace(b'"run": ', b'"run": "other", "run": ', 1)},
        "'run' occurs twice",
    ),
    "a phase that no card has": (_stated("fields", {"model.phase": "dreaming"}), "is not a known value"),
    "a degree that no card has": (_stated("fields", {"parallelism.tp": 10**30}), "less than or equal to"),
    "a later schema": (_stated("schema_version", 2), "schema 2"),
    "a report of other results": (
        lambda f: edited(f, REPORT, lambda report: report.update(results=[])),
        "different results from the bundle",
    ),
    "a report of another run": (
        lambda f: edited(f, REPORT, lambda report: report["inspection"].update(run="other")),
        "describes another run",
    ),
}


def _bytes_on_disk(leaderboard: Leaderboard) -> int:
    folders = (leaderboard.data / name for name in ("uploads", "traces", "runs"))
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def _refused(
    leaderboard: Leaderboard, sent: bytes | Iterator[bytes], message: str, status: int = 422
) -> None:
    """Send an archive and look at the answer, the log, and what is left on the disk."""
    before = len(leaderboard.log), _bytes_on_disk(leaderboard)
    answer = leaderboard.sent(sent, leaderboard.mallory)  # type: ignore[attr-defined]
    assert answer.status_code == status, answer.text
    said = answer.json()
    assert message in said["detail"]
    assert said["fix"]
    assert str(leaderboard.data) not in answer.text
    (line,) = leaderboard.log[before[0] :]
    assert (line["event"], line["status"], line["submitter"]) == ("refused", status, "mallory")
    assert line["reason"] == said["detail"][:1000]
    assert _bytes_on_disk(leaderboard) == before[1]


@pytest.fixture(scope="module", autouse=True)
def mallory(leaderboard: Leaderboard) -> None:
    """Give the one who means harm a token, and as many calls as they like."""
    (leaderboard.data / "publishing.toml").write_text(
        "uploads_per_hour = 100000\narchive_bytes = 20_000_000\nunpacked_bytes = 50_000_000\nfiles = 100\n",
        encoding="utf-8",
    )
    leaderboard.mallory = leaderboard.token("mallory")  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", NAMES.values(), ids=NAMES)
def test_a_name_that_leads_elsewhere_is_refused(leaderboard: Leaderboard, bundle: Files, name: str) -> None:
    _refused(leaderboard, archive({**bundle, name: b"evil"}), "holds a file whose name")


@pytest.mark.parametrize("other", MEMBERS.values(), ids=MEMBERS)
def test_what_is_no_plain_file_is_refused(
    leaderboard: Leaderboard, bundle: Files, other: tarfile.TarInfo
) -> None:
    files = {name: text for name, text in bundle.items() if name != other.name}
    _refused(leaderboard, archive(files, other), "only plain files are accepted")


@pytest.mark.parametrize(("change", "message"), CHANGES.values(), ids=CHANGES)
def test_a_bundle_that_is_not_what_it_says_is_refused(
    leaderboard: Leaderboard, bundle: Files, change: Callable[[Files], Files], message: str
) -> None:
    _refused(leaderboard, archive(change(bundle)), message)


def test_a_file_that_is_there_twice_is_refused(leaderboard: Leaderboard, bundle: Files) -> None:
    raw = gzip.decompress(archive(bundle))[: -2 * 512].rstrip(b"\0")
    raw += b"\0" * (-len(raw) % 512)
    twice = gzip.compress(raw + gzip.decompress(archive({CARD: bundle[CARD]})))
    _refused(leaderboard, twice, "twice")


def test_a_file_that_is_a_folder_too_is_refused(leaderboard: Leaderboard, bundle: Files) -> None:
    _refused(leaderboard, archive({**bundle, "run/a": b"1", "run/a/b": b"2"}), "as file and folder")


def test_a_bomb_is_given_up_at_the_limit(leaderboard: Leaderboard, bundle: Files) -> None:
    """900 MB of nothing, packed into less than 5 MB; 50 MB are allowed."""
    packed = b""
    size = 100_000_000
    zeros = gzip.compress(bytes(size + -size % 512), 1)
    for number in range(9):
        info = tarfile.TarInfo(f"run/trace_{number}.json")
        info.size = size
        packed += gzip.compress(info.tobuf(tarfile.USTAR_FORMAT)) + zeros
    assert len(packed) < 5_000_000
    _refused(leaderboard, packed, "holds more than 50,000,000 bytes when unpacked")


def test_many_files_below_the_limit_of_each_are_given_up_too(leaderboard: Leaderboard) -> None:
    files = {f"run/trace_{number}.json": bytes(20_000_000) for number in range(3)}
    _refused(leaderboard, archive(files), "holds more than 50,000,000 bytes when unpacked")


def test_a_crowd_of_files_is_refused(leaderboard: Leaderboard) -> None:
    _refused(leaderboard, archive({f"run/{number}": b"" for number in range(101)}), "more than 100 files")


def test_an_archive_with_a_gzip_header_of_half_a_megabyte_is_refused(
    leaderboard: Leaderboard, bundle: Files
) -> None:
    sent = archive(bundle)  # packed without a name: the header has ten bytes
    named = sent[:3] + b"\x08" + sent[4:10] + b"n" * (520 << 10) + b"\0" + sent[10:]
    assert gzip.decompress(named) == gzip.decompress(sent)
    _refused(leaderboard, named, "is damaged, or not a gzip-compressed tar archive")


def test_a_size_that_is_a_lie_is_refused(leaderboard: Leaderboard, bundle: Files) -> None:
    info = tarfile.TarInfo("run/trace.json")
    info.size = 1 << 60
    lie = gzip.compress(info.tobuf(tarfile.GNU_FORMAT) + bytes(1024))
    _refused(leaderboard, lie, "when unpacked")


@pytest.mark.parametrize("size", [0, 1, 9, 300, 20_000], ids=str)
def test_an_archive_that_was_cut_off_is_refused(leaderboard: Leaderboard, bundle: Files, size: int) -> None:
    _refused(leaderboard, archive(bundle)[:size], "the archive")


def test_what_is_no_archive_is_refused(leaderboard: Leaderboard) -> None:
    _refused(
        leaderboard,
        hashlib.sha256(b"noise").digest() * 1000,
        "is damaged, or not a gzip-compressed tar archive",
    )


def test_a_zip_is_refused_wherever_its_names_lead(leaderboard: Leaderboard, bundle: Files) -> None:
    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w") as packed:
        for name, content in {**bundle, "../../evil": b"evil"}.items():
            packed.writestr(name, content)
    _refused(leaderboard, raw.getvalue(), "is damaged, or not a gzip-compressed tar archive")


def test_something_behind_the_end_is_refused(leaderboard: Leaderboard, bundle: Files) -> None:
    raw = gzip.decompress(archive(bundle))
    _refused(leaderboard, gzip.compress(raw + b"x" * 512), "has data after its end")


def test_an_archive_over_the_limit_is_refused(leaderboard: Leaderboard) -> None:
    _refused(leaderboard, bytes(20_000_001), "has more than 20,000,000 bytes", status=413)


def test_an_archive_far_over_the_limit_is_refused_for_what_its_headers_say(leaderboard: Leaderboard) -> None:
    _refused(leaderboard, bytes(40_000_000), "has more than 20,000,000 bytes", status=413)


def test_an_archive_over_the_limit_that_states_no_size_is_refused_for_what_came(
    leaderboard: Leaderboard,
) -> None:
    blocks = (bytes(1_000_000) for _ in range(21))
    _refused(leaderboard, blocks, "has more than 20,000,000 bytes", status=413)


def test_traces_other_than_those_named_are_refused(leaderboard: Leaderboard, whole: Files) -> None:
    name = "run/kineto_trace_0.json.gz"
    changed = {**whole, name: whole["run/training_metrics.json"]}
    _refused(leaderboard, archive(changed), "is not the file that provenance.json names")
    missing = {file: text for file, text in whole.items() if file != name}
    _refused(leaderboard, archive(missing), "is missing: send every file of the run, or none")
    more = {**whole, "run/extra.json": b"{}"}
    _refused(leaderboard, archive(more), "is not among the files that provenance.json names")


def test_a_report_that_another_program_would_have_to_open_is_refused(
    leaderboard: Leaderboard, bundle: Files
) -> None:
    content = b"report"
    digest = hashlib.sha256(content).hexdigest()
    named = edited(
        bundle, PROVENANCE, lambda made: made.update(traces=[], files={"report1.nsys-rep": digest})
    )

    def without_traces(results: list[Any]) -> None:
        for result in results:
            result["provenance"]["traces"] = []

    sent = archive({**with_results(named, without_traces), "run/report1.nsys-rep": content})
    before = leaderboard.states()
    answer = leaderboard.sent(sent, leaderboard.mallory)  # type: ignore[attr-defined]
    assert answer.status_code == 422
    assert leaderboard.states() == before


def test_a_full_disk_is_reported_and_leaves_nothing(tmp_path: Path) -> None:
    """400 MB are unpacked on a disk of 300."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=300m", "tmpfs", str(place)]
    if subprocess.run(mount, capture_output=True, check=False).returncode != 0:
        pytest.skip("a small disk cannot be mounted: run the tests as root")
    leaderboard = Leaderboard(place)
    try:
        leaderboard.serve()
        info = tarfile.TarInfo("run/trace.json")
        info.size = 400_000_000
        zeros = gzip.compress(bytes(50_000_000), 1)
        answer = leaderboard.sent(
            gzip.compress(info.tobuf(tarfile.USTAR_FORMAT)) + zeros * 8, leaderboard.token("ada")
        )
        assert (answer.status_code, "is full" in answer.json()["detail"]) == (507, True)
        assert [(line["event"], line["status"]) for line in leaderboard.log] == [("refused", 507)]
        assert list((place / "uploads").glob("incoming-*")) == []
        assert leaderboard.asked("GET", "health").status_code == 200
    finally:
        leaderboard.close()
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def test_a_script_in_a_card_is_text(leaderboard: Leaderboard, bundle: Files) -> None:
    """In every place where a submitter may write, and on every page that shows it."""
    script = "<script>alert(1)</script>"
    changed = another(bundle, "script")
    text = changed[CARD].decode()
    for reported in ("A Llama-like decoder", "The ccl-bench developers", "llama-tiny"):
        assert reported in text
        text = text.replace(reported, script)
    files = edited({**changed, CARD: text.encode()}, PROVENANCE, lambda made: made.update(run=script[:-9]))
    files = edited(files, REPORT, lambda report: report["inspection"].update(run=script[:-9]))
    files = edited(
        files,
        PROVENANCE,
        lambda made: made["fields"].update({"framework.name": script, "description": script}),
    )
    answer = leaderboard.sent(archive(files), leaderboard.mallory)  # type: ignore[attr-defined]
    assert answer.status_code == 201, answer.text
    run = answer.json()["id"]
    for page in ("", f"runs/{run}", f"runs/{run}/report", f"compare?run={run}&run={run}"):
        shown = leaderboard.page(page)
        assert shown.status_code == 200, (page, shown.text)
        assert "<script>alert" not in shown.text, page
        assert "script-src 'self'" in shown.headers["content-security-policy"]
    leaderboard.asked("POST", f"bundles/{run}/withdraw", leaderboard.mallory)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "question",
    [
        "q='; DROP TABLE runs; --",
        "model=' OR '1'='1",
        "sort=mfu; DELETE FROM runs",
        "workload=' UNION SELECT digest FROM tokens --",
        "q=%25%5C_%00",
        "columns=mfu,(select digest from tokens)",
        "page=99999999999999999999",
    ],
)
def test_sql_in_a_question_is_text_or_refused(leaderboard: Leaderboard, question: str) -> None:
    before = leaderboard.asked("GET", "health").json()
    found = leaderboard.asked("GET", f"runs?{question}")
    assert found.status_code in {200, 400, 422}, found.text
    if found.status_code == 200:
        assert all(run["name"] for run in found.json()["runs"])
    assert leaderboard.asked("GET", "health").json() == before


def test_strange_but_sound_values_break_no_page(
    opened: Callable[..., Leaderboard], bundle: Files, database: str | None
) -> None:
    """Numbers beyond any column, and characters that PostgreSQL refuses."""
    leaderboard = opened(database=database)
    token = leaderboard.token("ada")

    def change(made: dict[str, Any]) -> None:
        made["fields"] |= {"parallelism.tp": 10**30, "framework.name": "a\0b\u202ec", "data.seq_len": -1}
        made["environment"] = {"gpu\0": "x" * 1000}

    answer = leaderboard.sent(archive(edited(bundle, PROVENANCE, change)), token)
    assert answer.status_code in {201, 422}, answer.text
    if answer.status_code == 201:
        run = answer.json()["id"]
        for page in ("", f"runs/{run}", "api/v1/runs", f"api/v1/runs/{run}", "api/v1/runs.csv"):
            assert leaderboard.page(page).status_code == 200, page
