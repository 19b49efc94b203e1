"""Types of Kineto's JSON events, with only the keys that a table needs.

Every other key is skipped by the decoder without becoming an object. The order of the
fields follows the order in which Kineto writes the keys, which is what makes the lookup
cheap. Sources: libkineto's output_json.cpp and PyTorch's profiler_kineto.cpp.
"""

from __future__ import annotations

import re
from decimal import Decimal  # noqa: TC003  msgspec resolves the annotations

from msgspec import Raw, Struct, field

Number = int | float | str | bool | None
"""What real files hold where a number belongs; text is understood or counted as lost."""

Time = int | float | str | None
"""An event whose time is `true` is lost: as a number that would be 1 us."""

_ABSENT = Raw(b"")


class Args(Struct, gc=False):
    """`args` of an event."""

    external_id: Number = field(name="External id", default=None)
    record_function_id: Number = field(name="Record function id", default=None)
    concrete_inputs: Raw = field(name="Concrete Inputs", default=_ABSENT)
    input_type: Raw = field(name="Input type", default=_ABSENT)
    input_dims: Raw = field(name="Input Dims", default=_ABSENT)
    sequence_number: Number = field(name="Sequence number", default=None)
    forward_thread: Number = field(name="Fwd thread id", default=None)
    device: Number = None
    stream: Number = None
    correlation: Number = None
    bytes: Number = None
    registers: Number = field(name="registers per thread", default=None)
    shared_memory: Number = field(name="shared memory", default=None)
    blocks_per_sm: Number = field(name="blocks per SM", default=None)
    warps_per_sm: Number = field(name="warps per SM", default=None)
    grid: list[Number] | str | None = None
    block: list[Number] | str | None = None
    occupancy: Number = field(name="est. achieved occupancy %", default=None)
    collective: str | None = field(name="Collective name", default=None)
    in_elements: Number = field(name="In msg nelems", default=None)
    out_elements: Number = field(name="Out msg nelems", default=None)
    group_size: Number = field(name="Group size", default=None)
    dtype: str | None = None
    in_split: list[Number] | str | None = field(name="In split size", default=None)
    out_split: list[Number] | str | None = field(name="Out split size", default=None)
    group_name: Number = field(name="Process Group Name", default=None)
    group_description: Number = field(name="Process Group Description", default=None)
    group_ranks: list[Number] | str | None = field(name="Process Group Ranks", default=None)
    group_start: Number = field(name="Global rank start", default=None)
    group_stride: Number = field(name="Global rank stride", default=None)
    sequence: Number = field(name="Seq", default=None)
    communicator: Number = field(name="Comms Id", default=None)
    is_async: Number = field(name="Is asynchronized op", default=None)
    source_rank: Number = field(name="Src Rank", default=None)
    target_rank: Number = field(name="Dst Rank", default=None)
    rank: Number = field(name="Rank", default=None)
    external_id_old: Number = field(name="external id", default=None)


class Event(Struct, gc=False):
    """One element of `traceEvents`."""

    ph: str = ""
    cat: str | None = None
    name: str = ""
    pid: Number = None
    tid: Number = None
    ts: Time = None
    dur: Time = None
    args: Args | None = None
    id: Number = None


class ExactEvent(Event, gc=False):
    """An event whose time needs more digits than a double has."""

    ts: Decimal | None = None  # type: ignore[assignment]
    dur: Decimal | None = None  # type: ignore[assignment]


NO_ARGS = Args()

CATEGORIES = {
    "kernel": "kernel",
    "Kernel": "kernel",
    "mtia_ccp_events": "kernel",
    "gpu_memcpy": "memcpy",
    "Memcpy": "memcpy",
    "gpu_memset": "memset",
    "Memset": "memset",
    "cpu_op": "cpu_op",
    "Operator": "unsorted",
    "cuda_runtime": "launch",
    "cuda_driver": "launch",
    "hip_runtime": "launch",
    "runtime": "launch",
    "driver": "launch",
    "xpu_runtime": "launch",
    "xpu_driver": "launch",
    "mtia_runtime": "launch",
    "hpu_op": "launch",
    "privateuse1_runtime": "launch",
    "privateuse1_driver": "launch",
    "Runtime": "launch",
    "user_annotation": "annotation",
    "gpu_user_annotation": "device_annotation",
    "Trace": "span",
    "fwdbwd": "arrow",
}
"""Kineto category → what its events are. Old names are those of torch 1.8 to 1.11.

torch 1.8 and 1.9 gave operators and ranges the same category; `is_range` distinguishes these by name.

An event of MTIA's command processor is work on the device, as its kernels are [libkineto ActivityType.h].
"""

UNSORTED = "operators and ranges"
"""Rows of operators and of ranges together."""

ROWS = {
    "kernel": "kernels",
    "memcpy": "memcpy",
    "memset": "memcpy",
    "cpu_op": "cpu_ops",
    "launch": "launches",
    "annotation": "annotations",
    "device_annotation": "annotations",
    "unsorted": UNSORTED,
}
"""What complete events are → the rows they become."""

TAILS, HEADS = "arrow tails", "arrow heads"
"""The rows that the two ends of arrows become."""

_OPERATOR = re.compile(r"::|(?<!\w)(?=\w*Backward)\w++$|^[A-Z]\w*[A-Za-z]$|^(?:detach_?|record_param_comms)$")


def is_range(name: str) -> bool:
    """Whether an event of an old `Operator` category is what torch has since written as `user_annotation`.

    Operators have a namespace, except for `detach` and `record_param_comms`; nodes of autograd and
    functions in Python have the name of a class. A range with such a name counts as an operator.
    """
    return not _OPERATOR.search(name)


COMPLETE, TAIL, HEAD = "X", "s", "f"
"""The phases of events that become rows."""

UNUSED_CATEGORIES = frozenset(
    {
        "python_function",
        "Python",
        "overhead",
        "ac2g",
        "async_cpu_to_gpu",
        "cuda_sync",
        "cpu_instant_event",
        "cuda_event",
        "mtia_insight",
        "mtia_counters",
    }
)
"""Categories known to hold nothing a table needs; synchronisation is never work."""
