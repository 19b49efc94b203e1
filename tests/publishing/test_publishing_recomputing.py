"""What a worker makes of runs whose traces are there: theirs to verify, and nobody's to run amok with."""

from __future__ import annotations

import gzip
import hashlib
import json
import pickle
import shutil
import sqlite3
import threading
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commands import EXAMPLE, invoke
from object_storage import bucket_of, s3_server, settings_for, use_server
from publishing_archives import archive, claiming, files_of, with_results

from ccl_bench.base.errors import InputError
from ccl_bench.leaderboard.bundle.build import strip_folder
from ccl_bench.leaderboard.bundle.format import BundleProvenance, Limits
from ccl_bench.leaderboard.bundle.upload import UploadRequest, prepare_upload
from ccl_bench.leaderboard.bundle.validate import validate_bundle
from ccl_bench.leaderboard.publishing.publications import is_readable_storage
from ccl_bench.leaderboard.publishing.recompute import differences, fetch_run, recompute_run
from ccl_bench.leaderboard.publishing.sandbox import SandboxAnswer
from ccl_bench.leaderboard.publishing.settings import Settings, load_settings
from ccl_bench.leaderboard.publishing.tokens import Role
from ccl_bench.result.step_choice import step_choice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from publishing_archives import Files
    from publishing_server import Leaderboard

    from ccl_bench.leaderboard.bundle.upload import Upload

