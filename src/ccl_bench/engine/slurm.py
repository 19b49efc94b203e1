"""Reduce traces in Slurm jobs: the workers of a Dask cluster whose scheduler is this process."""

from __future__ import annotations

import contextlib
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ccl_bench import storage
from ccl_bench.base.errors import InputError, UsageError
from ccl_bench.base.extras import require
from ccl_bench.base.registry import did_you_mean
from ccl_bench.engine.dask import read_on_cluster, silence_dask

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from distributed import Client

    from ccl_bench.engine.dask import WithoutWorkers
    from ccl_bench.engine.read_trace import Engine, Task, TraceStream

DEFAULTS = {"cores": "1", "memory": "4GB", "walltime": "00:30:00"}
"""What a job gets where neither the name of the engine nor Dask's configuration (`jobqueue.slurm`) says."""

MOST_JOBS = 8
"""Jobs that are queued where `--jobs` does not say how many."""

_OWN = ("queue", "account", "walltime", "memory", "cores", "processes", "interface")
_DIRECTIVES = ("qos", "constraint", "reservation", "partition", "nodelist", "exclude")
OPTIONS = (*_OWN, *_DIRECTIVES)
"""Options of a job, as in `slurm:queue=debug,cores=4`."""

_SCHEDULER = {"dashboard": False, "dashboard_address": "127.0.0.1:0"}
"""No page about the scheduler; what remains of it is for this machine, at a port that is free."""

_ROLES = ("client", "scheduler", "worker")
_LOOK_S = 10.0
_LAST_LINES = 3


def parse_options(text: str) -> dict[str, str]:
    """Return the options in `queue=debug,cores=4`; UsageError for one that is unknown or has no value."""
    options = {}
    for part in filter(None, text.split(",")):
        name, _, value = part.partition("=")
        if name not in OPTIONS:
            fix = did_you_mean(name, OPTIONS) or f"one of: {', '.join(OPTIONS)}"
            raise UsageError(f"unknown option of Slurm {name!r}", fix=fix)
        if not value or (name in {"cores", "processes"} and not value.isdecimal()):
            raise UsageError(f"{value!r} is not a value of Slurm's {name}", fix=f"write it as in {name}=4")
        options[name] = value
    return options


@contextlib.contextmanager
def start_jobs(text: str) -> Iterator[Engine]:
    """Give the engine that queues Slurm jobs at the first trace and cancels them at the end."""
    options = parse_options(text)
    with contextlib.ExitStack() as stack:
        opened: list[Any] = []

        def engine(tasks: Sequence[Task], jobs: int | None) -> TraceStream:
            if not opened:
                opened.append(
                    stack.enter_context(_cluster_of_jobs(options, jobs or min(MOST_JOBS, len(tasks))))
                )
            client, without_workers = opened[0]
            return read_on_cluster(client, tasks, without_workers)

        yield engine


@contextlib.contextmanager
def _cluster_of_jobs(options: Mapping[str, str], count: int) -> Iterator[tuple[Client, WithoutWorkers]]:
    """Give a client of a cluster of `count` jobs, and the function that checks that they still live."""
    distributed = require("distributed", "cluster")
    handler = signal.getsignal(signal.SIGINT)
    jobqueue = require("dask_jobqueue", "cluster")
    if signal.getsignal(signal.SIGINT) is not handler:  # its own ends the program with status 0
        signal.signal(signal.SIGINT, handler)
    if not shutil.which("sbatch"):
        fix = "run the command on a node that can submit jobs"
        raise UsageError("Slurm is not available: sbatch is not on the PATH", fix=fix)
    place = storage.private_folder(storage.cache_directory())  # jobs see it too
    with (
        silence_dask(),
        _end_on_signals(),
        # Only this user can read the keys and logs in it.
        tempfile.TemporaryDirectory(prefix="slurm-", dir=place, ignore_cleanup_errors=True) as name,
    ):
        folder = Path(name)
        security = _security(folder)
        with jobqueue.SLURMCluster(**_settings(options), security=security, log_directory=folder) as cluster:
            script = folder / "job.sh"
            script.write_text(cluster.job_script())
            tested = _run_slurm("sbatch", "--test-only", str(script))
            if tested.returncode:
                errors = tested.stderr.strip().splitlines() or ["it gives no reason"]
                reason = errors[-1].removeprefix("sbatch: error: ")
                fix = "give the option that it requires, as in --engine slurm:queue=debug,account=m1234"
                raise InputError(f"Slurm refuses the job: {reason}", fix=fix)
            cluster.scale(jobs=count)
            with distributed.Client(cluster, security=security, set_as_default=False) as client:
                yield client, _Watch(cluster, folder).look


def _settings(options: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings for dask-jobqueue; what is left out is in its own configuration."""
    config = require("dask", "cluster").config

    def value(name: str) -> str:
        return options.get(name) or str(config.get(f"jobqueue.slurm.{name}", None) or DEFAULTS[name])

    cores = int(value("cores"))
    directives = [f"--{name}={options[name]}" for name in _DIRECTIVES if name in options]
    more = {name: options[name] for name in ("queue", "account", "interface") if name in options}
    return {
        "cores": cores,
        "processes": int(options.get("processes", cores)),
        "memory": value("memory"),
        "walltime": value("walltime"),
        "job_extra_directives": [*config.get("jobqueue.slurm.job-extra-directives", []), *directives],
        "scheduler_options": _SCHEDULER | config.get("jobqueue.slurm.scheduler-options", {}),
        **more,
    }


def _security(folder: Path) -> Any:
    """Return encryption with keys of this run: without, all on the network could run code in the jobs."""
    security = require("distributed", "cluster").Security.temporary()
    names = ("tls_ca_file", *(f"tls_{role}_{kind}" for role in _ROLES for kind in ("cert", "key")))
    for name in names:
        file = folder / name
        with storage.open_private(file, "x") as stream:
            stream.write(getattr(security, name))
    return type(security)(require_encryption=True, **{name: str(folder / name) for name in names})


@contextlib.contextmanager
def _end_on_signals() -> Iterator[None]:
    """Let signals that end this process, such as those of a batch system, cancel the jobs first."""

    def end(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run_slurm(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 (Slurm's own)


class _Watch:
    """Looks whether the jobs of a cluster still wait or run."""

    def __init__(self, cluster: Any, folder: Path) -> None:
        self._cluster = cluster
        self._folder = folder
        self._last_look = time.monotonic()

    def look(self, waited_s: float) -> None:
        """Raise InputError if there has been no worker for a while, and no job that could become one."""
        now = time.monotonic()
        if waited_s < _LOOK_S or now - self._last_look < _LOOK_S:
            return
        self._last_look = now
        ids = ",".join(str(job.job_id) for job in self._cluster.workers.values() if job.job_id)
        if not _run_slurm("squeue", "--noheader", f"--jobs={ids}").stdout.strip():
            logs = sorted(self._folder.glob("*.err"), key=lambda path: path.stat().st_mtime)
            errors = [line for log in logs[-1:] for line in log.read_text(errors="replace").splitlines()]
            last_words = " / ".join(list(filter(None, errors))[-_LAST_LINES:])
            fix = "check that a job can run this Python and can read the folder of the cache"
            raise InputError(f"the Slurm jobs have ended{last_words and f': {last_words}'}", fix=fix)
