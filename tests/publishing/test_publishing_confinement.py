"""What a process in the sandbox tries is refused, and would work outside of it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from commands import invoke

from ccl_bench.leaderboard.publishing import confinement, worker
from ccl_bench.leaderboard.publishing.confinement import missing_protection
from ccl_bench.leaderboard.publishing.recompute import Interrupted, recompute_run
from ccl_bench.leaderboard.publishing.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from publishing_server import Leaderboard

    from ccl_bench.leaderboard.bundle.upload import Upload

LACKS = " ".join(missing_protection())
needs_landlock = pytest.mark.skipif("Landlock" in LACKS, reason=LACKS)
needs_seccomp = pytest.mark.skipif("seccomp" in LACKS, reason=LACKS)

BEFORE = """
import ctypes, os, resource, signal, socket, subprocess, sys, threading
from pathlib import Path
from ccl_bench.leaderboard.publishing import confinement
outside, run, scratch, port = Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4])
stream, datagrams = socket.socket(), socket.socket(type=socket.SOCK_DGRAM)
libc = ctypes.CDLL(None, use_errno=True)

def checked(status):
    if status < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
"""

CONFINE = "confinement.confine({}, [*confinement.installation(), run], [scratch])\n"

WITHOUT_SECCOMP = "confinement._seccomp = lambda: None\n"

AFTER = """
try:
    attempt()
except OSError as error:
    print("refused", error.errno)
else:
    print("done")
