"""The events of one rank as Kineto writes them, in the order in which the host launched them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from math import prod
from typing import TYPE_CHECKING

from ccl_bench.testing.collectives import moved
from ccl_bench.testing.kernels import nccl_kernel
from ccl_bench.testing.kineto_templates import FIRST_PROCESS
from ccl_bench.testing.program import COMPUTE_STREAM, COPY_STREAM
from ccl_bench.testing.simulation import LAUNCH_FOR, launch_start_ns

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ccl_bench.testing.kernels import Kernel
    from ccl_bench.testing.kineto_templates import Style
    from ccl_bench.testing.mesh import Group
    from ccl_bench.testing.program import Call, Instruction
    from ccl_bench.testing.simulation import RankStep, Timeline

RECORD = "record_param_comms"

_NAMES = {
    "allreduce": ("c10d::allreduce_", "nccl:all_reduce"),
    "_allgather_base": ("c10d::_allgather_base_", "nccl:_all_gather_base"),
    "_reduce_scatter_base": ("c10d::_reduce_scatter_base_", "nccl:_reduce_scatter_base"),
    "all_to_all": ("c10d::alltoall_base_", "nccl:all_to_all"),
    "all_to_allv": ("c10d::alltoall_base_", "nccl:all_to_all"),
    "send": ("c10d::send", "nccl:send"),
    "recv": ("c10d::recv_", "nccl:recv"),
}

_LISTED = 30
"""torch cuts longer lists with `...`."""


def _number_list(numbers: tuple[int, ...]) -> str:
    text = ", ".join(map(str, numbers[:_LISTED]))
    return f'"[{text}, ...]"' if len(numbers) > _LISTED else f'"[{text}]"'


def names_of(collective_name: str) -> tuple[str, str]:
    """Return the operator and the annotation around a collective."""
    return _NAMES[collective_name]


def group_name(timeline: Timeline, rank: int, group: Group, *, style: Style) -> str:
    """Return the name that a rank gives one of its groups."""
    return str(timeline.mesh.groups_of(rank).index(group)) if style.numbers_own_groups else group.name


class CallArguments:
    """Writes the arguments of one rank's calls as compact JSON, numbering the calls of each group."""

    def __init__(self, timeline: Timeline, rank: int, style: Style) -> None:
        self.timeline, self.rank, self.style = timeline, rank, style
        self.issued: Counter[str] = Counter()
        self.of_kernel = cache(self._of_kernel)

    def by_position(self, call: Call) -> str:
        """Return the arguments of the next `record_param_comms` as torch 2.1 recorded them, without names."""
        group = self.timeline.mesh.group(self.rank, call.dimension)
        data = moved(self.timeline, self.rank, call)
        self.issued[""] += 1
        splits = f"{_number_list(data.in_split)},{_number_list(data.out_split)}"
        rank = self._place(call)
        elements = data.out_elements if call.collective == "recv" else data.in_elements
        return (
            f'"Concrete Inputs":["","{self.issued[""]}","{group.communicator % 2**47}","{rank}","",{splits},'
            f'"{len(group.ranks)}"],'
            '"Input type":["TensorList","Scalar","Scalar","Scalar","","ScalarList","ScalarList","Scalar"],'
            f'"Input Dims":[[[{elements}]],[],[],[],[],[],[],[]]'
        )

    def of_waiting(self) -> str:
        """Return the arguments that torch 2.1 recorded when the host began to wait for a call."""
        return (
            f'"Concrete Inputs":["{self.issued[""] + 1}","0","{self.rank}","","[]","[]","1"],'
            '"Input type":["Scalar","Scalar","Scalar","","ScalarList","ScalarList","Scalar"],'
            '"Input Dims":[[],[],[],[],[],[],[]]'
        )

    def of_operator(self, call: Call) -> str:
        """Return the arguments of the next `record_param_comms`.

        As in PyTorch, `Seq` and the communicator stand here and not on the kernel. Sends and
        receives have a count of their own, which runs over all peers of this rank: it does not agree
        between the two ends. Their `Rank` is the peer's place in the group (pytorch#153819).
        """
        group = self.timeline.mesh.group(self.rank, call.dimension)
        counter = f"{group.name} {'point to point' if call.peer else ''}"
        self.issued[counter] += 1
        rank = self._place(call)
        return (
            f'{self.of_kernel(call)},"Global rank start":{group.start},"Global rank stride":{group.stride},'
            f'"Seq":{self.issued[counter]},"Comms Id":{group.communicator},"Rank":{rank},'
            '"Is asynchronized op":1'
        )

    def _of_kernel(self, call: Call) -> str:
        """Return the arguments that Kineto copies to the kernel."""
        group = self.timeline.mesh.group(self.rank, call.dimension)
        data = moved(self.timeline, self.rank, call)
        name = group_name(self.timeline, self.rank, group, style=self.style)
        text = (
            f'"Collective name":"{data.recorded}","In msg nelems":{data.in_elements},'
            f'"Out msg nelems":{data.out_elements},"Group size":{len(group.ranks)},"dtype":"{data.dtype}",'
            f'"In split size":{_number_list(data.in_split)},"Out split size":{_number_list(data.out_split)},'
            f'"Process Group Name":"{name}","Process Group Description":"{group.description}",'
            f'"Process Group Ranks":{_number_list(group.ranks)}'
        )
        end = {"send": "Dst Rank", "recv": "Src Rank"}.get(call.collective)
        if not end or self.style.peers == "operator":
            return text
        peer = self._place(call) if self.style.peers == "place" else self._peer(call)
        return f'{text},"{end}":{peer}'

    def _peer(self, call: Call) -> int:
        return self.timeline.mesh.neighbour(self.rank, call.peer) if call.peer else self.rank

    def _place(self, call: Call) -> int:
        """Return the place in the group of the other end of a message, or of this rank."""
        return self.timeline.mesh.group(self.rank, call.dimension).ranks.index(self._peer(call))