BUCKET = "published"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment that leads to object storage with a bucket."""
    with s3_server() as address:
        with bucket_of(address, BUCKET):
            pass
        yield settings_for(address, str(tmp_path_factory.mktemp("aws")))


def _ended(leaderboard: Leaderboard, run: str) -> tuple[str, str]:
    """Return what a worker found and says."""
    leaderboard.work()
    said = leaderboard.asked("GET", f"bundles/{run}", leaderboard.token("ada")).json()["verification"]
    return said["state"], said["message"]


def _stored(
    opened: Callable[..., Leaderboard], recorded: Path, storage: dict[str, str], patch: pytest.MonkeyPatch
) -> tuple[Leaderboard, str]:
    """Return a leaderboard that reads object storage, and a run whose traces are there."""
    use_server(patch, storage)
    leaderboard = opened(f'trace_storage = ["s3://{BUCKET}/"]')
    to = ["--to", leaderboard.address, "--traces", f"s3://{BUCKET}/runs"]
    done = invoke(["ccl-bench", "publish", str(recorded), *to], CCL_BENCH_TOKEN=leaderboard.token("ada"))
    assert done.returncode == 0, done.stderr
    return leaderboard, done.stdout.strip().rpartition("/")[2]


def test_traces_in_object_storage_are_copied_there_and_recomputed_from_there(
    opened: Callable[..., Leaderboard],
    recorded: Path,
    storage: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaderboard, run = _stored(opened, recorded, storage, monkeypatch)
    state, message = _ended(leaderboard, run)
    assert (state, "numbers recomputed" in message) == ("verified", True)
    assert not (leaderboard.data / "traces").exists()
    with bucket_of(storage["AWS_ENDPOINT_URL"], "other") as client:
        keys = [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET)["Contents"]]
        client.put_object(Bucket=BUCKET, Key=next(key for key in keys if "trace_0" in key), Body=b"{}")
    mae = leaderboard.token("mae", Role.MAINTAINER)
    assert leaderboard.asked("POST", f"bundles/{run}/recompute", mae).status_code == 200
    leaderboard.work()
    (failed,) = (line for line in leaderboard.log if line["event"] == "recompute-failed")
    assert "differs from the published file" in failed["reason"]
    assert leaderboard.states() == {run: ["self_reported", "verified"]}


def test_a_worker_fetches_nothing_from_an_address_that_is_listed_no_more(
    opened: Callable[..., Leaderboard],
    recorded: Path,
    storage: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leaderboard, run = _stored(opened, recorded, storage, monkeypatch)
    (leaderboard.data / "publishing.toml").write_text("trace_storage = []", encoding="utf-8")
    assert _ended(leaderboard, run) == ("failed", "the traces are no longer available")


@pytest.mark.parametrize(
    "address",
    [
        "s3://somewhere-else/runs",
        f"s3://{BUCKET}-of-another/runs",
        f"s3://{BUCKET}",
        f"s3://{BUCKET}-evil/public/runs",
        f"s3://{BUCKET}/public-evil/runs",
        f"s3://{BUCKET}/public/../private",
        f"s3://{BUCKET}/public/runs/..",
        f"s3://{BUCKET}/public/./runs",
        f"s3://{BUCKET}/public//runs",
        f"s3://{BUCKET}/public/%2e%2e/private",
        f"s3://{BUCKET}/public/..%2fprivate",
        f"s3://{BUCKET}/public/..\\private",
        f"s3://{BUCKET}/public/runs?versionId=1",
        f"s3://{BUCKET}/public/runs#a",
        f"s3://{BUCKET}/public/*",
        f"s3://{BUCKET}/public/[a-z]",
        f"s3://{BUCKET}/public/a b",
        f"s3://{BUCKET}/public/a\nb",
        f"s3://{BUCKET}/public/\u202ea",
        f"s3://{BUCKET}/public/runs::file:///etc",
        f"s3://{BUCKET}/public/runs::http://169.254.169.254/latest",
        f"simplecache::s3://{BUCKET}/public/runs",
        f"s3://key:secret@{BUCKET}/public/runs",
        f"s3://evil@{BUCKET}/public/runs",
        f"S3://{BUCKET}/public/runs",
        f" s3://{BUCKET}/public/runs",
        f"gs://{BUCKET}/public/runs",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc",
    ],
)
def test_an_address_that_the_operator_did_not_name_is_never_read(address: str) -> None:
    settings = Settings(trace_storage=(f"s3://{BUCKET}/public/",))
    assert not is_readable_storage(address, settings)
    for named in ("public", "public/", "public/runs-1/a_b.c@d=e"):
        assert is_readable_storage(f"s3://{BUCKET}/{named}", settings)


@pytest.mark.parametrize(
    "prefix", ["s3://", "s3:///", "s3://bucket", "https://bucket/", "file:///", "bucket/"]
)
def test_storage_without_a_bucket_or_an_end_is_no_setting(tmp_path: Path, prefix: str) -> None:
    (tmp_path / "publishing.toml").write_text(f'trace_storage = ["{prefix}"]', encoding="utf-8")
    with pytest.raises(InputError, match="is not a prefix of addresses in object storage"):
        load_settings(tmp_path)


@pytest.fixture
def redirecting() -> Iterator[tuple[str, list[str], list[str]]]:
    """Return the address of storage that sends whoever asks elsewhere, and who asked it, and the other."""
    asked: list[str] = []
    visited: list[str] = []

    class Elsewhere(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            visited.append(self.path)
            self.send_response(200)
            self.end_headers()

        def do_HEAD(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    class Storage(Elsewhere):
        def do_GET(self) -> None:
            asked.append(self.path)
            status = (301, 302, 303, 307, 308)[len(asked) % 5]
            self.send_response(status)
            self.send_header("location", f"http://127.0.0.1:{there.server_port}/latest/meta-data")
            self.send_header("x-amz-bucket-region", "127.0.0.1")
            self.send_header("content-length", "0")
            self.end_headers()

    with ThreadingHTTPServer(("127.0.0.1", 0), Elsewhere) as there:
        with ThreadingHTTPServer(("127.0.0.1", 0), Storage) as here:
            for server in (there, here):
                threading.Thread(target=server.serve_forever, args=(0.01,)).start()
            yield f"http://127.0.0.1:{here.server_port}", asked, visited
            here.shutdown()
        there.shutdown()


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_storage_that_answers_with_another_address_is_not_followed_there(
    redirecting: tuple[str, list[str], list[str]],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    scheme: str,
) -> None:
    """Of each kind of redirection; a region that is an address leads nowhere, too."""
    if scheme == "gs":
        pytest.importorskip("gcsfs")
    address, asked, visited = redirecting
    use_server(monkeypatch, settings_for(address, str(tmp_path)))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", address)
    for number in range(5):
        with pytest.raises(InputError):
            _fetched(tmp_path / str(number), {f"{number}.json": "0" * 64}, Settings(), f"{scheme}://{BUCKET}")
    assert len(asked) >= 5
    assert visited == []


def test_files_of_any_kind_count_towards_the_size_of_a_run_that_is_fetched(
    storage: dict[str, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_server(monkeypatch, storage)
    files = {f"side-{number}.json": bytes([number]) * 1000 for number in range(3)}
    with bucket_of(storage["AWS_ENDPOINT_URL"], "sized") as client:
        for name, content in files.items():
            client.put_object(Bucket="sized", Key=f"public/{name}", Body=content)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    for size, fits in ((3000, True), (2999, False)):
        settings = Settings(unpacked_bytes=size)
        if fits:
            _fetched(tmp_path / str(size), hashes, settings, bucket="s3://sized")
        else:
            with pytest.raises(InputError, match="the run has more than 2,999 bytes"):
                _fetched(tmp_path / str(size), hashes, settings, bucket="s3://sized")


def _fetched(place: Path, files: dict[str, str], settings: Settings, bucket: str) -> None:
    provenance = BundleProvenance("run", "0.1.0", files=files)
    fetch_run(provenance, f"{bucket}/public", place, settings, lambda: True)


def test_a_number_that_the_traces_do_not_give_puts_the_run_into_quarantine(
    opened: Callable[..., Leaderboard], whole: Files
) -> None:
    leaderboard = opened()
    claimed = claiming(whole, "throughput_tokens_sec", 1.001)
    run = leaderboard.sent(archive(claimed), leaderboard.token("ada")).json()["id"]
    state, message = _ended(leaderboard, run)
    assert (state, "throughput_tokens_sec: claimed " in message) == ("different", True)
    assert leaderboard.states() == {run: ["self_reported", "quarantined"]}
    assert (leaderboard.runs(), leaderboard.page(f"runs/{run}").status_code) == ([], 404)


class Evil:
    """What leaves a file behind when it is unpickled by whoever trusts it."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.trace,)


