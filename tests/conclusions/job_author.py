"""Writes the programs of training jobs: plain, tensor-parallel and pipelined training, and on CPUs."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING, NamedTuple

from simulate import Busy, Call, Close, Launch, Open, Record, Synchronise, Thread, Wait, Work
from simulated_kineto import operator_name
from training_job import (
    AUTOGRAD,
    COMPUTE,
    COPIES,
    DOWN,
    GLOO,
    MAIN,
    MESSAGE,
    REDUCTIONS,
    TENSOR,
    UP,
    Job,
    Program,
    Steps,
)

if TYPE_CHECKING:
    from simulate import Action

LOADER = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"


class Kind(NamedTuple):
    """One kernel of a layer."""

    operator: str
    inner: str
    kernel: str
    node: str
    """Node of autograd that launches its backward kernels."""
    weight: float
    """Its time over that of a mean kernel."""


_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_tn"
_NORM = "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<c10::BFloat16, float>"
_FLASH = "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 64, 128, 4> >"
_GELU = "void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl, 2>"
_ADAM = "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float, 4> >"
_LOSS = "void at::native::(anonymous namespace)::cunn_SoftMaxForward<8, c10::BFloat16, float>"
LAYER = (
    Kind("aten::layer_norm", "aten::native_layer_norm", _NORM, "NativeLayerNormBackward0", 0.4),
    Kind("aten::linear", "aten::addmm", _GEMM, "AddmmBackward0", 1.6),
    Kind("aten::scaled_dot_product_attention", "aten::_flash_attention_forward", _FLASH,
         "ScaledDotProductFlashAttentionBackward0", 1.2),
    Kind("aten::gelu", "aten::gelu", _GELU, "GeluBackward0", 0.3),
    Kind("aten::linear", "aten::addmm", _GEMM, "AddmmBackward0", 1.5),
)  # fmt: skip
NCCL = {
    "allreduce": "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)",
    "send": "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)",
    "recv": "ncclDevKernel_SendRecv(ncclDevComm*, unsigned long, ncclWork*)",
}


def build(job: Job) -> Program:
    """Return the program of a job, with its noise."""
    writer = _cpu_step if job.on_cpu else _pipeline_step if job.pp > 1 else _step
    steps: Steps = []
    for rank in range(job.ranks):
        author = _Author(job, rank)
        steps.append([])
        for _ in range(job.warm_up + job.steps):
            author.actions = []
            writer(author)
            steps[-1].append(author.actions)
    return Program(job, steps)


class _Author:
    """Writes the actions of one rank, with noise of its own."""

    def __init__(self, job: Job, rank: int) -> None:
        self.job, self.rank = job, rank
        self.actions: list[Action] = []
        self.random = Random(f"{job.seed} {rank}")
        self.counts: dict[str, int] = {}

    def noisy(self, ns: float) -> int:
        """Return a time with noise, of at most three standard deviations, ns."""
        if not self.job.noise:
            return round(ns)
        off = max(-3.0, min(3.0, self.random.gauss(0, 1)))
        return max(1, round(ns * (1 + self.job.noise * off)))

    def add(self, *actions: Action) -> None:
        self.actions.extend(actions)

    def busy(self, ns: float, tag: str = "") -> None:
        self.add(Busy(self.noisy(ns), tag))

    def number(self, counter: str) -> int:
        """Return the next number of a counter, from 1."""
        self.counts[counter] = self.counts.get(counter, 0) + 1
        return self.counts[counter]

    def kernel(
        self, operator: str, inner: str, work: Work, *, function: str = "cudaLaunchKernel", tag: str = ""
    ) -> None:
        """Write an operator within another one that launches work, and the Python after it."""
        around = self.job.operator_ns / 3
        self.add(Open(operator, tag=tag))
        self.busy(around, tag)
        if inner != operator:
            self.add(Open(inner, tag=tag))
        self.busy(around, tag)
        self.add(Launch(work, self.noisy(6_000), self.job.names[function], tag=tag))
        self.busy(around, tag)
        self.add(*[Close(tag)] * (1 + (inner != operator)))
        self.busy(self.job.python_ns, tag)

    def compute(self, name: str, weight: float) -> Work:
        return Work(name, COMPUTE, self.noisy(weight * self.job.kernel_ns))

    def after(self, stream: int, earlier: int) -> None:
        """Let a stream wait for all work that another one has so far."""
        event = f"{stream} after {earlier}"
        names = self.job.names
        self.add(Record(earlier, event, 1_000, names["cudaEventRecord"]))
        self.add(Wait(stream, event, 1_000, names["cudaStreamWaitEvent"]))

    def collective(
        self, stream: int, ranks: tuple[int, ...], description: str, ns: float, elements: int
    ) -> None:
        """Write a reduction that starts when the kernels before it are done."""
        call = Call("allreduce", ranks, description, self.number(f"{description} {ranks}"), elements)
        self._communicate("c10d::allreduce_", stream, call, ns)

    def message(self, way: str, stream: int, peer: int, ns: float) -> None:
        """Write a send after the kernels before it, or a receive that the kernels after it wait for."""
        ranks = tuple(range(self.job.ranks))
        call = Call(way, ranks, "default_pg", self.number(f"{way} {peer} {stream}"), MESSAGE // 4, peer)
        self._communicate("c10d::send" if way == "send" else "c10d::recv_", stream, call, ns)

    def _communicate(self, operator: str, stream: int, call: Call, ns: float) -> None:
        self.add(Open(operator), Open("record_param_comms", call=call))
        self.busy(self.job.operator_ns / 4)
        self.add(Open(f"nccl:{operator_name(call.collective)}", "user_annotation"))
        self.after(stream, COMPUTE)
        work = Work(NCCL[call.collective], stream, self.noisy(ns), call=call)
        self.add(Launch(work, self.noisy(8_000), self.job.names["cudaLaunchKernelExC"]))
        self.add(Close(), Close(), Close())
        self.busy(self.job.python_ns / 2)

    def read(self, tag: str = "read") -> None:
        """Write what `item()` does: a copy to pageable memory, and a call that waits for it."""
        names = self.job.names
        self.add(Open("aten::item"), Busy(2_000), Open("aten::_local_scalar_dense"), Busy(3_000))
        work = Work("Memcpy DtoH (Device -> Pageable)", COMPUTE, 1_500, "gpu_memcpy", bytes=4)
        self.add(Launch(work, 7_000, names["cudaMemcpyAsync"], blocks=True, tag=tag))
        self.add(Synchronise(2_000, names["cudaStreamSynchronize"], COMPUTE, tag=tag))
        self.add(Close(), Close())
        self.busy(self.job.python_ns)


def _begin(author: _Author) -> None:
    """Write the batch: the loader's range, its copy to the device, and the gradients set to zero."""
    job = author.job
    author.busy(20_000)
    author.add(Open(LOADER, "user_annotation"))
    author.busy(60_000, "loader")
    author.add(Close())
    if job.pageable_ns:
        _copy(author, Work("Memcpy HtoD (Pageable -> Device)", COMPUTE, author.noisy(job.pageable_ns),
                           "gpu_memcpy", bytes=job.pageable_ns * 5), blocks=True)  # fmt: skip
    else:
        _copy(author, Work("Memcpy HtoD (Pinned -> Device)", COMPUTE, 9_000, "gpu_memcpy", bytes=200_000))
    if job.copied_ahead_ns:
        _copy(author, Work("Memcpy HtoD (Pinned -> Device)", COPIES, author.noisy(job.copied_ahead_ns),
                           "gpu_memcpy", bytes=job.copied_ahead_ns * 20))  # fmt: skip
    author.add(Open("Optimizer.zero_grad#AdamW.zero_grad", "user_annotation"))
    author.busy(30_000)
    author.add(Close())
    memset = Work("Memset (Device)", COMPUTE, 2_000, "gpu_memset", bytes=4_096)
    author.kernel("aten::zero_", "aten::zero_", memset, function="cudaMemsetAsync")


