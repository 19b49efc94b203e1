"""An open profile: its planes, executed programs, devices and steps."""

from __future__ import annotations

import codecs
import contextlib
import io
import re
import threading
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from ccl_bench import storage
from ccl_bench.base.errors import InputError
from ccl_bench.trace.device_steps import DeviceSteps, ProgramRun, numbered_steps, runs_together, tile_steps
from ccl_bench.trace.formats.xplane.devices import (
    HostDevices,
    JobDevices,
    core_id,
    host_devices,
    identify,
    plane_devices,
)
from ccl_bench.trace.formats.xplane.host import HostThreads
from ccl_bench.trace.formats.xplane.space import HOST, PROGRAMS, TASK, Plane, find_planes, read_plane
from ccl_bench.trace.hlo.program import HloProgram, read_program
from ccl_bench.trace.protobuf import DamagedMessageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import BinaryIO

    from ccl_bench.trace.formats.xplane.operations import Operations
    from ccl_bench.trace.protobuf import Numbers

_PROGRAM = re.compile(r"\A(.*)\((\d{1,20})\)\Z", re.DOTALL)
"""Name of the event that holds a program: the program's name and id."""

_WHOLE = 1 << 64
"""Ids of programs are unsigned numbers of 64 bits."""

_LOOKED_AT = 1 << 16
"""Bytes from which a file that was converted to text is known."""


class Profile:
    """One file, open. Planes are read when they are asked for; a damaged one is noted and left out.

    Where `holds_planes`, each is read once and stays in memory.
    """

    def __init__(self, stream: BinaryIO, file: str, *, holds_planes: bool = False) -> None:
        self._stream, self._file, self._holds_planes = stream, file, holds_planes
        self._planes: dict[str, Plane] = {}
        self._hosts: dict[int, HostThreads] = {}
        self.space = find_planes(stream)
        self.damaged: dict[str, str] = {}
        """Name of a plane or program that cannot be read → why."""
        cut_at = self.space.cut_at
        if cut_at is not None:
            # A binary file is text with letters beyond ASCII only if it was converted.
            stream.seek(0)
            with contextlib.suppress(UnicodeDecodeError):
                if not codecs.getincrementaldecoder("utf-8")().decode(stream.read(_LOOKED_AT)).isascii():
                    raise InputError(
                        "the file was converted to UTF-8 text, and its binary content is lost",
                        where=file,
                        fix="copy the original file again as binary",
                    )
        if not self.space.planes:
            message = "holds no plane of an XLA profile"
            if cut_at is not None:
                message = f"is truncated or damaged at byte {cut_at:,}, within its first plane"
            raise InputError(message, where=file, fix="copy the file again, or record the profile again")
        self.host = self.plane(HOST)
        self.programs: dict[int, HloProgram] = {}
        """Id of a program → its content."""
        program_plane = self.plane(PROGRAMS)
        for entry in program_plane.event_names.values() if program_plane else ():
            data, match = entry.stats.get("Hlo Proto"), _PROGRAM.match(entry.name)
            if not match or not isinstance(data, bytes):
                continue
            try:
                self.programs[int(match[2]) % _WHOLE] = read_program(data)
            except DamagedMessageError as error:
                self.damaged[entry.name] = str(error)
        self.job = self._job()

    def plane(self, name: str) -> Plane | None:
        """Return a plane by its name; None if it is not there or damaged."""
        span = self.space.plane(name)
        if span is None or name in self._planes:
            return self._planes.get(name)
        try:
            plane = read_plane(self._stream, span)
        except DamagedMessageError as error:
            self.damaged[name] = str(error)
            return None
        if self._holds_planes:
            self._planes[name] = plane
        return plane

    def host_from(self, base_ns: int) -> HostThreads:
        """Return what the host did, with times that count from `base_ns`."""
        if base_ns not in self._hosts:
            self._hosts[base_ns] = HostThreads(self.host, base_ns)
        return self._hosts[base_ns]

    @property
    def start_ns(self) -> int | None:
        """When the recording began, ns since the epoch; None if not recorded."""
        plane = self.plane(TASK)
        start = plane.stats.get("profile_start_time") if plane else None
        return start if isinstance(start, int) and start > 0 else None

    def _job(self) -> JobDevices:
        planes = plane_devices(span.name for span in self.space.planes)
        plane_ids: dict[str, int | None] = {}
        for device in planes:
            plane = self.plane(device.plane)
            plane_ids[device.plane] = core_id(plane.stats.get("core_details")) if plane else None
        every_is_stated = bool(plane_ids) and None not in plane_ids.values()
        host = HostDevices({}, frozenset()) if every_is_stated else host_devices(self.host)
        job = identify(planes, plane_ids, host, self.programs.values())
        if not job.devices:
            damage = [*self.damaged.items(), *(self.host.damage.items() if self.host else ())]
            why = f": {damage[0][0]} is damaged ({damage[0][1]})" if damage else ""
            if self.space.cut_at is not None:
                why = f": it is truncated or damaged at byte {self.space.cut_at:,}"
            fix = "record the profile again, with work on a device, and copy the complete file"
            raise InputError(f"holds no work of any device{why}", where=self._file, fix=fix)
        return job


