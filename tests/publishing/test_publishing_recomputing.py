"""What a worker makes of runs whose traces are there: theirs to verify, and nobody's to run amok with."""

from __future__ import annotations

import gzip
import pickle
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import EXAMPLE, ran
from object_storage import bucket_of, s3_server, settings_for
from publishing_archives import archive, claiming, files_of
from publishing_server import wait_for

from ccl_bench.leaderboard.bundle.parcel import Wanted, packed
from ccl_bench.leaderboard.publishing.recomputing import recomputed
from ccl_bench.leaderboard.publishing.settings import Settings
from ccl_bench.leaderboard.publishing.settling import may_be_read
from ccl_bench.leaderboard.publishing.tokens import Role

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from publishing_archives import Files
    from publishing_server import Leaderboard

    from ccl_bench.leaderboard.bundle.parcel import Parcel

BUCKET = "published"


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Return the environment that leads to object storage with a bucket."""
    with s3_server() as address:
        with bucket_of(address, BUCKET):
            pass
        yield settings_for(address, str(tmp_path_factory.mktemp("aws")))


def _ended(leaderboard: Leaderboard, run: str) -> tuple[str, str]:
    """Wait for the worker, and return what it found and says."""

    def verification() -> dict[str, str]:
        return leaderboard.asked("GET", f"bundles/{run}", leaderboard.token("ada")).json()["verification"]

    wait_for(lambda: verification()["state"] not in {"waiting", "running"})
    return verification()["state"], verification()["message"]


def test_traces_in_object_storage_are_copied_there_and_recomputed_from_there(
    started: Callable[..., Leaderboard], storage: dict[str, str]
) -> None:
    leaderboard = started(f'trace_storage = ["s3://{BUCKET}/"]', workers=1, **storage)
    to = ["--to", leaderboard.address, "--traces", f"s3://{BUCKET}/runs"]
    done = ran(
        ["ccl-bench", "publish", str(EXAMPLE), *to], CCL_BENCH_TOKEN=leaderboard.token("ada"), **storage
    )
    assert done.returncode == 0, done.stderr
    run = done.stdout.strip().rpartition("/")[2]
    assert _ended(leaderboard, run) == ("verified", "20 numbers recomputed with ccl-bench 0.1.0")
    assert not (leaderboard.data / "traces").exists()
    with bucket_of(storage["AWS_ENDPOINT_URL"], "other") as client:
        keys = [each["Key"] for each in client.list_objects_v2(Bucket=BUCKET)["Contents"]]
        client.put_object(Bucket=BUCKET, Key=next(key for key in keys if "trace_0" in key), Body=b"{}")
    mae = leaderboard.token("mae", Role.MAINTAINER)
    assert leaderboard.asked("POST", f"bundles/{run}/recompute", mae).status_code == 200
    wait_for(lambda: any(line["event"] == "recompute-failed" for line in leaderboard.log))
    (failed,) = (line for line in leaderboard.log if line["event"] == "recompute-failed")
    assert "is another file than the one that was published" in failed["reason"]
    assert leaderboard.states() == {run: ["self_reported", "verified"]}


@pytest.mark.parametrize(
    "address",
    [
        "s3://somewhere-else/runs",
        f"s3://{BUCKET}-of-another/runs",
        f"s3://{BUCKET}/../private",
        "http://169.254.169.254/latest/meta-data",
        "file:///etc",
    ],
)
def test_an_address_that_the_operator_did_not_name_is_never_read(address: str) -> None:
    assert not may_be_read(address, Settings(trace_storage=(f"s3://{BUCKET}/",)))
    assert may_be_read(f"s3://{BUCKET}/runs/1", Settings(trace_storage=(f"s3://{BUCKET}/",)))


def test_a_number_that_the_traces_do_not_give_puts_the_run_into_quarantine(
    started: Callable[..., Leaderboard], whole: Files
) -> None:
    leaderboard = started(workers=1)
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
    started: Callable[..., Leaderboard], tmp_path: Path
) -> None:
    run, trace = tmp_path / "llama-with-a-pickle", tmp_path / "was-executed"
    shutil.copytree(EXAMPLE, run)
    (run / "rank0_memory_snapshot.pickle").write_bytes(pickle.dumps({"segments": [Evil(trace)]}))
    leaderboard = started(workers=1)
    files = files_of(packed(Wanted(str(run), with_traces=True), tmp_path / "parcel"))
    assert b"was-executed" in files["run/rank0_memory_snapshot.pickle"]
    published = leaderboard.sent(archive(files), leaderboard.token("ada")).json()["id"]
    assert _ended(leaderboard, published)[0] == "verified"
    assert not trace.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Settings(recompute_seconds=1), "it takes more than 1 s"),
        (Settings(recompute_bytes=150_000_000), "it takes more than 150,000,000 bytes of memory"),
        (Settings(unpacked_bytes=1_000_000), "it takes more than 1,000,000 bytes on the disk"),
    ],
    ids=["time", "memory", "disk"],
)
def test_recomputing_ends_at_its_limits(
    settings: Settings, message: str, parcel: Parcel, tmp_path: Path
) -> None:
    """An export of Nsight Systems that unpacks to 2 GB of zeros."""
    (tmp_path / "run").mkdir()
    with gzip.open(tmp_path / "run" / "report.sqlite.gz", "wb", 1) as stream:
        stream.write(b"SQLite format 3\0")
        for _ in range(2000):
            stream.write(bytes(1_000_000))
    (tmp_path / "scratch").mkdir()
    answer = recomputed(parcel.bundle, tmp_path / "run", tmp_path / "scratch", settings, lambda: True)
    assert answer.error == message