def _copy(author: _Author, work: Work, *, blocks: bool = False) -> None:
    names = author.job.names
    author.add(Open("aten::to"), Busy(3_000), Open("aten::copy_"), Busy(4_000))
    author.add(Launch(work, 7_000, names["cudaMemcpyAsync"], blocks))
    if blocks:
        author.add(Synchronise(2_000, names["cudaStreamSynchronize"], COMPUTE, tag="copy"))
    author.add(Close(), Close())
    author.busy(author.job.python_ns)


def _forward(author: _Author, tag: str = "") -> None:
    """Write the forward pass of one layer."""
    job = author.job
    for kind in LAYER:
        author.kernel(kind.operator, kind.inner, author.compute(kind.kernel, kind.weight), tag=tag)
    if not tag and job.tp > 1:
        author.collective(TENSOR, job.tensor_group_of(author.rank), "mesh_tp", job.tensor_ns, MESSAGE)
        author.after(COMPUTE, TENSOR)
    for _ in range(0 if tag else job.tiny_reductions):
        author.collective(REDUCTIONS, job.replicas_of(author.rank), job.replicated, job.tiny_ns, 512)
        author.after(COMPUTE, REDUCTIONS)
    for _ in range(0 if tag else job.reads):
        author.read()


def _backward(author: _Author) -> None:
    """Write the backward pass of one layer, with the layer's forward pass before it if it recomputes."""
    if author.job.recomputes:
        name = "CheckpointFunctionBackward"
        author.add(Open(f"autograd::engine::evaluate_function: {name}"), Open(name))
        _forward(author, "recomputed")
    for kind in reversed(LAYER):
        author.add(Open(f"autograd::engine::evaluate_function: {kind.node}"), Open(kind.node))
        operator = (
            "aten::mm" if "Addmm" in kind.node else f"aten::{kind.inner.removeprefix('aten::')}_backward"
        )
        author.kernel(operator, operator, author.compute(_backward_name(kind), 2 * kind.weight))
        author.add(Close(), Close())
    if author.job.recomputes:
        author.add(Close(), Close())


def _backward_name(kind: Kind) -> str:
    name = kind.kernel.replace("_tn", "_nt").replace("flash_fwd", "flash_bwd")
    return name.replace("layer_norm", "layer_norm_grad").replace("GeluCUDA", "GeluBackwardCUDA")