_HELD_BYTES = 4 << 20
"""Size of a file up to which all that was read of it is held for its next device: several times its size."""


class _Latest(threading.local):
    """The latest small file of a thread, since each of its devices needs the host and the programs too."""

    data: bytes = b""
    profile: Profile | None = None


_LATEST = _Latest()


@contextlib.contextmanager
def open_profile(path: Path, file: str) -> Iterator[Profile]:
    """Open the profile at a path; `file` names it in messages. Raises InputError if it is none.

    A small one is not read again as long as its bytes are the same.
    """
    try:
        with storage.open_raw(path) as stream:
            data = stream.read(_HELD_BYTES + 1)
            if len(data) > _HELD_BYTES:
                yield Profile(stream, file)
                return
            if _LATEST.profile is None or _LATEST.data != data:
                _LATEST.profile = None
                _LATEST.profile = Profile(io.BytesIO(data), file, holds_planes=True)
                _LATEST.data = data
            yield _LATEST.profile
    except OSError as error:
        raise storage.unreadable(path, error) from error


def list_devices(path: Path) -> JobDevices:
    """Return the devices of the profile at a path."""
    with open_profile(path, str(path)) as profile:
        return profile.job


def line_steps(plane: Plane, name: str, base_ns: int) -> DeviceSteps:
    """Return the steps that a line of a device's plane holds; its events are named by their numbers."""
    for line in plane.lines:
        if line.name == name and line.count:
            starts, ends = (times.tolist() for times in line.times(base_ns))
            return numbered_steps([event.name.strip() for event in line.names()], starts, ends)
    return DeviceSteps([], "")


def program_begins(work: Operations, programs: Mapping[int, HloProgram]) -> dict[int, Numbers]:
    """Return when each program of the work began its runs, by the program's id.

    A run executes each instruction of the program's entry once. What is run as often as most of these are
    begins a run with the first of them, so that a lost record costs no step.
    """
    counts = np.bincount(work.kind, minlength=len(work.kinds)).tolist()
    begins = {}
    for number in dict.fromkeys(kind.program for kind in work.kinds):
        if number is None or number not in programs:
            continue
        of_entry = [
            place
            for place, kind in enumerate(work.kinds)
            if kind.program == number and counts[place] and kind.instruction
            if kind.instruction.name in programs[number].entry
        ]
        times = Counter(counts[place] for place in of_entry)
        usual_count = max(times, key=lambda count: (times[count], -count), default=0)
        once_per_run = [place for place in of_entry if counts[place] == usual_count]
        first = work.kind[np.isin(work.kind, once_per_run)][:1]
        begins[number] = work.start_ns[np.isin(work.kind, first)]
    return begins


def program_runs(
    work: Operations, programs: Mapping[int, HloProgram], begins: Mapping[int, Numbers]
) -> Iterator[ProgramRun]:
    """Yield the runs of each program: from an instruction that begins one to the last before the next."""
    for number, starts in begins.items():
        of_program = [place for place, kind in enumerate(work.kinds) if kind.program == number]
        rows = np.flatnonzero(np.isin(work.kind, of_program))
        run = np.searchsorted(starts, work.start_ns[rows], side="right") - 1
        ends = starts.copy()
        np.maximum.at(ends, run[run >= 0], work.end_ns[rows][run >= 0])
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            yield ProgramRun(programs[number].name, start, end)


def work_as_steps(
    work: Operations, programs: Mapping[int, HloProgram], begins: Mapping[int, Numbers]
) -> DeviceSteps:
    """Return the runs of the program that begins a step, where only the instructions are known."""
    lengths = np.bincount(work.kind, weights=work.end_ns - work.start_ns, minlength=len(work.kinds))
    totals: dict[int, float] = {}
    for kind, length in zip(work.kinds, lengths.tolist(), strict=True):
        program = _UNKNOWN if kind.program is None else kind.program
        totals[program] = totals.get(program, 0.0) + length
    step_programs = runs_together(totals, begins)
    if not step_programs:
        return DeviceSteps([], "")
    of_these = [place for place, kind in enumerate(work.kinds) if kind.program in step_programs]
    last_ns = int(work.end_ns[np.isin(work.kind, of_these)].max())
    return tile_steps(programs[step_programs[0]].name, begins[step_programs[0]], last_ns)


_UNKNOWN = -1
"""Stands for the program of work that is of none."""
