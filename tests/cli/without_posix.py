"""Run commands as on Windows, as far as another system can: ccl-bench sees what its Python has there.

    python without_posix.py JSON

JSON is a list of command lines, each a list whose first word is the program. The last line on stderr has
their statuses. Other packages go on as on this system.
"""

from __future__ import annotations

import builtins
import errno
import json
import os
import signal
import sys
from multiprocessing import context
from pathlib import Path
from types import ModuleType

MODULES = frozenset(
    "_posixsubprocess fcntl grp posix pty pwd readline resource syslog termios tty".split()  # noqa: SIM905
)
"""Modules that Python for Windows lacks."""

OS = """
O_ACCMODE O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_LARGEFILE O_NDELAY O_NOATIME O_NOCTTY O_NOFOLLOW
O_NONBLOCK O_PATH O_RSYNC O_SYNC O_TMPFILE WNOHANG chown chroot confstr copy_file_range ctermid eventfd fchdir
fchmod fchown fdatasync fork forkpty fpathconf fstatvfs getegid geteuid getgid getgroups getloadavg getpgid
getpgrp getpriority getrandom getsid getuid getxattr killpg lchown lockf major memfd_create minor mkfifo mknod
nice openpty pathconf pipe2 posix_fadvise posix_fallocate posix_spawn pread preadv pwrite pwritev readv
register_at_fork sched_getaffinity sched_setaffinity sched_yield sendfile setpgid setpriority setsid setuid
setxattr statvfs sync sysconf sysconf_names ttyname uname unshare wait wait3 wait4 waitid writev
"""
SIGNAL = """
ITIMER_REAL SIGALRM SIGBUS SIGCHLD SIGCONT SIGHUP SIGKILL SIGPIPE SIGQUIT SIGSTOP SIGTSTP SIGUSR1 SIGUSR2
SIGWINCH alarm pause pthread_kill pthread_sigmask setitimer siginterrupt sigwait
"""
NAMES = {
    os: frozenset(OS.split()),
    signal: frozenset(SIGNAL.split()),
    context: frozenset({"ForkContext", "ForkProcess", "ForkServerContext", "ForkServerProcess"}),
}
"""Names that its modules lack, by the documentation of Python."""

BINARY = 0x8000
"""Flag without which Windows changes line ends in what is read."""


def _is_ours(depth: int = 2) -> bool:
    """Whether the code that asks is ours."""
    return str(sys._getframe(depth).f_globals.get("__name__")).startswith("ccl_bench")


class Windows(ModuleType):
    """A module without the names that it has not on Windows, for our code only."""

    def __getattribute__(self, name: str) -> object:
        lacking = ModuleType.__getattribute__(self, "lacking_names")
        if (name in lacking or name in REPLACED) and _is_ours():
            if name in lacking:
                raise AttributeError(f"module {self} has no attribute {name!r}")
            if self is os:
                return REPLACED[name]
        return ModuleType.__getattribute__(self, name)


def open_(path: object, flags: int, mode: int = 0o777, *, dir_fd: None = None) -> int:
    """Open a file, not a folder."""
    assert dir_fd is None, "Windows has no dir_fd"
    assert flags & BINARY, f"{path} would be read as text"
    if os.path.isdir(path):  # noqa: PTH112  a path of any kind
        raise PermissionError(errno.EACCES, "Permission denied", str(path))
    return os.open(path, flags & ~BINARY, mode)


def chmod(path: object, permissions: int, **how: object) -> None:
    """Change the permissions of a path, not of a descriptor."""
    if isinstance(path, int):
        raise TypeError("chmod: path should be string, bytes or os.PathLike, not int")
    os.chmod(path, permissions)  # noqa: PTH101


REPLACED = {"name": "nt", "open": open_, "chmod": chmod, "O_BINARY": BINARY}


def become_windows() -> None:
    """Take from our code what Windows has not."""
    os.O_BINARY = BINARY
    imported = builtins.__import__

    def import_(name: str, *how: object, **more: object) -> object:
        if name.partition(".")[0] in MODULES and _is_ours():
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return imported(name, *how, **more)

    builtins.__import__ = import_
    is_dir, read_text = Path.is_dir, Path.read_text

    def of_linux(path: Path) -> bool:
        return path.parts[1:2] in (("proc",), ("sys",))

    def read_text_(path: Path, *how: object, **more: object) -> str:
        if of_linux(path):
            raise FileNotFoundError(errno.ENOENT, "No such file or directory", str(path))
        return read_text(path, *how, **more)

    Path.is_dir, Path.read_text = lambda path: not of_linux(path) and is_dir(path), read_text_
    for module, lacking in NAMES.items():
        module.lacking_names = lacking
        module.__class__ = Windows


def main(lines: list[list[str]]) -> int:
    """Run the commands."""
    become_windows()
    from ccl_bench.cli import bench, metrics

    programs = {"ccl-bench": bench.main, "ccl-metrics": metrics.main}
    statuses = [programs[program](words) for program, *words in lines]
    sys.stderr.write(f"\n{json.dumps(statuses)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
