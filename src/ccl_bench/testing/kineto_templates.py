"""The two ways in which Kineto lays its JSON out, as templates: filling one in is all that an event costs."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

BASE_NS = 1_763_596_800_000_000_000
"""`baseTimeNanoseconds`: what the times in a file are relative to."""

ORIGIN_NS = 4_354_294_000_000_000
"""Where true time 0 stands in a file."""

FIRST_PROCESS = 20_000
"""Number of the process of rank 0."""


TORCH_NAME = "node_{process}.{saved_ns}.pt.trace"
"""How `torch.profiler.tensorboard_trace_handler` names files by default."""


@dataclass(frozen=True)
class Style:
    """How a file is written."""

    is_pretty: bool = False
    """As torch up to 2.4 wrote it, one key group a line; else compact, as later ones do."""
    compresses: bool = False
    """Written as `.json.gz`."""
    has_absolute_times: bool = False
    """Times since the epoch, 16 digits before the point, and no base, as torch 2.2 and 2.3."""
    has_collective_arguments: bool = True
    """Whether the arguments of collectives are recorded by name, and with the kernels, as since torch 2.2.

    Else by position, with the operators alone, as torch 2.1 did."""
    has_launch_arrows: bool = False
    """Whether `ac2g` arrows lead from launches to kernels."""
    file_name: str = "rank{rank}_trace"
    """Name of a rank's file without its ending, of `{rank}`, `{process}` and `{saved_ns}`."""
    peers: str = "rank"
    """How the other end of a message stands in `Src Rank` and `Dst Rank`.

    As a `rank` of the job, as a `place` in the process group, or, `operator`, not at all, so that only its
    operator says the place."""
    numbers_own_groups: bool = False
    """Whether each rank numbers the groups that it is in from 0, so that a name is of several groups."""
    devices_in_process: int = 1
    """Ranks that one process plays, each on a device of its own and from a thread of its own."""

    @property
    def shift_ns(self) -> int:
        """Offset from a rank's time to the time in its file, ns."""
        return ORIGIN_NS + (BASE_NS if self.has_absolute_times else 0)

    @property
    def suffix(self) -> str:
        """End of the file's name."""
        return ".json.gz" if self.compresses else ".json"

    def name(self, rank: int) -> str:
        """Return the name of a rank's file; each is saved some ms after the one before."""
        saved_ns = BASE_NS + ORIGIN_NS + 60_000_000_000 + 7_654_321 * rank
        return self.file_name.format(rank=rank, process=FIRST_PROCESS + rank, saved_ns=saved_ns) + self.suffix

    @property
    def separator(self) -> str:
        """Text between two events."""
        return ",\n" if self.is_pretty else ","

    @cached_property
    def templates(self) -> Templates:
        """The templates of this layout."""
        return Templates(self.is_pretty)


def spaced(text: str) -> str:
    """Return JSON with a blank after the colon of every key and the comma before it."""
    return text.replace('":', '": ').replace(',"', ', "')


_RANGE = '"ph":"X","cat":"%s","name":"%s","pid":%d,"tid":%d'
_TIMES = '"ts":%d.%03d,"dur":%d.%03d'
_HOST_ARGS = '"External id":%d,"Record function id":%d'
_LAUNCH_ARGS = '"External id":%d,"cbid":211,"correlation":%d'
_DEVICE_ARGS = '"External id":%d,"queued":0,"device":%d,"context":1,"stream":%d,"correlation":%d,%s'
_COPY_ARGS = (
    '"External id":%d,"device":%d,"context":1,"stream":%d,"correlation":%d,'
    '"bytes":%d,"memory bandwidth (GB/s)":%s'
)
_ARROW = '"ph":"%s","id":%d,"pid":%d,"tid":%d,"ts":%d.%03d'
_ARROW_TAIL = '"cat":"%s","name":"%s"%s'


@dataclass(frozen=True)
class Templates:
    """One template for each shape of event."""

    is_pretty: bool

    def _event(self, *parts: str, args: str = "") -> str:
        if not self.is_pretty:
            return "{" + ",".join(parts) + (f',"args":{{{args}}}}}' if args else "}")
        body = ",\n    ".join(map(spaced, parts))
        tail = f',\n    "args": {{\n      {spaced(args)}\n    }}' if args else ""
        return "  {\n    " + body + tail + "\n  }"

    @cached_property
    def host(self) -> str:
        """Category, name, process, thread, ts x2, dur x2, external id, record function id."""
        return self._event(_RANGE, _TIMES, args=_HOST_ARGS)

    @cached_property
    def host_with_more(self) -> str:
        """As `host`, with more arguments as JSON text."""
        return self._event(_RANGE, _TIMES, args=_HOST_ARGS + ",%s")

    @cached_property
    def launch(self) -> str:
        """Category, name, process, thread, ts x2, dur x2, external id, correlation."""
        return self._event(_RANGE, _TIMES, args=_LAUNCH_ARGS)

    @cached_property
    def kernel(self) -> str:
        """Category, name, device, stream, ts x2, dur x2, external id, device, stream, correlation, more."""
        return self._event(_RANGE, _TIMES, args=_DEVICE_ARGS)

    @cached_property
    def copy(self) -> str:
        """As `kernel`, with bytes and their rate instead of more."""
        return self._event(_RANGE, _TIMES, args=_COPY_ARGS)

    @cached_property
    def device_range(self) -> str:
        """Category, name, device, stream, ts x2, dur x2, external id."""
        return self._event(_RANGE, _TIMES, args='"External id":%d')

    @cached_property
    def arrow(self) -> str:
        """`s` or `f`, id, process, thread, ts x2, category, name, binding."""
        return self._event(_ARROW, _ARROW_TAIL)

    @cached_property
    def process_name(self) -> str:
        """Kind of metadata, ts x2, process, thread, key, value as JSON text."""
        return self._event('"name":"%s","ph":"M","ts":%d.%03d,"pid":%d,"tid":%d', args='"%s":%s')

    @cached_property
    def span(self) -> str:
        """The times of the recording: ts x2, dur x2."""
        head = '"ph":"X","cat":"Trace"'
        ids = '"pid":"Spans","tid":"PyTorch Profiler","name":"PyTorch Profiler (0)"'
        return self._event(head, _TIMES, ids, args='"Op count":0')

    @cached_property
    def instant(self) -> str:
        """Name, process, thread, ts x2 of a mark on the whole recording."""
        return self._event('"name":"%s","ph":"i","s":"g"', '"pid":"%s","tid":"%s","ts":%d.%03d')

    def arguments(self, compact: str) -> str:
        """Return arguments given as compact JSON text in this layout."""
        return spaced(compact) if self.is_pretty else compact
