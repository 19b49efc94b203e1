"""What a process in the sandbox tries is refused, and would work outside of it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING

import confined_attempts
import pytest
from commands import invoke
from confined_attempts import ALLOWED, CALLS, CRASH, DONE, FATAL, FILES, SIGNALLED, SIGNALS, TCP

from ccl_bench.leaderboard.publishing import confinement, recompute, worker
from ccl_bench.leaderboard.publishing.confinement import missing_protection
from ccl_bench.leaderboard.publishing.recompute import Interrupted, recompute_run
from ccl_bench.leaderboard.publishing.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

    from publishing_server import Leaderboard

    from ccl_bench.leaderboard.bundle.upload import Upload

LACKS = " ".join(missing_protection())
NO_SUCH_CALL = "refused 38"
REFUSED_FILES = {"refused 13", "refused 18", NO_SUCH_CALL}
"""Outcomes with EACCES and EXDEV of Landlock, and with ENOSYS."""
CRASHED = "killed by SIGSEGV"
KEEPS_MEMORY = (
    Path("/proc/sys/kernel/core_pattern").read_text(encoding="utf-8") == "core\n"
    and resource.getrlimit(resource.RLIMIT_CORE)[1] == resource.RLIM_INFINITY
)
LAST_CALL = 600
"""Beyond the highest number of a system call: those of Linux 6.18 end before 480."""
OF_THE_KERNEL = {335, 336}
"""uretprobe and uprobe of x86-64: no filter sees them, and they kill whoever calls them."""
needs_landlock = pytest.mark.skipif("Landlock" in LACKS, reason=LACKS)
needs_seccomp = pytest.mark.skipif("seccomp" in LACKS, reason=LACKS)

BEFORE = """
import ctypes, os, resource, signal, sys, threading
from pathlib import Path
from ccl_bench.leaderboard.publishing import confinement
run, scratch = map(Path, sys.argv[1:])
libc = ctypes.CDLL(None, use_errno=True)
"""

CONFINE = "confinement.confine({}, [*confinement.installation(), run], [scratch])\n"

AFTER = """
try:
    attempt()
except OSError as error:
    print("refused", error.errno)
else:
    print("done")
