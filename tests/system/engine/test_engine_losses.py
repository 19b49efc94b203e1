"""What a cluster loses while it reads: workers, connections, its scheduler. The answer stays the same."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import poison_format
import pytest
from clusters import end, one_cluster, until

from ccl_bench import engine
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.evaluate.compute import evaluate
from ccl_bench.result import to_json
from ccl_bench.run import open_run

if TYPE_CHECKING:
    from clusters import Cluster

RANKS = 4
MEASURED = ("coll_call_num", "straggler", "iteration_wall_clock_time", "comm_comp_overlap", "mfu")


def answer(place: Path, name: str = "local", progress=None) -> bytes:
    with engine.use_engine(name):
        return to_json(evaluate(open_run(place), MEASURED, use_cache=False, progress=progress))


class Watched:
    """Keeps what progress is reported, and does something once `after` traces are done."""

    def __init__(self, do=lambda: None, after: int = 1) -> None:
        self.reported: list[tuple[int, int]] = []
        self.do, self.after = do, after

    def __call__(self, done: int, total: int) -> None:
        self.reported.append((done, total))
        if done == self.after:
            self.do()


EVERY_RANK = [(done, RANKS) for done in range(1, RANKS + 1)]


def test_a_worker_killed_while_it_reads_is_made_up_for(
    run: Path, tmp_path: Path, poison, own_cluster: Cluster
) -> None:
    readers = tmp_path / "readers"
    readers.mkdir()
    keeping = with_poison(run, tmp_path, rank=3, poison="keep", folder=str(readers))
    own_cluster.worker()
    own_cluster.worker()
    own_cluster.has_workers(2)
    killed = []

    def kill() -> None:
        until(lambda: poison_format.readers(readers), "a reader", own_cluster)
        killed.extend(poison_format.readers(readers))
        os.kill(killed[0], signal.SIGKILL)
        (readers / "go").touch()

    watched = Watched(kill, after=2)

    assert answer(keeping, own_cluster.address, watched) == answer(keeping)
    assert watched.reported == EVERY_RANK
    codes = {process.pid: process.poll() for process in own_cluster.processes}
    assert [codes[pid] for pid in killed] == [-signal.SIGKILL]
    assert len(poison_format.readers(readers)) == 3  # the one that died, its successor, this process


def test_a_trace_that_kills_every_worker_is_left_out_and_named(
    run: Path, tmp_path: Path, poison, own_cluster: Cluster
) -> None:
    """A nanny starts a worker again; the tasks beside the poisoned one are not given up with it."""
    poisoned = with_poison(run, tmp_path, rank=3)
    own_cluster.worker(nanny=True)
    own_cluster.has_workers(1)

    reported = json.loads(answer(poisoned, own_cluster.address))

    assert without_findings(reported) == without_findings(json.loads(answer(without(run, tmp_path, rank=3))))
    calls = next(result for result in reported if result["metric"] == "coll_call_num")
    died = [finding for finding in calls["findings"] if finding["code"] == "worker-died"]
    assert [(f["file"], f["rank"], f["severity"]) for f in died] == [("rank3_trace.json", 3, "error")]
    assert died[0]["message"].startswith("each of 2 workers that read it died")


def with_poison(run: Path, scratch: Path, rank: int, **how) -> Path:
    """Return a copy of a run in which the trace of one rank kills whoever reads it."""
    copy = without(run, scratch / "poisoned", rank)
    wanted = {"poison": "kill", "rank": rank, **how}
    (copy / f"rank{rank}_trace.json").write_text(json.dumps(wanted))
    return copy


def without(run: Path, folder: Path, rank: int) -> Path:
    """Return a copy of a run that lacks the trace of one rank."""
    copy = Path(shutil.copytree(run, folder / "run"))
    (copy / f"rank{rank}_trace.json.gz").unlink()
    return copy


def without_findings(results: list[dict]) -> list[dict]:
    return [{name: value for name, value in result.items() if name != "findings"} for result in results]


def test_processes_beside_this_one_bear_a_poisoned_trace_too(run: Path, tmp_path: Path, poison) -> None:
    reported = json.loads(answer(with_poison(run, tmp_path, rank=3), "processes"))

    assert without_findings(reported) == without_findings(json.loads(answer(without(run, tmp_path, rank=3))))
    codes = {finding["code"] for result in reported for finding in result["findings"]}
    assert "worker-died" in codes


def test_a_scheduler_that_dies_ends_the_command_with_a_word(
    run: Path, tmp_path: Path, poison, own_scheduler: Cluster
) -> None:
    (tmp_path / "readers").mkdir()
    keeping = with_poison(run, tmp_path, rank=3, poison="keep", folder=str(tmp_path / "readers"))
    own_scheduler.worker()
    own_scheduler.has_workers(1)

    with pytest.raises(InputError, match="the scheduler has stopped") as refused:
        answer(keeping, own_scheduler.address, Watched(lambda: end(own_scheduler.scheduler)))

    assert refused.value.fix == "start the scheduler again, then this command"


def test_a_cluster_without_workers_is_given_up(
    run: Path, own_cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ccl_bench.engine.dask.PATIENCE_S", 1.0)

    with pytest.raises(InputError, match="has had no worker for 1 s") as refused:
        answer(run, own_cluster.address)

    assert (
        refused.value.fix
        == f"start some: dask worker {own_cluster.address.replace('dask', 'tcp')} --nthreads 1"
    )


def test_an_address_without_a_scheduler_is_refused(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="the extra `cluster` is not installed: make test")
    monkeypatch.setattr("ccl_bench.engine.dask.CONNECT_S", 1.0)

    with pytest.raises(InputError, match="no Dask scheduler answers within 1 s"):
        answer(run, "dask://127.0.0.1:1")


def test_a_worker_of_another_release_is_refused(run: Path, tmp_path: Path, own_cluster: Cluster) -> None:
    (tmp_path / "older.py").write_text("from ccl_bench.engine import dask\ndask.__version__ = '0.0.1'\n")
    own_cluster.worker("--preload", str(tmp_path / "older.py"))
    own_cluster.has_workers(1)

    with pytest.raises(UsageError, match=r"ccl-bench is \S+ here and 0\.0\.1 on the worker"):
        answer(run, own_cluster.address)


def test_a_worker_that_does_not_see_the_files_is_refused(run: Path, own_cluster: Cluster) -> None:
    if os.geteuid():
        pytest.skip("another view of the files needs root: sudo make test")
    hidden = f'mount -t tmpfs none "{run}" && exec "$@"'
    own_cluster.worker(inside=("unshare", "--mount", "sh", "-c", hidden, "sh"))
    own_cluster.has_workers(1)

    with pytest.raises(InputError, match="cannot be seen by the worker") as refused:
        answer(run, own_cluster.address)

    assert "file system" in refused.value.fix


class Network:
    """Machines on a bridge: namespaces of the network with an address each, whose cable can be pulled."""

    _numbers = itertools.count(1)

    def __init__(self) -> None:
        self.name = f"cb{os.getpid() % 100_000}"
        self.net = f"10.{64 + os.getpid() % 64}.{os.getpid() // 64 % 256}"
        self.machines: list[str] = []

    def __enter__(self) -> Network:
        _ip(f"link add {self.name} type bridge")
        _ip(f"address add {self.net}.1/24 dev {self.name}")
        _ip(f"link set {self.name} up")
        return self

    def machine(self) -> tuple[str, ...]:
        """Add a machine and return what runs a command on it."""
        number = len(self.machines) + 2
        name = f"{self.name}n{number}"
        self.machines.append(name)
        _ip(f"netns add {name}")
        _ip(f"link add {name} type veth peer name eth0 netns {name}")
        _ip(f"link set {name} master {self.name} up")
        _ip(f"-n {name} address add {self.net}.{number}/24 dev eth0")
        _ip(f"-n {name} link set eth0 up")
        _ip(f"-n {name} link set lo up")
        return ("ip", "netns", "exec", name)

    def cut_off(self, number: int) -> None:
        """Pull the cable of a machine: nothing arrives any more, and nobody notices."""
        _ip(f"link set {self.machines[number]} down")

    def __exit__(self, *_error: object) -> None:
        for name in self.machines:
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip(f"netns del {name}")
        _ip(f"link del {self.name}")


def _ip(words: str) -> None:
    subprocess.run(["ip", *words.split()], check=True, capture_output=True)


@pytest.fixture
def network():
    """Return machines on a network of their own."""
    if not shutil.which("ip"):
        pytest.skip("iproute2 is not installed: make services")
    if os.geteuid():
        pytest.skip("namespaces of the network need root: sudo make test")
    try:
        with Network() as made:
            yield made
    except subprocess.CalledProcessError as error:
        pytest.skip(f"namespaces of the network are not permitted here: {error.stderr.decode().strip()}")


def test_a_machine_cut_off_while_it_reads_is_made_up_for(
    run: Path, tmp_path: Path, poison, network: Network
) -> None:
    readers = tmp_path / "readers"
    readers.mkdir()
    keeping = with_poison(run, tmp_path, rank=3, poison="keep", folder=str(readers))
    cut: list[int] = []
    with one_cluster(tmp_path / "cluster", host=f"{network.net}.1") as cluster:
        for _ in range(2):
            cluster.worker(inside=network.machine())
        cluster.has_workers(2)
        workers = [process.pid for process in cluster.processes if process is not cluster.scheduler]

        def cut_off() -> None:
            until(lambda: poison_format.readers(readers), "a reader", cluster)
            cut.append(workers.index(poison_format.readers(readers)[0]))
            network.cut_off(cut[0])
            (readers / "go").touch()

        watched = Watched(cut_off, after=2)

        assert answer(keeping, cluster.address, watched) == answer(keeping)
        assert watched.reported == EVERY_RANK
        assert (
            f"Remove worker addr: tcp://{network.net}.{2 + cut[0]}:" in (cluster.folder / "log0").read_text()
        )
