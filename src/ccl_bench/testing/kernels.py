"""The kernels and operators that a layer is made of, under the names that PyTorch records on an A100."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kind of kernel and the operator that launches it."""

    name: str
    """Name of the kernel."""
    operator: str
    """Operator that launches it."""
    node: str = ""
    """Autograd node of the operator, for kernels of the backward pass."""
    grid: tuple[int, int, int] = (864, 1, 1)
    """Blocks."""
    block: tuple[int, int, int] = (256, 1, 1)
    """Threads in a block."""
    registers: int = 32
    """Registers per thread."""
    shared_memory: int = 0
    """Shared memory per block, bytes."""
    occupancy: int = 50
    """Estimated achieved occupancy, %."""


_NATIVE = "at::native::(anonymous namespace)::"
_GEMM = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x5_"
_FLASH = "pytorch_flash::Flash_{}_kernel_traits<128, 64, 128, 4, false, false, cutlass::bfloat16_t>"
_POINTWISE = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::{0}, std::array<char*, {1}ul> >"
    "(int, at::native::{0}, std::array<char*, {1}ul>)"
)
_GELU = "GeluCUDAKernelImpl(at::TensorIteratorBase&)::{lambda(c10::BFloat16)#1}"
_GELU_BACKWARD = (
    "GeluBackwardCUDAKernelImpl(at::TensorIteratorBase&)::{lambda(c10::BFloat16, c10::BFloat16)#1}"
)


def _gemm(transposed: str, operator: str, node: str = "") -> Kernel:
    return Kernel(_GEMM + transposed, operator, node, (432, 1, 1), (128, 1, 1), 230, 81_920, 13)


def _pointwise(functor: str, arrays: int, operator: str, node: str = "") -> Kernel:
    return Kernel(_POINTWISE.format(functor, arrays), operator, node, (2048, 1, 1), (128, 1, 1))


def _flash(direction: str, function: str, operator: str, node: str = "") -> Kernel:
    traits = f"{_FLASH.format(direction)}, true, false"
    name = f"void pytorch_flash::{function}<{traits}>(pytorch_flash::Flash_{direction}_params)"
    return Kernel(name, operator, node, (16, 4, 32), (128, 1, 1), 255, 49_152, 12)


LAYER_NORM = Kernel(
    f"void {_NATIVE}vectorized_layer_norm_kernel<c10::BFloat16, float>(int, float, c10::BFloat16 const*, "
    "c10::BFloat16 const*, c10::BFloat16 const*, float*, float*, c10::BFloat16*)",
    "aten::layer_norm",
)
LAYER_NORM_BACKWARD = Kernel(
    f"void {_NATIVE}layer_norm_grad_input_kernel_vectorized<c10::BFloat16, float>(c10::BFloat16 const*, "
    "c10::BFloat16 const*, float const*, float const*, c10::BFloat16 const*, c10::BFloat16*, int)",
    "aten::native_layer_norm_backward",
    "NativeLayerNormBackward0",
)

FORWARD = (
    (LAYER_NORM, 5),
    (_gemm("tn", "aten::addmm"), 30),
    (_flash("fwd", "flash_fwd_kernel", "aten::_flash_attention_forward"), 20),
    (_pointwise(_GELU, 2, "aten::gelu"), 5),
    (_gemm("tn", "aten::addmm"), 40),
)
"""Kernels of the forward pass of a layer with their share of its time, %."""

BACKWARD = (
    (_gemm("nn", "aten::mm", "AddmmBackward0"), 40),
    (_pointwise(_GELU_BACKWARD, 3, "aten::gelu_backward", "GeluBackward0"), 5),
    (
        _flash(
            "bwd",
            "flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel",
            "aten::_flash_attention_backward",
            "ScaledDotProductFlashAttentionBackward0",
        ),
        20,
    ),
    (_gemm("nn", "aten::mm", "AddmmBackward0"), 30),
    (LAYER_NORM_BACKWARD, 5),
)
"""Kernels of the backward pass, the counterparts of FORWARD in reverse."""

FORWARD_HALF, BACKWARD_HALF = 3, 2
"""Kernels before the activations are exchanged in the middle of a layer."""

EXPERT = _gemm("tn", "aten::_grouped_mm")
EXPERT_BACKWARD = _gemm("nn", "aten::_grouped_mm", "GroupedMmBackward0")

ADAM = Kernel(
    f"void {_NATIVE}multi_tensor_apply_kernel<{_NATIVE}FusedOptimizerTensorListMetadata<4>, "
    f"{_NATIVE}FusedAdamMathFunctor<float, 4, ({_NATIVE}ADAM_MODE)1, false> >({_NATIVE}"
    "FusedOptimizerTensorListMetadata<4>)",
    "aten::_fused_adamw_",
    grid=(320, 1, 1),
    block=(512, 1, 1),
)
COPY_OUT = Kernel(
    f"void {_NATIVE}split_with_sizes_copy_out_contiguous_no_cast_kernel"
    "(char**, char**, long*, long*, long*, long, long)",
    "fsdp::split_with_sizes_copy",
)
COPY_IN = Kernel(
    f"void {_NATIVE}chunk_cat_cuda_kernel<float, c10::BFloat16>"
    "(c10::BFloat16**, float*, long*, long*, long*, long*, long)",
    "fsdp::chunk_cat",
)

_NCCL_TYPES = {"BFloat16": "bf16", "Float": "f32", "Half": "f16", "Double": "f64", "Int": "i32"}


def nccl_kernel(collective: str, dtype: str) -> str:
    """Return the name of NCCL's kernel for a collective."""
    kind = _NCCL_TYPES.get(dtype, "u8")
    stem = {
        "all_reduce": f"AllReduce_Sum_{kind}_RING_LL",
        "all_gather": "AllGather_RING_LL",
        "reduce_scatter": f"ReduceScatter_Sum_{kind}_RING_LL",
    }.get(collective, "SendRecv")
    return f"ncclDevKernel_{stem}(ncclDevKernelArgsStorage<4096ul>)"
