"""The arguments of a communication call, as `record_param_comms` and Kineto's kernels carry them."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import TYPE_CHECKING

from ccl_bench.testing.messages import moved

if TYPE_CHECKING:
    from ccl_bench.testing.instructions import Call
    from ccl_bench.testing.kineto_layout import Style
    from ccl_bench.testing.mesh import Group
    from ccl_bench.testing.timeline import Timeline

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


def _listed(numbers: tuple[int, ...]) -> str:
    shown = ", ".join(map(str, numbers[:_LISTED]))
    return f'"[{shown}, ...]"' if len(numbers) > _LISTED else f'"[{shown}]"'


def names_of(recorded: str) -> tuple[str, str]:
    """Return the operator and the annotation around a collective."""
    return _NAMES[recorded]


def group_name(made: Timeline, rank: int, group: Group, *, style: Style) -> str:
    """Return what a rank calls one of its groups."""
    return str(made.mesh.groups_of(rank).index(group)) if style.numbers_own_groups else group.name


class CallArguments:
    """Writes the arguments of one rank's calls as compact JSON, numbering the calls of each group."""

    def __init__(self, made: Timeline, rank: int, style: Style) -> None:
        self.made, self.rank, self.style = made, rank, style
        self.issued: Counter[str] = Counter()
        self.of_kernel = cache(self._of_kernel)

    def by_position(self, call: Call) -> str:
        """Return the arguments of the next `record_param_comms` as torch 2.1 recorded them, without names."""
        group, what = self.made.mesh.group(self.rank, call.dimension), moved(self.made, self.rank, call)
        self.issued[""] += 1
        splits = f"{_listed(what.in_split)},{_listed(what.out_split)}"
        rank = self._place(call)
        elements = what.out_elements if call.collective == "recv" else what.in_elements
        return (
            f'"Concrete Inputs":["","{self.issued[""]}","{group.communicator % 2**47}","{rank}","",{splits},'
            f'"{len(group.ranks)}"],'
            '"Input type":["TensorList","Scalar","Scalar","Scalar","","ScalarList","ScalarList","Scalar"],'
            f'"Input Dims":[[[{elements}]],[],[],[],[],[],[],[]]'
        )

    def of_waiting(self) -> str:
        """Return what torch 2.1 recorded when the host began to wait for a call."""
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
        group = self.made.mesh.group(self.rank, call.dimension)
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
        group, what = self.made.mesh.group(self.rank, call.dimension), moved(self.made, self.rank, call)
        name = group_name(self.made, self.rank, group, style=self.style)
        text = (
            f'"Collective name":"{what.recorded}","In msg nelems":{what.in_elements},'
            f'"Out msg nelems":{what.out_elements},"Group size":{len(group.ranks)},"dtype":"{what.dtype}",'
            f'"In split size":{_listed(what.in_split)},"Out split size":{_listed(what.out_split)},'
            f'"Process Group Name":"{name}","Process Group Description":"{group.description}",'
            f'"Process Group Ranks":{_listed(group.ranks)}'
        )
        end = {"send": "Dst Rank", "recv": "Src Rank"}.get(call.collective)
        if not end or self.style.peers == "operator":
            return text
        peer = self._place(call) if self.style.peers == "place" else self._peer(call)
        return f'{text},"{end}":{peer}'

    def _peer(self, call: Call) -> int:
        return self.made.mesh.neighbour(self.rank, call.peer) if call.peer else self.rank

    def _place(self, call: Call) -> int:
        """Return the place in the group of the other end of a message, or of this rank."""
        return self.made.mesh.group(self.rank, call.dimension).ranks.index(self._peer(call))
