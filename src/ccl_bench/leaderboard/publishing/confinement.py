"""Confinement of a process before it reads untrusted files: limits on files, system calls and resources.

Landlock (landlock(7)) allows it some folders, and seccomp (seccomp(2), by libseccomp) the system calls in
`system_calls.toml`: no network, no other program, no signal to another process. Both are permanent. What
Landlock refuses in its later versions only, such as emptying a file, seccomp refuses too.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import resource
import signal
import sys
import time
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_PR_SET_PDEATHSIG = 1
_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38
"""Numbers of calls of prctl(2)."""


def missing_protection() -> list[str]:
    """Return the parts of the sandbox that this machine lacks, in words; empty if it has all."""
    lacks = []
    if not _landlock_version():
        lacks.append("Landlock: the kernel has none, or it is switched off")
    if _seccomp() is None:
        lacks.append(f"seccomp: {_SECCOMP} cannot be loaded")
    return lacks


def confine(limits: Mapping[int, int], readable: Iterable[Path], writable: Iterable[Path]) -> None:
    """Restrict this process to the stated folders and limits, for the rest of its life.

    `limits` maps limits of `resource` to their values. Parts that `missing_protection` names are skipped.
    Raises OSError if anything else fails, and if the process has other threads, which would stay
    unrestricted.
    """
    for limit, most in limits.items():
        allowed = resource.getrlimit(limit)[1]
        least = most if allowed == resource.RLIM_INFINITY else min(most, allowed)
        resource.setrlimit(limit, (least, least))
    if sys.platform != "linux":
        return
    if len(list(Path("/proc/self/task").iterdir())) != 1:
        raise OSError("a process must be confined before it starts threads")
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    # Otherwise a crash hands its memory to the program that core_pattern(5) names, whatever the limit.
    _prctl(_PR_SET_DUMPABLE, 0)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _give_up_capabilities()
    if _landlock_version():
        _restrict_files(readable, writable)
    if _seccomp() is not None:
        _restrict_calls()


def installation() -> list[Path]:
    """Return the paths that Python, its packages and the C library read at run time."""
    system = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache", "/usr/share/zoneinfo")
    devices = ("/dev/null", "/dev/urandom")
    return [Path(place) for place in (sys.prefix, sys.base_prefix, *sys.path, *system, *devices)]


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _prctl(call: int, value: int) -> None:
    _checked(_libc().prctl(call, value, 0, 0, 0), "prctl")


def _checked(status: int, what: str) -> int:
    if status < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return status


# ---- capabilities; names and numbers of linux/capability.h ----

_CAPABILITY_VERSION_3 = 0x20080522
_CAP_DAC_READ_SEARCH = 1 << 2


class _CapabilityHeader(ctypes.Structure):
    """`struct __user_cap_header_struct`; 0 is this process."""

    _fields_ = (("version", ctypes.c_uint32), ("process", ctypes.c_int))


class _CapabilityData(ctypes.Structure):
    """`struct __user_cap_data_struct`, of 32 capabilities."""

    _fields_ = (
        ("effective", ctypes.c_uint32),
        ("permitted", ctypes.c_uint32),
        ("inheritable", ctypes.c_uint32),
    )


def _give_up_capabilities() -> None:
    """Leave root nothing but reading: the files of a run may belong to somebody else."""
    header = _CapabilityHeader(_CAPABILITY_VERSION_3, 0)
    data = (_CapabilityData * 2)()
    _checked(_libc().capget(ctypes.byref(header), data), "capget")
    kept = data[0].permitted & _CAP_DAC_READ_SEARCH
    _checked(
        _libc().capset(ctypes.byref(header), (_CapabilityData * 2)(_CapabilityData(kept, kept, 0))), "capset"
    )


# ---- Landlock; names and numbers of linux/landlock.h ----

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
"""Numbers of the system calls, the same on every processor."""
_CREATE_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_REMOVE_DIR, _REMOVE_FILE, _MAKE_DIR, _MAKE_REG = 1 << 4, 1 << 5, 1 << 7, 1 << 8
_REFER, _TRUNCATE = 1 << 13, 1 << 14
_OF_A_FILE = _WRITE_FILE | _READ_FILE | _TRUNCATE
_READ = _READ_FILE | _READ_DIR
_WRITE = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE

_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Version -> number of its file rights; later versions add none."""
_BIND_TCP, _CONNECT_TCP = 1 << 0, 1 << 1
_SCOPE_ABSTRACT_UNIX_SOCKET, _SCOPE_SIGNAL = 1 << 0, 1 << 1