os._exit(0)
"""


def tried(tmp_path: Path, attempt: str, *, confine: str = CONFINE, setting: str = "") -> str:
    """Run `attempt` in a process of its own and return whether it was done."""
    for name in ("outside", "run", "scratch"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("content", encoding="utf-8")
    (tmp_path / "scratch" / "link").symlink_to(tmp_path / "outside")
    body = "".join(f"    {line}\n" for line in attempt.splitlines())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        given = [*(tmp_path / name for name in ("outside", "run", "scratch")), listener.getsockname()[1]]
        done = subprocess.run(
            [sys.executable, "-c", f"{BEFORE}{setting}\ndef attempt():\n{body}\n{confine}{AFTER}"]
            + [str(each) for each in given],
            capture_output=True,
            text=True,
            check=False,
        )
    return done.stdout.strip() or f"{done.returncode} {done.stderr}"


FILES = {
    "reads a file outside": "(outside / 'file').read_bytes()",
    "lists a folder outside": "os.listdir(outside)",
    "reads the accounts of the machine": "Path('/etc/passwd').read_bytes()",
    "reads the environment of the worker": "Path(f'/proc/{os.getppid()}/environ').read_bytes()",
    "writes outside": "(outside / 'new').write_text('')",
    "overwrites a file of the run": "(run / 'file').write_text('')",
    "adds a file to the run": "(run / 'new').write_text('')",
    "removes a file of the run": "(run / 'file').unlink()",
    "moves a file out": "(scratch / 'file').rename(outside / 'new')",
    "reads through a link": "(scratch / 'link' / 'file').read_bytes()",
}
CALLS = {
    "opens a socket": "socket.socket()",
    "opens a local socket": "socket.socket(socket.AF_UNIX)",
    "connects a socket that it has": "stream.connect(('127.0.0.1', port))",
    "binds a socket that it has": "stream.bind(('127.0.0.1', 0))",
    "sends a message by a socket that it has": "datagrams.sendto(b'', ('127.0.0.1', port))",
    "forks": "os.fork() or os._exit(0)",
    "starts a program": "subprocess.run([sys.executable, '--version'], capture_output=True)",
    "becomes a program": "os.execv('/bin/echo', ['echo', 'done'])",
    "signals the worker": "os.kill(os.getppid(), 0)",
    "signals a thread of the worker": "checked(libc.tgkill(os.getppid(), os.getppid(), 0))",
    "is traced": "checked(libc.ptrace(0, 0, 0, 0))",
    "reads the memory of the worker": "checked(libc.process_vm_readv(os.getppid(), 0, 0, 0, 0, 0))",
    "asks for a ring of calls": "checked(libc.syscall(425, 8, ctypes.create_string_buffer(120)))",
    "makes a namespace": "checked(libc.unshare(0x10000000))",
    "changes a limit": "resource.setrlimit(resource.RLIMIT_CORE, (0, 0))",
    "changes a limit of the worker": "resource.prlimit(os.getppid(), resource.RLIMIT_CORE)",
    "makes a link": "os.symlink(outside, scratch / 'new')",
    "changes an owner": "os.chown(scratch / 'file', os.getuid(), os.getgid())",
}
TCP = {
    "connects": "socket.socket().connect(('127.0.0.1', port))",
    "binds": "socket.socket().bind(('127.0.0.1', 0))",
    "signals the worker": "os.kill(os.getppid(), 0)",
}


@needs_landlock
@pytest.mark.parametrize("attempt", FILES.values(), ids=FILES)
def test_no_file_outside_is_reached(attempt: str, tmp_path: Path) -> None:
    refused = tried(tmp_path, attempt, setting=WITHOUT_SECCOMP)
    assert refused in {"refused 13", "refused 18"}


@needs_seccomp
@pytest.mark.parametrize("attempt", CALLS.values(), ids=CALLS)
def test_no_call_that_measuring_does_not_need_is_answered(attempt: str, tmp_path: Path) -> None:
    assert tried(tmp_path, attempt) == "refused 38"


@pytest.mark.skipif(confinement._landlock_version() < 6, reason="Landlock of Linux 6.12 or later")
@pytest.mark.parametrize("attempt", TCP.values(), ids=TCP)
def test_landlock_alone_refuses_the_network_and_signals(attempt: str, tmp_path: Path) -> None:
    assert tried(tmp_path, attempt, setting=WITHOUT_SECCOMP) in {"refused 13", "refused 1"}


@pytest.mark.parametrize("attempt", [*FILES.values(), *TCP.values()])
def test_each_attempt_works_where_nothing_is_given_up(attempt: str, tmp_path: Path) -> None:
    assert tried(tmp_path, attempt, confine="") == "done"


@pytest.mark.parametrize("attempt", CALLS.values(), ids=CALLS)
def test_each_call_is_answered_where_nothing_is_given_up(attempt: str, tmp_path: Path) -> None:
    """With yes or no: a machine may forbid some of them to everybody."""
    assert tried(tmp_path, attempt, confine="") != "refused 38"


ALLOWED = {
    "the run": "(run / 'file').read_bytes(); os.listdir(run)",
    "its own folder": "(scratch / 'file').rename(scratch / 'new'); (scratch / 'file').write_text('')",
    "its packages": "import sqlite3, polars; polars.DataFrame({'a': [1, 2]}).sum()",
    "threads": "t = threading.Thread(target=print, args=('',)); t.start(); t.join()",
    "time and chance": "import time; time.sleep(0.01); os.urandom(8)",
}


@pytest.mark.parametrize("attempt", ALLOWED.values(), ids=ALLOWED)
def test_what_measuring_needs_is_left(attempt: str, tmp_path: Path) -> None:
    assert tried(tmp_path, attempt) == "done"


LIMITS = {
    "files": ("NOFILE: 64", "held = [open('/dev/null') for _ in range(99)]", "refused 24"),
    "size": (
        "FSIZE: 1000",
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); (scratch / 'new').write_bytes(bytes(9999))",
        "refused 27",
    ),
}


@pytest.mark.parametrize(("limit", "attempt", "end"), LIMITS.values(), ids=LIMITS)
def test_a_limit_holds(limit: str, attempt: str, end: str, tmp_path: Path) -> None:
    given = CONFINE.replace("{}", f"{{resource.RLIMIT_{limit}}}")
    assert tried(tmp_path, attempt, confine=given) == end


def test_a_limit_that_is_lower_already_stays(tmp_path: Path) -> None:
    lower = "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))\n"
    given = lower + CONFINE.replace("{}", "{resource.RLIMIT_NOFILE: 128}")
    assert tried(tmp_path, LIMITS["files"][1], confine=given) == "refused 24"


def test_a_process_with_threads_is_not_taken_for_confined(tmp_path: Path) -> None:
    started = "threading.Thread(target=signal.pause, daemon=True).start()\n"
    said = tried(tmp_path, "pass", confine=started + CONFINE)
    assert "OSError: a process must be confined before it starts threads" in said


ORPHAN = """
import os, time
from ccl_bench.leaderboard.publishing import confinement
ready, tell = os.pipe()
if os.fork():
    os.read(ready, 1)
    os._exit(0)
