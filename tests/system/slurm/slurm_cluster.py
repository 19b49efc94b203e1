"""A real Slurm of two nodes on this machine, described as Perlmutter's, with files in place of GPUs."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "unshare")
NODES = ("n1", "n2")
HOSTS = Path("/etc/hosts")
HOSTS_LINE = f"127.0.0.1 {' '.join(NODES)} # a test's Slurm\n"
LOCK = Path(tempfile.gettempdir()) / "ccl-bench-slurm.lock"
"""Held while a Slurm is up: node names stand in /etc/hosts, and there is one of that on a machine."""

ENDS = {"BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY"}
ENDS |= {"PREEMPTED", "REVOKED", "TIMEOUT"}
"""States in which a job has ended [squeue(1), JOB STATE CODES]; all others pass, such as SIGNALING."""

CONFIGURATION = """
ClusterName=test
SlurmctldHost=localhost
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
UnkillableStepTimeout=60
GresTypes=gpu
FirstJobId={first_job}
NodeName=n1 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[1]} {node}
NodeName=n2 NodeHostname=localhost NodeAddr=127.0.0.1 Port={ports[2]} {node}
PartitionName=gpu Nodes=n[1-2] Default=YES MaxTime=60
"""
NODE = (
    "Sockets=1 CoresPerSocket=64 ThreadsPerCore=2 RealMemory=256000 Gres=gpu:a100:4 "
    "Feature=gpu,a100,hbm40g,hbm80g"
)
GPUS = "NodeName=n[1-2] Name=gpu Type=a100 File=/dev/null,/dev/zero,/dev/full,/dev/random\n"


class Cluster:
    """A Slurm that is up; commands are run with its configuration."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
        self.daemons: list[subprocess.Popen[bytes]] = []

    def run(self, *command: str, **options: object) -> subprocess.CompletedProcess[str]:
        """Return what a command came to."""
        settings = {"env": self.environment, "check": False, "timeout": 120, **options}
        return subprocess.run(command, capture_output=True, text=True, **settings)

    def state(self, job: int) -> str:
        """Return the state of a job, such as RUNNING or TIMEOUT; empty once Slurm has forgotten it."""
        reported = self.run("scontrol", "--oneliner", "show", "job", str(job)).stdout
        return next((word[9:] for word in reported.split() if word.startswith("JobState=")), "")

    def ended(self, job: int, *, within_s: float = 420) -> str:
        """Wait for a job, and return the state in which it ended."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            state = self.state(job)
            if state in ENDS:
                return state
            time.sleep(0.3)
        raise TimeoutError(f"job {job} has not ended after {within_s} s: {self.state(job)}")

    def start(self) -> None:
        """Start the daemons, and wait until both nodes are idle."""
        for name in ("munge", "state", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir(parents=True)
        # The scripts make the port of a training from the job's number: those of two Slurms in a row differ.
        first_job = 1 + os.getpid() % 10_000
        values = {"folder": self.folder, "ports": _free_ports(3), "node": NODE, "first_job": first_job}
        (self.folder / "slurm.conf").write_text(CONFIGURATION.format(**values))
        (self.folder / "gres.conf").write_text(GPUS)
        munge = self.folder / "munge"
        (munge / "key").write_bytes(os.urandom(128))
        (munge / "key").chmod(0o400)
        files = {
            "key-file": "key",
            "socket": "socket",
            "pid-file": "pid",
            "log-file": "log",
            "seed-file": "seed",
        }
        named = [f"--{option}={munge / name}" for option, name in files.items()]
        self._daemon("munged", "--foreground", "--force", *named)
        self._until(lambda: (munge / "socket").exists(), "munged")
        self._daemon("slurmctld", "-D", "-i")
        for node in NODES:
            # Tasks see the name of their node.
            self._daemon("unshare", "--uts", "sh", "-c", f"hostname {node}; exec slurmd -D -N {node}")
        self._until(lambda: self.run("sinfo", "-h", "-N", "-o", "%t").stdout.split() == ["idle"] * 2, "nodes")

    def stop(self) -> None:
        """Cancel all jobs, end the daemons and whatever they left."""
        with contextlib.suppress(TimeoutError, subprocess.TimeoutExpired):
            self.run("scancel", "--signal=KILL", "--full", "--user=root", timeout=20)
            self.run("scancel", "--user=root", timeout=20)
            self._until(lambda: not self.run("squeue", "-h", timeout=20).stdout.strip(), "jobs to end")
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(timeout=10)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for pid in processes_with(f"SLURM_CONF={self.environment['SLURM_CONF']}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _daemon(self, *command: str) -> None:
        log = (self.folder / f"daemon{len(self.daemons)}.log").open("wb")
        with log:
            self.daemons.append(
                subprocess.Popen(
                    command, env=self.environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL
                )
            )

    def _until(self, holds: object, what: str, within_s: float = 300) -> None:
        deadline = time.monotonic() + within_s
        while not holds():
            ended = [daemon.args for daemon in self.daemons if daemon.poll() is not None]
            if ended or time.monotonic() > deadline:
                logs = "".join(path.read_text()[-1500:] for path in sorted(self.folder.glob("*.log")))
                raise TimeoutError(f"no {what} within {within_s} s; ended: {ended}\n{logs}")
            time.sleep(0.1)


def processes_with(variable: str) -> list[int]:
    """Return the processes, other than this one, whose environment holds `NAME=VALUE`."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if variable.encode() in path.read_bytes().split(b"\0") and int(path.parent.name) != os.getpid():
                found.append(int(path.parent.name))
    return found


@contextlib.contextmanager
def cluster(folder: Path) -> Iterator[Cluster]:
    """Bring Slurm up, one on the machine at a time, and take it down whatever happens."""
    _skip_without()
    with LOCK.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # Bind mounts forbid replacing the file, so it is written in place.
        before = HOSTS.read_text()
        HOSTS.write_text(before.replace(HOSTS_LINE, "").rstrip("\n") + "\n" + HOSTS_LINE)
        up = Cluster(folder)
        try:
            up.start()
            yield up
        finally:
            up.stop()
            HOSTS.write_text(HOSTS.read_text().replace(HOSTS_LINE, ""))


def _skip_without() -> None:
    missing = [
        program for program in PROGRAMS if not shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin")
    ]
    if missing:
        pytest.skip(f"Slurm is not installed ({', '.join(missing)} missing): make services")
    if os.geteuid():
        pytest.skip("a Slurm of two nodes needs root: sudo make test")
    if subprocess.run(["unshare", "--uts", "true"], capture_output=True, check=False).returncode:
        pytest.skip(
            "unshare --uts is not permitted here, so a Slurm of two nodes cannot run: run outside a container"
        )


def _free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