class _Ruleset(ctypes.Structure):
    """`struct landlock_ruleset_attr`: the rights that are refused unless a rule allows them."""

    _fields_ = (("fs", ctypes.c_uint64), ("net", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _PathBeneath(ctypes.Structure):
    """`struct landlock_path_beneath_attr`: the rights below a folder."""

    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def _landlock_version() -> int:
    """Return the version of the interface; 0 without Landlock."""
    if sys.platform != "linux":
        return 0
    return max(0, int(_libc().syscall(_CREATE_RULESET, None, 0, _CREATE_RULESET_VERSION)))


def _restrict_files(readable: Iterable[Path], writable: Iterable[Path]) -> None:
    version = _landlock_version()
    handled = (1 << _FILE_RIGHTS[min(version, max(_FILE_RIGHTS))]) - 1
    ruleset = _Ruleset(handled, _BIND_TCP | _CONNECT_TCP, _SCOPE_ABSTRACT_UNIX_SOCKET | _SCOPE_SIGNAL)
    size = 8 if version < 4 else 16 if version < 6 else 24
    descriptor = _libc().syscall(_CREATE_RULESET, ctypes.byref(ruleset), ctypes.c_size_t(size), 0)
    rules = _checked(descriptor, "landlock_create_ruleset")
    try:
        for rights, places in ((_READ, readable), (_READ | _WRITE, writable)):
            for place in places:
                _allow(rules, place, rights & handled)
        _checked(_libc().syscall(_RESTRICT_SELF, rules, 0), "landlock_restrict_self")
    finally:
        os.close(rules)


def _allow(rules: int, place: Path, rights: int) -> None:
    """Add a rule; a place that does not exist, or cannot be reached, needs none."""
    try:
        opened = os.open(place, os.O_PATH | os.O_CLOEXEC)
    except (FileNotFoundError, PermissionError):
        return
    try:
        rule = _PathBeneath(rights if place.is_dir() else rights & _OF_A_FILE, opened)
        added = _libc().syscall(_ADD_RULE, rules, _RULE_PATH_BENEATH, ctypes.byref(rule), 0)
        _checked(added, "landlock_add_rule")
    finally:
        os.close(opened)


# ---- seccomp; names and numbers of seccomp.h ----

_SECCOMP = "libseccomp.so.2"
_ALLOW = 0x7FFF0000
_NO_SUCH_CALL = 0x00050000 | 38
"""Fail with ENOSYS: the C library then takes an older call, which may be among the allowed ones."""
_LESS_OR_EQUAL, _EQUAL, _MASKED_EQUAL = 3, 4, 7
_THREAD = 0x003D0F00
"""Flags of clone(2) for a thread as the C library starts it: it shares memory, files, folder and signals."""
_CLONE_DETACHED = 0x00400000
"""Another C library sets it too; the kernel ignores it."""
_OPENING = os.O_ACCMODE | os.O_TRUNC
_ALL_BITS = (1 << 64) - 1
_UNKNOWN = -1


class _Comparison(ctypes.Structure):
    """`struct scmp_arg_cmp`: a condition on an argument."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("a", ctypes.c_uint64),
        ("b", ctypes.c_uint64),
    )


@cache
def _seccomp() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL(_SECCOMP, use_errno=True)
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_release.argtypes = library.seccomp_load.argtypes = [ctypes.c_void_p]
    library.seccomp_rule_add_array.argtypes = [
        *(ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p),
    ]
    return library


def _restrict_calls() -> None:
    library = _seccomp()
    if library is None:
        return
    rules = library.seccomp_init(_NO_SUCH_CALL)
    try:
        for name, comparisons in _allowed_calls():
            number = library.seccomp_syscall_resolve_name(name.encode())
            if number == _UNKNOWN:
                continue
            conditions = (_Comparison * len(comparisons))(*comparisons)
            _confirmed(
                library.seccomp_rule_add_array(rules, _ALLOW, number, len(comparisons), conditions), name
            )
        _confirmed(library.seccomp_load(rules), "seccomp_load")
    finally:
        library.seccomp_release(rules)


def _allowed_calls() -> list[tuple[str, list[_Comparison]]]:
    """Return the calls of the list, and others with the arguments that measuring needs.

    A call is allowed if its arguments meet all the conditions of one entry. They are compared in 64 bits, so
    a call that sets bits which the kernel would ignore is refused.
    """
    text = resources.files(__package__).joinpath("system_calls.toml").read_text(encoding="utf-8")
    listed = tomllib.loads(text)
    allowed: list[tuple[str, list[_Comparison]]] = [
        (name, []) for names in listed["calls"].values() for name in names
    ]
    allowed += [
        (limited["call"], [_Comparison(limited["argument"], _EQUAL, value)])
        for limited in listed["limited"]
        for value in _values(limited["module"], limited["names"])
    ]
    # Landlock before version 3 lets a file be emptied that is opened to read it, or with mode 3, which does
    # neither.
    for call, argument in (("open", 1), ("openat", 2)):
        for flags in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_TRUNC, os.O_RDWR | os.O_TRUNC):
            allowed.append((call, [_Comparison(argument, _MASKED_EQUAL, _OPENING, flags)]))
    allowed += [
        ("clone", [_Comparison(0, _MASKED_EQUAL, _ALL_BITS ^ _CLONE_DETACHED, _THREAD)]),
        ("tgkill", [_Comparison(0, _EQUAL, os.getpid())]),
        ("prlimit64", [_Comparison(0, _EQUAL, 0), _Comparison(2, _EQUAL, 0)]),
        ("sched_getaffinity", [_Comparison(0, _EQUAL, 0)]),
    ]
    # Numbers beyond those of the kernel's own clocks name another process, whose time they read, or a device.
    for call in ("clock_getres", "clock_gettime", "clock_nanosleep"):
        allowed.append((call, [_Comparison(0, _LESS_OR_EQUAL, time.CLOCK_TAI)]))
    return allowed


def _values(module: str, names: Iterable[str]) -> list[int]:
    """Return the values that a module of Python has for these names on this machine."""
    source = importlib.import_module(module)
    return [getattr(source, name) for name in names]


def _confirmed(status: int, what: str) -> None:
    if status:
        raise OSError(-status, f"{what}: {os.strerror(-status)}")