def test_a_pickle_among_the_traces_is_not_executed(
    opened: Callable[..., Leaderboard], recorded: Path, tmp_path: Path
) -> None:
    run, trace = tmp_path / "llama-with-a-pickle", tmp_path / "was-executed"
    shutil.copytree(recorded, run)
    (run / "rank0_memory_snapshot.pickle").write_bytes(pickle.dumps({"segments": [Evil(trace)]}))
    (tmp_path / "parcel").mkdir()
    leaderboard = opened()
    files = files_of(prepare_upload(UploadRequest(str(run), with_traces=True), tmp_path / "parcel"))
    assert b"was-executed" in files["run/rank0_memory_snapshot.pickle"]
    published = leaderboard.sent(archive(files), leaderboard.token("ada")).json()["id"]
    assert _ended(leaderboard, published)[0] == "verified"
    assert not trace.exists()


@pytest.fixture
def bomb(tmp_path: Path) -> Path:
    """Return a run with a hundred exports of Nsight Systems, each of which unpacks to 60 MB."""
    (tmp_path / "run").mkdir()
    with closing(sqlite3.connect(tmp_path / "report.sqlite")) as connection:
        connection.execute("CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER)")
        connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    content = gzip.compress((tmp_path / "report.sqlite").read_bytes())
    zeros = gzip.compress(bytes(60_000_000), 1)
    for number in range(100):
        (tmp_path / "run" / f"report{number}.sqlite.gz").write_bytes(content + zeros)
    return tmp_path / "run"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(recompute_seconds=1), "recomputing takes more than 1 s"),
        (Settings(unpacked_bytes=100_000_000), "recomputing takes more than 100,000,000 bytes on the disk"),
    ],
    ids=["time", "disk"],
)
def test_recomputing_ends_at_its_limits(
    bomb: Path, settings: Settings, message: str, parcel: Upload, tmp_path: Path
) -> None:
    (tmp_path / "scratch").mkdir()
    answer = recompute_run(parcel.bundle, bomb, tmp_path / "scratch", settings, lambda: True)
    assert answer == SandboxAnswer(error=message)


def test_what_is_reported_names_no_folder_of_the_server(parcel: Upload, tmp_path: Path) -> None:
    for name in ("run", "scratch"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / "notes.txt").write_text("no trace", encoding="utf-8")
    answer = recompute_run(parcel.bundle, tmp_path / "run", tmp_path / "scratch", Settings(), lambda: True)
    assert answer.error.startswith(f"{EXAMPLE.name}: holds no trace of a known format")
    assert str(tmp_path) not in answer.error


def test_the_name_of_a_run_is_text_in_what_is_reported_of_it() -> None:
    """A name may hold what would end a text of JSON."""
    reported = strip_folder(
        b'{"error": "/data/run/a.json: /data/run", "results": []}', Path("/data/run"), 'a", "x": "'
    )
    assert json.loads(reported) == {"error": 'a.json: a", "x": "', "results": []}


def test_recomputing_gets_no_more_memory_than_is_allowed(
    parcel: Upload, recorded: Path, tmp_path: Path
) -> None:
    """Less than the program takes by itself; how it ends is the system's, and no number comes of it."""
    (tmp_path / "scratch").mkdir()
    settings = Settings(recompute_bytes=150_000_000)
    try:
        answer = recompute_run(parcel.bundle, recorded, tmp_path / "scratch", settings, lambda: True)
    except InputError as error:
        assert "no answer" in error.message
    else:
        assert answer.error == "recomputing takes more than 150,000,000 bytes of memory"


def test_a_run_that_was_published_with_chosen_steps_is_recomputed_with_the_same(
    recorded: Path, tmp_path: Path
) -> None:
    (tmp_path / "scratch").mkdir()
    (tmp_path / "parcel").mkdir()
    choice = step_choice("3-4", marker=r"^ProfilerStep#(\d+)$")
    chosen = prepare_upload(
        UploadRequest(str(recorded), with_traces=True, choice=choice), tmp_path / "parcel"
    )
    answer = recompute_run(chosen.bundle, recorded, tmp_path / "scratch", Settings(), lambda: True)
    assert differences(chosen.bundle, answer) == []
    times = next(result for result in answer.results if result.metric == "iteration_wall_clock_time")
    assert list(times.details["per_step_s"]) == ["3", "4"]
    assert times.provenance.steps == choice


def test_a_bundle_whose_results_are_of_different_steps_is_refused(bundle: Files, tmp_path: Path) -> None:
    def change(results: list[Any]) -> None:
        valued = [result for result in results if result["value"] is not None]
        for number, result in enumerate(valued[:2]):
            result["provenance"]["steps"] = {"numbers": str(number), "skip": 0, "marker": ""}

    changed = with_results(bundle, change)
    for name, content in changed.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(InputError, match="different choices of steps"):
        validate_bundle(tmp_path, Limits())