def _reduce(author: _Author, layer: int) -> None:
    """Write the reduction of a layer's gradients; that of the first layer has little to hide behind."""
    job = author.job
    ranks = job.replicas_of(author.rank)
    if len(ranks) > 1 and job.reduction_ns:
        elements = MESSAGE if layer else MESSAGE // 8
        author.collective(REDUCTIONS, ranks, job.replicated, _reduction_ns(job, layer), elements)


def _reduction_ns(job: Job, layer: int) -> int:
    return job.reduction_ns if layer else min(job.reduction_ns, 60_000)


def _finish(author: _Author) -> None:
    """Write the end of a step: the last reduction, the optimizer, and the loss."""
    job = author.job
    ranks = job.replicas_of(author.rank)
    if job.late_reduction_ns:
        author.collective(REDUCTIONS, ranks, job.replicated, job.late_reduction_ns, 4 * MESSAGE)
    if len(ranks) > 1 and (job.reduction_ns or job.late_reduction_ns):
        author.after(COMPUTE, REDUCTIONS)
    author.add(Thread(MAIN))
    author.busy(15_000)
    author.add(Open("Optimizer.step#AdamW.step", "user_annotation"))
    for _ in range(2):
        author.kernel("aten::_fused_adamw_", "aten::_fused_adamw_", author.compute(_ADAM, 0.8))
    author.add(Close())
    if job.is_synchronous:
        author.read("loss")
    author.busy(30_000)


def _step(author: _Author) -> None:
    """Write a step of a job without pipeline."""
    job = author.job
    _begin(author)
    author.add(Open("DistributedDataParallel.forward", "user_annotation"))
    for _ in range(job.layers):
        _forward(author)
    author.add(Close())
    author.kernel("aten::cross_entropy_loss", "aten::_log_softmax", author.compute(_LOSS, 0.3))
    author.add(Thread(AUTOGRAD))
    author.busy(20_000)
    for layer in reversed(range(job.layers)):
        _backward(author)
        _reduce(author, layer)
    _finish(author)


def _pipeline_step(author: _Author) -> None:
    """Write a step of one stage: all forward passes, then all backward passes."""
    job, per_stage = author.job, author.job.ranks // author.job.pp
    stage = author.rank // per_stage
    below, above = author.rank - per_stage, author.rank + per_stage
    _begin(author)
    for _ in range(job.microbatches):
        if stage:
            author.message("recv", DOWN, below, job.message_ns)
            author.after(COMPUTE, DOWN)
        for _ in range(job.layers):
            _forward(author)
        if stage < job.pp - 1:
            author.message("send", DOWN + 1, above, job.message_ns)
    author.add(Thread(AUTOGRAD))
    for _ in range(job.microbatches):
        if stage < job.pp - 1:
            author.message("recv", UP, above, job.message_ns)
            author.after(COMPUTE, UP)
        for _ in range(job.layers):
            _backward(author)
        if stage:
            author.message("send", UP + 1, below, job.message_ns)
    _reduce(author, 0)
    _finish(author)


def _cpu_step(author: _Author) -> None:
    """Write a step on a CPU: operators compute, gloo reduces on a thread of its own."""
    job = author.job
    author.busy(20_000)
    author.add(Open("enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "user_annotation"))
    author.busy(60_000, "loader")
    author.add(Close(), Open("DistributedDataParallel.forward", "user_annotation"))
    for _ in range(job.layers):
        for kind in LAYER:
            _cpu_operator(author, kind.operator, kind.inner, kind.weight)
    author.add(Close())
    for layer in reversed(range(job.layers)):
        for kind in reversed(LAYER):
            author.add(Open(f"autograd::engine::evaluate_function: {kind.node}"), Open(kind.node))
            _cpu_operator(author, "aten::mm", "aten::mm", 2 * kind.weight)
            author.add(Close(), Close())
        ranks = job.replicas_of(author.rank)
        if len(ranks) > 1:
            call = Call(
                "allreduce", ranks, "default_pg", author.number("gloo"), MESSAGE if layer else MESSAGE // 8
            )
            author.add(Open("c10d::allreduce_"), Open("record_param_comms", call=call), Busy(20_000))
            work = Work("gloo:all_reduce", GLOO, author.noisy(_reduction_ns(job, layer)), "gloo", call)
            author.add(Launch(work, 10_000, ""), Close(), Close())
            author.busy(5_000)
    author.add(Synchronise(3_000, "", GLOO), Open("Optimizer.step#AdamW.step", "user_annotation"))
    _cpu_operator(author, "aten::_foreach_addcdiv_", "aten::_foreach_addcdiv_", 1.0)
    author.add(Close())
    author.busy(30_000)


def _cpu_operator(author: _Author, operator: str, inner: str, weight: float) -> None:
    author.add(Open(operator))
    author.busy(3_000)
    if inner != operator:
        author.add(Open(inner))
    author.busy(weight * author.job.kernel_ns, "compute")
    author.add(*[Close()] * (1 + (inner != operator)))
    author.busy(author.job.python_ns / 4)
