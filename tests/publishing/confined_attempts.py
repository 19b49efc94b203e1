"""Attempts to leave the sandbox, each in a process of its own that one process starts and watches.

`python confined_attempts.py FOLDER USER VERSION...` makes all of them outside the sandbox, and inside it with
these versions of Landlock, and prints what came of them as JSON: setting -> attempt -> outcome. The processes belong
to the user of that number. FOLDER must be theirs, and everybody must be able to reach it; at the end it is
emptied as a worker does it, and what is left is printed too.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import mmap
import os
import platform
import resource
import signal
import socket
import subprocess
import sys
import termios
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ccl_bench.leaderboard.publishing import confinement
from ccl_bench.storage.files import remove_folder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

SLOWEST_S = 20
"""An attempt that takes longer waits for something, and is ended."""
DONE, SIGNALLED = "done", "signalled the worker"

_LIBC = ctypes.CDLL(None, use_errno=True)


@dataclass(frozen=True, slots=True)
class Place:
    """What a process finds: folders, a port where somebody listens, and descriptors that it inherited."""

    outside: Path
    run: Path
    scratch: Path
    port: int
    stream: socket.socket
    datagrams: socket.socket
    terminal: int
    scratch_folder: int


def _call(name: str, *values: object) -> int:
    """Call a function of the C library that returns a negative number for an error."""
    status: int = getattr(_LIBC, name)(*values)
    if status < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return status


def _ask(number: int, *values: object) -> int:
    """Make a system call by its number, the same on every processor."""
    return _call("syscall", ctypes.c_long(number), *values)


def _owned(descriptor: int, owner: Callable[[int], object]) -> None:
    """Give a descriptor to an owner, who is to get SIGUSR1 for what happens to it."""
    owner(descriptor)
    fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGUSR1)


def _by_process(descriptor: int) -> None:
    fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getppid())


def _by_thread(descriptor: int) -> None:
    """F_SETOWN_EX with F_OWNER_TID."""
    fcntl.fcntl(descriptor, 15, (0).to_bytes(4, "little") + os.getppid().to_bytes(4, "little"))


def _write_to_owned_pipe(owner: Callable[[int], object]) -> None:
    reader, writer = os.pipe()
    _owned(reader, owner)
    fcntl.fcntl(reader, fcntl.F_SETFL, os.O_ASYNC)
    os.write(writer, b"x")


def _send_to_owned_socket(at: Place) -> None:
    """FIOSETOWN and FIOASYNC; the signal is SIGIO."""
    fcntl.ioctl(at.datagrams, 0x8901, os.getppid().to_bytes(4, "little"))
    fcntl.ioctl(at.datagrams, termios.FIOASYNC, (1).to_bytes(4, "little"))
    at.datagrams.bind(("127.0.0.1", 0))
    at.datagrams.sendto(b"x", at.datagrams.getsockname())


def _change_watched_folder(at: Place) -> None:
    _owned(at.scratch_folder, _by_process)
    fcntl.fcntl(at.scratch_folder, fcntl.F_NOTIFY, fcntl.DN_CREATE)
    (at.scratch / "new").write_text("")


def _break_lease(at: Place) -> None:
    """A lease on a file delays who opens it, and tells its owner by a signal."""
    leased = os.open(at.scratch / "file", os.O_RDONLY)
    fcntl.fcntl(leased, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    _owned(leased, _by_process)
    os.open(at.scratch / "file", os.O_RDONLY | os.O_NONBLOCK)


def _thread_of(flags: int) -> None:
    """Start a thread that waits for ever, with flags of clone(2)."""
    stack = ctypes.create_string_buffer(1 << 16)
    top = ctypes.c_void_p((ctypes.addressof(stack) + len(stack)) & ~15)
    _call("clone", ctypes.cast(_LIBC.pause, ctypes.c_void_p), top, flags, None)
    time.sleep(0.01)


_VM, _FS, _FILES, _SIGHAND, _THREAD, _NEWNS, _SYSVSEM = 0x100, 0x200, 0x400, 0x800, 0x10000, 0x20000, 0x40000
"""Flags of clone(2)."""


def _run_machine_code(code: bytes) -> int:
    memory = mmap.mmap(-1, mmap.PAGESIZE, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    memory.write(code)
    return ctypes.CFUNCTYPE(ctypes.c_int)(ctypes.addressof(ctypes.c_char.from_buffer(memory)))()


def _fill_unreadable(folder: Path) -> None:
    folder.mkdir(0o300)
    (folder / "file").write_text("hidden")


Attempts = dict[str, "Callable[[Place], object]"]

FILES: Attempts = {
    "reads a file outside": lambda at: (at.outside / "file").read_bytes(),
    "lists a folder outside": lambda at: os.scandir(at.outside),
    "reads the accounts of the machine": lambda _: Path("/etc/passwd").read_bytes(),
    "reads the environment of the worker": lambda _: Path(f"/proc/{os.getppid()}/environ").read_bytes(),
    "lists the processes": lambda _: os.scandir("/proc"),
    "reads its own memory as a file": lambda _: os.close(os.open("/proc/self/mem", os.O_RDWR)),
    "writes outside": lambda at: (at.outside / "new").write_text(""),
    "writes a nameless file outside": lambda at: os.open(at.outside, os.O_TMPFILE | os.O_WRONLY),
    "overwrites a file of the run": lambda at: (at.run / "file").write_text(""),
    "empties a file of the run": lambda at: os.open(at.run / "file", os.O_RDONLY | os.O_TRUNC),
    "empties a file outside": lambda at: os.open(at.outside / "file", os.O_RDONLY | os.O_TRUNC),
    "empties a file outside, neither reading nor writing": lambda at: os.open(
        at.outside / "file", os.O_ACCMODE | os.O_TRUNC
    ),
    "empties a file outside by its name": lambda at: os.truncate(at.outside / "file", 0),
    "adds a file to the run": lambda at: (at.run / "new").write_text(""),
    "removes a file of the run": lambda at: (at.run / "file").unlink(),
    "moves a file out": lambda at: (at.scratch / "file").rename(at.outside / "new"),
    "reads through a link": lambda at: (at.scratch / "link" / "file").read_bytes(),
}
"""Files that a process of the same user may change outside the sandbox."""

SIGNALS: Attempts = {
    "signals the worker": lambda _: os.kill(os.getppid(), signal.SIGUSR1),
    "signals a thread of the worker": lambda _: _call("tgkill", os.getppid(), os.getppid(), signal.SIGUSR1),
    "signals the worker by a pipe": lambda _: _write_to_owned_pipe(_by_process),
    "signals a thread of the worker by a pipe": lambda _: _write_to_owned_pipe(_by_thread),
    "signals the worker by a socket": _send_to_owned_socket,
    "signals the worker by a watched folder": _change_watched_folder,
    "signals the worker by a lease": _break_lease,
}
"""All of them arrive outside the sandbox."""

TCP: Attempts = {
    "connects": lambda at: at.stream.connect(("127.0.0.1", at.port)),
    "binds": lambda at: at.stream.bind(("127.0.0.1", 0)),
}
"""What Landlock refuses too since version 4."""

CALLS: Attempts = {
    "opens a socket": lambda _: socket.socket(),
    "opens a local socket": lambda _: socket.socket(socket.AF_UNIX),
    "opens two sockets": lambda _: socket.socketpair(),
    "sends a message by a socket that it has": lambda at: at.datagrams.sendto(b"", ("127.0.0.1", at.port)),
    "forks": lambda _: os.fork() or os._exit(0),
    "starts a program": lambda _: subprocess.run(["/bin/true"], check=True),
    "becomes a program": lambda _: os.execv("/bin/true", ["true"]),
    "asks whether the worker lives": lambda _: os.kill(os.getppid(), 0),
    "holds the worker": lambda _: os.pidfd_open(os.getppid()),
    "queues a signal": lambda _: _call("sigqueue", os.getppid(), 0, None),
    "is traced": lambda _: _call("ptrace", 0, 0, 0, 0),
    "reads the memory of the worker": lambda _: _call("process_vm_readv", os.getppid(), 0, 0, 0, 0, 0),
    "compares itself with the worker": lambda _: _ask(_KCMP, os.getpid(), os.getpid(), 1, 0, 0),
    "slows the worker down": lambda _: os.setpriority(os.PRIO_PROCESS, os.getppid(), 5),
    "moves the worker to a processor": lambda _: os.sched_setaffinity(os.getppid(), os.sched_getaffinity(0)),
    "sees where the worker runs": lambda _: os.sched_getaffinity(os.getppid()),
    "reads the clock of the worker": lambda _: time.clock_gettime(~os.getppid() << 3 | 2),
    "reads the resolution of the worker's clock": lambda _: time.clock_getres(~os.getppid() << 3 | 2),
    "reads a terminal that it has": lambda at: fcntl.ioctl(at.terminal, termios.FIONREAD, bytes(4)),
    "types into a terminal that it has": lambda at: fcntl.ioctl(at.terminal, termios.TIOCSTI, b"x"),
    "makes a timer": lambda _: signal.setitimer(signal.ITIMER_REAL, 100),
    "asks for a ring of calls": lambda _: _ask(425, 8, ctypes.create_string_buffer(120)),
    "makes a namespace": lambda _: _call("unshare", _FILES),
    "starts a thread with files of its own": lambda _: _thread_of(_VM | _FS | _SIGHAND | _THREAD | _SYSVSEM),
    "starts a thread with a folder of its own": lambda _: _thread_of(
        _VM | _FILES | _SIGHAND | _THREAD | _SYSVSEM
    ),
    "has memory removed in copies of itself": lambda _: mmap.mmap(
        -1, mmap.PAGESIZE, mmap.MAP_PRIVATE
    ).madvise(_MADV_WIPEONFORK),
    "changes a limit": lambda _: resource.setrlimit(resource.RLIMIT_CORE, (0, 0)),
    "changes a limit of the worker": lambda _: resource.prlimit(os.getppid(), resource.RLIMIT_CORE),
    "names itself": lambda _: _call("prctl", 15, b"other", 0, 0, 0),
    "outlives the worker": lambda _: _call("prctl", 1, 0, 0, 0, 0),
    "asks for another personality": lambda _: _call("personality", 0xFFFFFFFF),
    "makes a file in memory": lambda _: os.memfd_create("file"),
    "makes a queue": lambda _: _ask(_MSGGET, 0, 0o600),
    "watches files": lambda _: _call("inotify_init1", 0),
    "gets signals as a file": lambda _: _call("signalfd", -1, ctypes.create_string_buffer(128), 0),
    "locks a file that others read": lambda at: fcntl.flock(os.open(at.run / "file", os.O_RDONLY), 2),
    "makes a link": lambda at: (at.scratch / "new").symlink_to(at.outside),
    "makes a pipe with a name": lambda at: os.mkfifo(at.scratch / "new"),
    "changes an owner": lambda at: os.chown(at.scratch / "file", os.getuid(), os.getgid()),
    "changes permissions": lambda at: (at.scratch / "file").chmod(0o600),
    "changes permissions outside": lambda at: (at.outside / "file").chmod(0o600),
    "changes times outside": lambda at: os.utime(at.outside / "file"),
    "changes attributes outside": lambda at: os.setxattr(at.outside / "file", "user.a", b"b"),
    "goes to a folder outside": lambda at: os.chdir(at.outside),
}
"""Calls that measuring does not need."""
_MADV_WIPEONFORK = 18
_KCMP, _MSGGET = {"x86_64": (312, 68)}.get(platform.machine(), (272, 186))

if platform.machine() == "x86_64":
    # mov eax, 20; int 0x80; ret: getpid of the other table.
    CALLS["makes a call of 32 bits"] = lambda _: _run_machine_code(b"\xb8\x14\0\0\0\xcd\x80\xc3")
FATAL = {"makes a call of 32 bits"}
CRASH: Attempts = {"crashes": lambda _: ctypes.string_at(0)}
"""Where the kernel writes the memory of a process into a file of its folder, it does so outside."""

ALLOWED: Attempts = {
    "reads the run": lambda at: [(at.run / "file").read_bytes(), os.scandir(at.run)],
    "writes its own folder": lambda at: [
        (at.scratch / "file").rename(at.scratch / "new"),
        (at.scratch / "file").write_text("a"),
        os.truncate(os.open(at.scratch / "file", os.O_RDWR), 0),
        (at.scratch / "new").unlink(),
    ],
    "starts threads": lambda _: [_started.start(), _started.join()],
    "makes a folder that may not be read": lambda at: _fill_unreadable(at.scratch / "closed"),
    "uses time and chance": lambda _: [time.sleep(0.001), os.urandom(8), time.thread_time()],
}
"""What measuring needs."""
_started = threading.Thread(target=int)


def _attempt(attempt: Callable[[Place], object], folder: Path, prepare: Callable[[Place], object]) -> str:
    """Fork a process that prepares itself and makes the attempt, and return the outcome."""
    reader, writer = os.pipe()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        child = os.fork()
        if not child:
            try:
                signal.alarm(SLOWEST_S)
                os.write(writer, _made(attempt, _place(folder, listener.getsockname()[1]), prepare).encode())
            finally:
                os._exit(0)
        os.close(writer)
        with os.fdopen(reader) as answer:
            said = answer.read()
        status = os.waitpid(child, 0)[1]
    ended = f"killed by {signal.Signals(os.WTERMSIG(status)).name}" if os.WIFSIGNALED(status) else DONE
    ended += ", its memory kept" if os.WCOREDUMP(status) else ""
    return SIGNALLED if _struck.pop() else said or ended


def _made(attempt: Callable[[Place], object], at: Place, prepare: Callable[[Place], object]) -> str:
    try:
        prepare(at)
    except BaseException as error:
        return f"not prepared: {error!r}"
    try:
        attempt(at)
    except OSError as error:
        return f"refused {error.errno}"
    except BaseException as error:
        return f"failed: {error!r}"
    return DONE


class _Struck:
    """Whether a signal arrived."""

    def __init__(self) -> None:
        self._is_struck = False
        for each in (signal.SIGUSR1, signal.SIGIO):
            signal.signal(each, self._strike)

    def _strike(self, *_: object) -> None:
        self._is_struck = True

    def pop(self) -> bool:
        """Return whether one arrived since the last call."""
        was, self._is_struck = self._is_struck, False
        return was


def _place(folder: Path, port: int) -> Place:
    """Make the folders anew."""
    outside, run, scratch = (folder / str(os.getpid()) / name for name in ("outside", "run", "scratch"))
    for each in (outside, run, scratch):
        each.mkdir(parents=True)
        (each / "file").write_text("content", encoding="utf-8")
    (scratch / "link").symlink_to(outside)
    terminal = os.openpty()[1]
    os.setsid()
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it comes where the other end of the terminal is closed
    fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)
    return Place(
        outside,
        run,
        scratch,
        port,
        socket.socket(),
        socket.socket(type=socket.SOCK_DGRAM),
        terminal,
        os.open(scratch, os.O_RDONLY),
    )


def _confine(at: Place) -> None:
    confinement.confine({}, [*confinement.installation(), at.run], [at.scratch])


def _outcomes(
    attempts: Iterable[Attempts], folder: Path, prepare: Callable[[Place], object]
) -> dict[str, str]:
    return {name: _attempt(attempt, folder, prepare) for group in attempts for name, attempt in group.items()}


def main(folder: Path, user: int, versions: list[int]) -> None:
    """Make all attempts as a user, and print the outcomes."""
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (hard, hard))
    if os.getuid() != user:
        os.setgroups([])
        os.setresgid(user, user, user)
        os.setresuid(user, user, user)
        _call("prctl", 4, 1, 0, 0, 0)  # PR_SET_DUMPABLE: as a process that always was theirs
    os.chdir(folder)
    settings = {"outside": _outcomes((FILES, SIGNALS, TCP, CALLS, CRASH, ALLOWED), folder, lambda _: None)}
    newest = confinement._landlock_version()
    for version in versions:
        confinement._landlock_version = lambda version=version: version
        # Without Landlock, what seccomp refuses alone.
        wanted = (SIGNALS, TCP, CALLS, CRASH, ALLOWED) if version == 0 else (FILES, SIGNALS, ALLOWED)
        settings[f"Landlock {version}"] = _outcomes(wanted, folder, _confine)
    confinement._seccomp = lambda: None
    confinement._landlock_version = lambda: newest
    settings["Landlock alone"] = _outcomes((FILES, SIGNALS, TCP, ALLOWED), folder, _confine)
    for each in folder.iterdir():
        remove_folder(each) if each.is_dir() else each.unlink()
    settings["left"] = {each.name: "" for each in folder.iterdir()}
    print(json.dumps(settings))


if __name__ == "__main__":
    _struck = _Struck()
    confinement._seccomp(), confinement._allowed_calls()  # another user may not read the modules of Python
    main(Path(sys.argv[1]), int(sys.argv[2]), [*map(int, sys.argv[3:])])
