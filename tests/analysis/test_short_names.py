"""Names of kernels, shortened: names that PyTorch, CUTLASS and NCCL really give."""

from __future__ import annotations

import pytest

from ccl_bench.analysis.device.short_names import LONGEST, short_name


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("ampere_sgemm_32x128_nt", "ampere_sgemm_32x128_nt"),
        (
            "ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)",
            "ncclKernel_AllReduce_RING_LL_Sum_float",
        ),
        (
            "void (anonymous namespace)::softmax_warp_forward<float, 10, true>(float*, int)",
            "softmax_warp_forward<...>",
        ),
        (
            "void at::native::elementwise_kernel<2, at::gpu<at::native::CUDAFunctor_add<float> >(int)>(int)",
            "at::native::elementwise_kernel<...CUDAFunctor_add...>",
        ),
        (
            "std::enable_if<!(false), void>::type kernel2<float>(float*)",
            "std::enable_if<...>::type kernel2<...>",
        ),
        ("void broken<float", "broken<float"),
        ("void some::where::operator<(int, int)", "some::where::operator<"),
        ("", ""),
    ],
)
def test_template_arguments_are_folded_except_the_operation(name: str, short: str) -> None:
    assert short_name(name) == short


def test_a_mangled_name_is_cut() -> None:
    assert short_name("_ZN19cutlass" * 40) == ("_ZN19cutlass" * 40)[: LONGEST - 3] + "..."