os._exit(0)
"""


def tried(tmp_path: Path, attempt: str, *, confine: str = CONFINE) -> str:
    """Run `attempt` in a confined process of its own and return whether it was done."""
    folders = [tmp_path / "run", tmp_path / "scratch"]
    for folder in folders:
        folder.mkdir()
    body = "".join(f"    {line}\n" for line in attempt.splitlines())
    code = f"{BEFORE}\ndef attempt():\n{body}\n{confine}{AFTER}"
    command = [sys.executable, "-c", code, *map(str, folders)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"{done.returncode} {done.stderr}"


ROOT, NOBODY = 0, 65534
USERS = [ROOT, NOBODY] if os.getuid() == ROOT else [os.getuid()]
NEWEST = confinement._landlock_version()
VERSIONS = {USERS[0]: [*range(NEWEST + 1)], NOBODY: [0, NEWEST]}
"""User → versions of Landlock, 0 for none: what a version refuses, it refuses every user."""
Outcomes = dict[str, dict[str, str]]


@pytest.fixture(scope="module", params=USERS)
def outcomes(request: pytest.FixtureRequest) -> Outcomes:
    """Return what came of all attempts of a user: setting -> attempt -> outcome."""
    # Not below pytest's own folder, which only its user may enter.
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.chown(folder, request.param, -1)
        folder.chmod(0o755)
        versions = map(str, VERSIONS[request.param])
        command = [sys.executable, confined_attempts.__file__, folder, str(request.param), *versions]
        made = subprocess.run(command, capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    read: Outcomes = json.loads(made.stdout)
    return read


def _unlike(outcomes: Outcomes, expected: Callable[[str, str, str], bool]) -> dict[tuple[str, str], str]:
    """Return the outcomes, by setting and attempt, that are not as expected."""
    return {
        (setting, attempt): outcome
        for setting, made in outcomes.items()
        for attempt, outcome in made.items()
        if not expected(setting, attempt, outcome)
    }


def test_outside_the_sandbox_each_attempt_succeeds(outcomes: Outcomes) -> None:
    """Of the calls it is enough that they are answered: a machine may forbid some of them to everybody."""

    def is_as_expected(_: str, attempt: str, outcome: str) -> bool:
        if attempt in CALLS:
            return outcome == DONE or (outcome.startswith("refused ") and outcome != NO_SUCH_CALL)
        if attempt in CRASH:
            return outcome == (f"{CRASHED}, its memory kept" if KEEPS_MEMORY else CRASHED)
        return outcome == (SIGNALLED if attempt in SIGNALS else DONE)

    assert _unlike({"outside": outcomes["outside"]}, is_as_expected) == {}


@needs_seccomp
@needs_landlock
def test_inside_the_sandbox_each_is_refused_with_every_version_of_landlock(
    outcomes: Outcomes, request: pytest.FixtureRequest
) -> None:
    def is_as_expected(_: str, attempt: str, outcome: str) -> bool:
        if attempt in ALLOWED:
            return outcome == DONE
        if attempt in FILES:
            return outcome in REFUSED_FILES
        if attempt in CRASH:
            return outcome == CRASHED
        return outcome == NO_SUCH_CALL or (attempt in FATAL and outcome == "killed by SIGSYS")

    inside = {setting: made for setting, made in outcomes.items() if re.fullmatch(r"Landlock \d", setting)}
    versions = VERSIONS[request.node.callspec.params["outcomes"]]
    assert inside.keys() == {f"Landlock {version}" for version in versions}
    assert inside["Landlock 0"].keys() == {*SIGNALS, *TCP, *CALLS, *CRASH, *ALLOWED}
    assert all(inside[setting].keys() == {*FILES, *SIGNALS, *ALLOWED} for setting in [*inside][1:])
    assert _unlike(inside, is_as_expected) == {}


@pytest.mark.skipif(confinement._landlock_version() < 6, reason="Landlock of Linux 6.12 or later")
def test_landlock_alone_refuses_files_the_network_and_signals(outcomes: Outcomes) -> None:
    def is_as_expected(_: str, attempt: str, outcome: str) -> bool:
        if attempt in ALLOWED:
            return outcome == DONE
        return outcome != SIGNALLED if attempt in SIGNALS else outcome in REFUSED_FILES

    assert _unlike({"alone": outcomes["Landlock alone"]}, is_as_expected) == {}


def test_whatever_the_process_leaves_is_removed(outcomes: Outcomes) -> None:
    assert outcomes["left"] == {}


@needs_seccomp
def test_no_system_call_beyond_the_list_is_answered(tmp_path: Path) -> None:
    """The arguments are no valid ones: a call of the list that is limited to some is refused too."""
    listed = tomllib.loads(
        (Path(confinement.__file__).parent / "system_calls.toml").read_text(encoding="utf-8")
    )
    allowed = {name for names in listed["calls"].values() for name in names}
    library = confinement._seccomp()
    numbers = {library.seccomp_syscall_resolve_name(name.encode()) for name in allowed} | OF_THE_KERNEL
    attempt = f"""
answered = []
for number in set(range({LAST_CALL})) - {numbers}:
    if libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6) != -1 or ctypes.get_errno() != 38:
        answered.append(number)
print(answered)
"""
    assert tried(tmp_path, attempt) == "[]\ndone"


def test_packages_work_in_the_sandbox(tmp_path: Path) -> None:
    attempt = "import sqlite3, polars; polars.DataFrame({'a': [1, 2]}).sum()"
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
    states: list[dict[str, str]] = []

    def is_free() -> bool:
        for children in Path("/proc/self/task").glob("*/children"):
            for child in children.read_text().split():
                with contextlib.suppress(FileNotFoundError):
                    lines = Path(f"/proc/{child}/status").read_text().splitlines()
                    state = dict(line.split(":\t", 1) for line in lines)
                    if (state["Seccomp"], state["NoNewPrivs"]) == ("2", "1"):
                        states.append(state)
        return not states

    (tmp_path / "scratch").mkdir()
    with pytest.raises(Interrupted):
        recompute_run(parcel.bundle, recorded, tmp_path / "scratch", Settings(), is_free)
    capabilities = {int(states[0][name], 16) for name in ("CapInh", "CapPrm", "CapEff")}
    assert capabilities <= {0, confinement._CAP_DAC_READ_SEARCH}
    assert states[0]["Umask"] == "0077"


@needs_landlock
def test_the_oldest_landlock_leaves_what_measuring_needs(
    parcel: Upload, recorded: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = """
import sys
from pathlib import Path
from ccl_bench.leaderboard.publishing import confinement, sandbox
confinement._landlock_version = lambda: 1
sandbox.main(*map(Path, sys.argv[1:]))
"""
    monkeypatch.setattr(recompute, "_SANDBOX", ("-c", older))
    (tmp_path / "scratch").mkdir()
    answer = recompute_run(parcel.bundle, recorded, tmp_path / "scratch", Settings(), lambda: True)
    assert recompute.differences(parcel.bundle, answer) == []


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