confinement.confine({}, confinement.installation(), [])
os.write(tell, b"x")
time.sleep(20)
print("outlived")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux kills a process with its parent")
def test_it_ends_with_its_parent() -> None:
    """What it would print comes through a pipe that only its end closes."""
    done = subprocess.run([sys.executable, "-c", ORPHAN], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@needs_seccomp
def test_a_process_that_measures_is_confined(parcel: Upload, recorded: Path, tmp_path: Path) -> None:
    def is_free() -> bool:
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                with contextlib.suppress(FileNotFoundError):
                    state = Path(f"/proc/{child}/status").read_text()
                    if "Seccomp:\t2" in state and "NoNewPrivs:\t1" in state:
                        return False
        return True

    (tmp_path / "scratch").mkdir()
    with pytest.raises(Interrupted):
        recompute_run(parcel.bundle, recorded, tmp_path / "scratch", Settings(), is_free)


@needs_landlock
def test_a_link_of_a_run_leads_nowhere(parcel: Upload, recorded: Path, tmp_path: Path) -> None:
    """Read as the run of somebody trusted, the trace behind the link would be measured."""
    (tmp_path / "scratch").mkdir()
    (tmp_path / "run").mkdir()
    for trace in recorded.glob("*.json.gz"):
        (tmp_path / "run" / trace.name).symlink_to(trace)
    answer = recompute_run(parcel.bundle, tmp_path / "run", tmp_path / "scratch", Settings(), lambda: True)
    assert [result.metric for result in answer.results if result.value is not None] == []


@pytest.mark.parametrize("demanded", ["available", "required"])
def test_what_the_sandbox_lacks_is_logged_and_may_not_be_lacking(
    demanded: str, new: Callable[..., Leaderboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "missing_protection", lambda: ["seccomp: gone", "Landlock: off"])
    leaderboard = new(f'sandbox = "{demanded}"')
    done = leaderboard.work()
    (line,) = (line for line in leaderboard.log if line["event"] == "sandbox")
    assert line["missing"] == "seccomp: gone; Landlock: off"
    assert (done.returncode == 0) == (demanded == "available"), done.stderr
    assert ("the sandbox lacks seccomp: gone; Landlock: off" in done.stderr) == (demanded == "required")


def test_a_server_with_workers_does_not_start_without_the_sandbox_it_demands(
    new: Callable[..., Leaderboard], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "missing_protection", lambda: ["seccomp: gone"])
    leaderboard = new('sandbox = "required"')
    nowhere = ["--host", "no-such-host.invalid"]
    done = invoke(["ccl-bench", "serve", str(leaderboard.data), *nowhere])
    assert "the sandbox lacks seccomp: gone" in done.stderr
    done = invoke(["ccl-bench", "serve", str(leaderboard.data), *nowhere, "--workers", "0"])
    assert "sandbox" not in done.stderr


def test_a_machine_that_has_everything_says_so(new: Callable[..., Leaderboard]) -> None:
    leaderboard = new()
    assert leaderboard.work().returncode == 0
    (line,) = (line for line in leaderboard.log if line["event"] == "sandbox")
    assert line["missing"] == (LACKS or "nothing")