Sides = tuple[int, int, int]

_CHECKPOINT, _CHECKPOINTS = "CheckpointFunctionBackward", 1_000_000_000
"""Node that runs the forward pass again, and the first sequence number of its operators."""

_FIRST_CORRELATION = 50_000_000
_IDS = 10_000_000
"""Numbers that are kept for each device of a process."""


class RankEvents:
    """Writes the recording of one rank, event by event."""

    def __init__(self, timeline: Timeline, rank: int, style: Style) -> None:
        self.timeline, self.rank, self.style, self.t = timeline, rank, style, style.templates
        self.plan = timeline.plan
        self.items = timeline.program(rank).instructions
        self.device = rank % timeline.plan.devices_per_node
        self.place = rank % style.devices_in_process
        self.process = FIRST_PROCESS + rank - self.place
        self.thread = self.process + 1_000 * self.place
        self.autograd = self.thread + 100_000
        self.shift_ns = style.shift_ns + timeline.plan.clock_offset_ns(rank)
        self.external = 1 + _IDS * self.place
        self.correlation = _FIRST_CORRELATION + _IDS * self.place
        self.calls = CallArguments(timeline, rank, style)
        self.is_named = style.has_collective_arguments
        self.kernel_arguments = cache(self._kernel_arguments)

    def times(self, start_ns: int, end_ns: int) -> tuple[int, int, int, int]:
        """Return the values of `ts` and `dur`, for true times."""
        return (*divmod(start_ns + self.shift_ns, 1000), *divmod(end_ns - start_ns, 1000))

    def metadata(self) -> Iterator[str]:
        """Yield the names of processes and threads, and the span of the recording."""
        first, last = self.timeline.steps[0][self.rank], self.timeline.steps[-1][self.rank]
        at = divmod(first.host_start_ns + self.shift_ns, 1000)
        for process, label in ((self.process, '"CPU"'), (self.device, f'"GPU {self.device}"')):
            yield self.t.process_name % ("process_name", *at, process, 0, "name", '"python3"')
            yield self.t.process_name % ("process_labels", *at, process, 0, "labels", label)
        for thread in (self.thread, self.autograd):
            name = f'"thread {thread} (python3)"'
            yield self.t.process_name % ("thread_name", *at, self.process, thread, "name", name)
        for stream in sorted({item.stream for item in self.items}):
            name = f'"stream {stream} "'
            yield self.t.process_name % ("thread_name", *at, self.device, stream, "name", name)
        end = max(last.host_end_ns, last.device_end_ns)
        yield self.t.span % self.times(first.host_start_ns, end)
        yield self.t.instant % ("Record Window End", "", "", *divmod(end + self.shift_ns, 1000))

    def steps(self) -> Iterator[str]:
        """Yield all steps, after the rest of those before the recording."""
        for number, start, end in self.timeline.backlog(self.rank):
            self.correlation += 1
            yield self._work(number, start, end, is_launched=False)
        for step in range(self.plan.steps):
            yield from self.step(step)

    def step(self, step: int) -> Iterator[str]:
        """Yield one step."""
        record = self.timeline.steps[step][self.rank]
        name = f"ProfilerStep#{self.plan.first_step + step}"
        if not self.place:
            yield self.host("user_annotation", name, self.thread, record.host_start_ns, record.host_end_ns)
        yield from self._twin(name, COMPUTE_STREAM, record)
        at, length = record.first_launch_ns, self.plan.host.launch_ns
        for number, item in enumerate(self.items):
            yield from self._launched(step, number, item, at + number * length)
        yield from self._optimizer(record)
        yield from self._checkpoints(record)
        if self.plan.host.waits_for_device:
            yield self._synchronisation(record)

    def host(self, category: str, name: str, thread: int, start_ns: int, end_ns: int, more: str = "") -> str:
        """Return a range on the CPU and give it the next id."""
        self.external += 1
        times, ids = self.times(start_ns, end_ns), (self.external, self.external)
        values = (category, name, self.process, thread, *times, *ids)
        return self.t.host_with_more % (*values, more) if more else self.t.host % values

    def _twin(self, name: str, stream: int, record: RankStep) -> Iterator[str]:
        """Yield the device's copy of an annotation around the work that was launched in it."""
        numbers = [n for n, item in enumerate(self.items) if item.stream == stream]
        if numbers:
            start, end = record.starts[numbers[0]] - 1, record.ends[numbers[-1]] + 1
            ids = (self.device, stream, *self.times(start, end), self.external)
            yield self.t.device_range % ("gpu_user_annotation", name, *ids)

    def _optimizer(self, record: RankStep) -> Iterator[str]:
        """Yield the range around the operators of the optimizer."""
        numbers = [n for n, item in enumerate(self.items) if item.phase == "optimizer" and item.kernel]
        if numbers:
            length = self.plan.host.launch_ns
            start = record.first_launch_ns + numbers[0] * length
            end = record.first_launch_ns + (numbers[-1] + 1) * length
            yield self.host("user_annotation", "Optimizer.step#AdamW.step", self.thread, start, end)

    def _checkpoints(self, record: RankStep) -> Iterator[str]:
        """Yield the nodes of autograd in which the forward pass runs again."""
        numbers: dict[int, list[int]] = {}
        for number, item in enumerate(self.items):
            if item.checkpoint >= 0:
                numbers.setdefault(item.checkpoint, []).append(number)
        length = self.plan.host.launch_ns
        for checkpoint, inside in numbers.items():
            start = record.first_launch_ns + inside[0] * length
            end = record.first_launch_ns + (inside[-1] + 1) * length
            more = self.t.arguments(f'"Sequence number":{_CHECKPOINTS + checkpoint},"Fwd thread id":1')
            name = f"autograd::engine::evaluate_function: {_CHECKPOINT}"
            yield self.host("cpu_op", name, self.autograd, start, end, more)
            yield self.host("cpu_op", _CHECKPOINT, self.autograd, start, end, more)

    def _synchronisation(self, record: RankStep) -> str:
        """Return the host's wait for the device at the end of a step."""
        start = record.first_launch_ns + len(self.items) * self.plan.host.launch_ns
        end = max(start, record.device_end_ns)
        self.correlation += 1
        values = ("cuda_runtime", "cudaDeviceSynchronize", self.process, self.thread)
        return self.t.launch % (*values, *self.times(start, end), self.external, self.correlation)

    def _launched(self, step: int, number: int, item: Instruction, at: int) -> Iterator[str]:
        """Yield the operator of an instruction, its launch and its work on the device."""
        record, length = self.timeline.steps[step][self.rank], self.plan.host.launch_ns
        thread = self.autograd if item.phase == "backward" else self.thread
        start, end = at, at + length
        for name in item.ranges:
            yield self.host("user_annotation", name, thread, start, end)
        yield from self._operators(step, item, thread, start, end)
        self.correlation += 1
        launch = launch_start_ns(self.plan, at)
        launch_end = launch + length * LAUNCH_FOR[0] // LAUNCH_FOR[1]
        function = "cudaMemcpyAsync" if item.stream == COPY_STREAM else "cudaLaunchKernel"
        values = ("cuda_runtime", function, self.process, thread, *self.times(launch, launch_end))
        yield self.t.launch % (*values, self._operator_id(item), self.correlation)
        work = (record.starts[number], record.ends[number])
        yield self._work(number, *work)
        if self.style.has_launch_arrows:
            yield from self._launch_arrow(thread, launch, item.stream, work[0])

    def _operators(self, step: int, item: Instruction, thread: int, start: int, end: int) -> Iterator[str]:
        """Yield the operators around a launch, the innermost last: its id is the launch's."""
        inset = self.plan.host.launch_ns // 16
        if item.call is not None:
            yield from self._communication(item.call, thread, start, end, inset)
            return
        if item.kernel is None:
            yield self.host("cpu_op", "aten::copy_", thread, start, end)
            return
        if item.phase == "backward" and item.kernel.node:
            yield from self._backward_node(step, item, thread, start, end, inset)
            start, end = start + 2 * inset, end - 2 * inset
        elif item.checkpoint >= 0:
            more = self.t.arguments(f'"Sequence number":{_CHECKPOINTS + item.checkpoint},"Fwd thread id":0')
            yield self.host("cpu_op", item.kernel.operator, thread, start, end, more)
            return
        elif item.sequence >= 0 and item.phase == "forward":
            number = self._sequence(step, item)
            yield self._arrow("s", number, thread, start, "fwdbwd")
            more = self.t.arguments(f'"Sequence number":{number},"Fwd thread id":0')
            yield self.host("cpu_op", item.kernel.operator, thread, start, end, more)
            return
        yield self.host("cpu_op", item.kernel.operator, thread, start, end)

    def _backward_node(
        self, step: int, item: Instruction, thread: int, start: int, end: int, inset: int
    ) -> Iterator[str]:
        node, number = item.kernel.node if item.kernel else "", self._sequence(step, item)
        more = self.t.arguments(f'"Sequence number":{number},"Fwd thread id":1')
        name = f"autograd::engine::evaluate_function: {node}"
        yield self.host("cpu_op", name, thread, start, end, more)
        yield self.host("cpu_op", node, thread, start + inset, end - inset, more)
        yield self._arrow("f", number, thread, start + inset, "fwdbwd")

    def _sequence(self, step: int, item: Instruction) -> int:
        return 1 + step * self.timeline.program(self.rank).sequences + item.sequence

    def _communication(self, call: Call, thread: int, start: int, end: int, inset: int) -> Iterator[str]:
        operator, title = names_of(moved(self.timeline, self.rank, call).recorded)
        yield self.host("cpu_op", operator, thread, start, end)
        yield self.host("user_annotation", title, thread, start + inset, end - inset)
        if not self.is_named:
            waited = self.t.arguments(self.calls.of_waiting())
            yield self.host("cpu_op", RECORD, thread, end - inset, end - inset, waited)
        text = self.calls.of_operator(call) if self.is_named else self.calls.by_position(call)
        more = self.t.arguments(text)
        yield self.host("cpu_op", RECORD, thread, start + 2 * inset, end - 2 * inset, more)

    def _operator_id(self, item: Instruction) -> int:
        """Return the operator a launch names; torch before 2.2 did not know that of a collective."""
        return self.external if self.is_named or item.call is None else self.correlation

    def _work(self, number: int, start_ns: int, end_ns: int, *, is_launched: bool = True) -> str:
        """Return work on the device; torch describes a collective only where its launch is recorded."""
        item = self.items[number]
        ids = (self._operator_id(item), self.device, item.stream, self.correlation)
        times = self.times(start_ns, end_ns)
        if item.kernel is None and item.call is None:
            size = self.plan.input_copy.bytes
            rate = f"{size / max(1, end_ns - start_ns):.6f}"
            name = "Memcpy HtoD (Pinned -> Device)"
            return self.t.copy % ("gpu_memcpy", name, self.device, item.stream, *times, *ids, size, rate)
        name, more = self.kernel_arguments(number, is_described=is_launched and self.is_named)
        return self.t.kernel % ("kernel", name, self.device, item.stream, *times, *ids, more)

    def _kernel_arguments(self, number: int, *, is_described: bool) -> tuple[str, str]:
        """Return the name of an instruction's kernel and the arguments that are the same in every step."""
        item = self.items[number]
        if item.kernel is not None:
            return item.kernel.name, self.t.arguments(self._shape(item.kernel))
        call = item.call
        if call is None:
            raise AssertionError("a copy is no kernel")
        dtype = moved(self.timeline, self.rank, call).dtype
        shape = _shape((24, 1, 1), (544, 1, 1), 96, 82_240, 0, self.plan.device.sms)
        more = f",{self.calls.of_kernel(call)}" if is_described else ""
        return nccl_kernel(call.collective, dtype), self.t.arguments(shape + more)

    def _shape(self, kernel: Kernel) -> str:
        resources = (kernel.registers, kernel.shared_memory, kernel.occupancy)
        return _shape(kernel.grid, kernel.block, *resources, self.plan.device.sms)

    def _arrow(
        self, end: str, number: int, thread: int, at_ns: int, kind: str, process: int | None = None
    ) -> str:
        binding = self.t.arguments(',"bp":"e"') if end == "f" else ""
        where = (self.process if process is None else process, thread)
        return self.t.arrow % (end, number, *where, *divmod(at_ns + self.shift_ns, 1000), kind, kind, binding)

    def _launch_arrow(self, thread: int, launch: int, stream: int, start: int) -> Iterator[str]:
        yield self._arrow("s", self.correlation, thread, launch, "ac2g")
        yield self._arrow("f", self.correlation, stream, start, "ac2g", self.device)


def _shape(grid: Sides, block: Sides, registers: int, shared_memory: int, occupancy: int, sms: int) -> str:
    """Return the launch shape of a kernel as compact JSON."""
    blocks = prod(grid) / sms
    warps = blocks * prod(block) / 32
    return (
        f'"registers per thread":{registers},"shared memory":{shared_memory},"blocks per SM":{blocks:.6f},'
        f'"warps per SM":{warps:.6f},"grid":{list(grid)},"block":{list(block)},'
        f'"est. achieved occupancy %":{occupancy}'
    )
