"""The shape of an Ascend trace: the keys of an event that a table needs, and nothing else."""

from __future__ import annotations

from msgspec import Struct, field
from msgspec.json import Decoder

Number = int | float | str | bool | None


class Args(Struct, gc=False):
    """`args` of an event."""

    name: Number = None
    task_type: str | None = field(name="Task Type", default=None)
    stream: Number = field(name="Physic Stream Id", default=None)
    stream_old: Number = field(name="Stream Id", default=None)
    connection: Number = field(name="connection_id", default=None)
    sequence_number: Number = field(name="Sequence number", default=None)
    forward_thread: Number = field(name="Fwd thread id", default=None)


class Event(Struct, gc=False):
    """One event."""

    ph: str = ""
    name: str = ""
    cat: str | None = None
    pid: Number = None
    tid: Number = None
    ts: Number = None
    dur: Number = None
    args: Args | None = None

    @property
    def process(self) -> str:
        """What the process is called, where the event says it."""
        if self.ph != "M" or self.name != "process_name" or self.args is None:
            return ""
        return str(self.args.name or "")


class _Document(Struct, gc=False):
    events: list[Event] = field(name="traceEvents", default_factory=list)


_ARRAY, _OBJECT = Decoder(list[Event], strict=False), Decoder(_Document, strict=False)


def document_events(text: bytes) -> list[Event]:
    """Return the events of a file, which is an array of them or an object that holds one."""
    return _OBJECT.decode(text).events if text.lstrip()[:1] == b"{" else _ARRAY.decode(text)
