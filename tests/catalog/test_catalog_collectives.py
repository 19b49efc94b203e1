"""Collectives: names in metadata, kernels and ranges, and the factors of nccl-tests."""

from __future__ import annotations

import pytest

from ccl_bench.base.errors import NotApplicable, UsageError
from ccl_bench.catalog.collectives import (
    FUSED,
    bus_factor,
    canonical,
    collective,
    is_bookkeeping,
    names,
    of_annotation,
    of_kernel,
    of_launcher,
)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ("allreduce", "all_reduce"),
        ("allreduce_coalesced", "all_reduce"),
        ("all_gather", "all_gather"),
        ("_allgather_base", "all_gather"),
        ("allgather_into_tensor_coalesced", "all_gather"),
        ("reduce_scatter", "reduce_scatter"),
        ("_reduce_scatter_base", "reduce_scatter"),
        ("reduce_scatter_tensor_coalesced", "reduce_scatter"),
        ("all_to_all", "all_to_all"),
        ("all_to_allv", "all_to_all"),
        ("alltoall_base", "all_to_all"),
        ("broadcast", "broadcast"),
        ("_broadcast_oop", "broadcast"),
        ("reduce", "reduce"),
        ("_reduce_oop", "reduce"),
        ("gather", "gather"),
        ("scatter", "scatter"),
        ("send", "send"),
        ("recv", "recv"),
        ("barrier", "barrier"),
        ("nccl:coalesced", "coalesced"),
    ],
)
def test_a_recorded_collective_name_has_one_canonical_name(recorded: str, expected: str) -> None:
    assert canonical(recorded) == expected


def test_waiting_is_bookkeeping_and_no_collective() -> None:
    assert canonical("wait") is None
    assert is_bookkeeping("wait")
    assert not is_bookkeeping("allreduce")


def test_an_unknown_name_is_neither_a_collective_nor_bookkeeping() -> None:
    assert canonical("hyper_reduce") is None
    assert not is_bookkeeping("hyper_reduce")


@pytest.mark.parametrize(
    ("kernel", "expected"),
    [
        ("ncclDevKernel_AllReduce_Sum_f16_RING_LL(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclKernel_AllReduce_RING_LL_Sum_float(ncclDevComm*, unsigned long, ncclWork*)", "all_reduce"),
        ("ncclAllReduceRingLLKernel_sum_f32(ncclColl)", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_AGxLL_R_sum_f8e4m3(ncclSymkDevWorkArgs4K)", "all_reduce"),
        ("ncclKernel_AllGather_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "all_gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce_scatter"),
        ("ncclDevKernel_Reduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", "reduce"),
        ("ncclKernel_Broadcast_RING_LL_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "broadcast"),
        ("ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)", "send_recv"),
        ("ncclKernel_SendRecv_RING_SIMPLE_Sum_int8_t(ncclDevComm*, unsigned long, ncclWork*)", "send_recv"),
        ("ncclDevKernel_Generic_1(ncclDevKernelArgsStorage<4096ul>)", "other_communication"),
        ("rcclGenericKernel<1, false>(ncclDevKernelArgsStorage<4096ul>)", "other_communication"),
        ("void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>(vllm::RankData*)", "all_reduce"),
        (
            "void flashinfer::trtllm_allreduce_fusion::allreduce_fusion_kernel_oneshot_lamport<1>()",
            "all_reduce",
        ),
        ("void mscclpp::collective::allreduceRsAg<float>(float*)", "all_reduce"),
        ("mscclKernel_Sum_half_Simple_false(ncclDevComm*)", "other_communication"),
        (
            "void tensorrt_llm::kernels::oneShotAllReduceKernel<__half, 8, true>(AllReduceParams)",
            "all_reduce",
        ),
        ("void trt_llm::twoShotAllReduceKernel<__nv_bfloat16, 4>(trt_llm::AllReduceParams)", "all_reduce"),
        ("void tensorrt_llm::kernels::lowPrecisionTwoShotAllReduceKernel<4>(int)", "all_reduce"),
        (
            "void flashinfer::trtllm_mnnvl_allreduce::oneshotAllreduceFusionKernel<8, float>(int)",
            "all_reduce",
        ),
        ("void flashinfer::trtllm_mnnvl_allreduce::twoshotAllreduceKernel<8, float>(int)", "all_reduce"),
        ("ncclSymkDevKernel_AllReduce_AGxLLMC_R_sum_bf16(ncclSymkDevWorkArgs4K)", "all_reduce"),
        ("ncclSymkDevKernel_ReduceScatter_LDMC_sum_f32(ncclSymkDevWorkArgs4K)", "reduce_scatter"),
        ("ncclSymkDevKernel_AllGather_STMC(ncclSymkDevWorkArgs4K)", "all_gather"),
        ("kuserbuffers_pushsend(int*, int*, int4*, int4*, int)", "send_recv"),
        ("void userbuffers_fp16_sum_inplace_gpu_rr_rs_oop<8>(int)", "reduce_scatter"),
        ("void userbuffers_fp16_sum_inplace_gpu_mc_ag<8>(int)", "all_gather"),
        ("void userbuffers_fp16_sum_inplace_gpu_rw<8>(int)", "all_reduce"),
        ("kuserbuffers_inc(int*)", "other_communication"),
        ("oneccl_allreduce_pcie", "all_reduce"),
        ("oneccl_alltoallv_large", "all_to_all"),
        ("oneccl_copy_kernel", "other_communication"),
        ("oneccl_reduce_scatter_large", "reduce_scatter"),
        ("hcom_allGather__123_0_1", "all_gather"),
        ("hcom_reduceScatterv__123_0_1", "reduce_scatter"),
        ("hcom_alltoallvc__123_0_1", "all_to_all"),
        ("hcom_batchSendRecv__128_4_1", "send_recv"),
        ("hcom_receive__128_4_1", "send_recv"),
        ("hcom_broadcast__128_4_1", "broadcast"),
        ("hcom_reduce__128_4_1", "reduce"),
        ("hcom_scatter__128_4_1", "scatter"),
        ("hccl_barrier__128_4_1", "barrier"),
        ("hccl_batchPut__128_4_1", "other_communication"),
        ("ncclDevKernel_Generic_4(ncclDevKernelArgsStorage<4096ul>)", "other_communication"),
        ("mscclKernel_Sum_half_LL_false(ncclDevComm*)", "other_communication"),
        ("void a2a_dispatch_send_kernel<true, 8>(int)", "all_to_all"),
        ("void a2a_combine_recv_kernel<8>(int)", "all_to_all"),
        ("void aiter::reduce_scatter_cross_device_store<float, 8>(aiter::RankData*)", "reduce_scatter"),
        ("void aiter::allgather_lastdim<float, 8>(aiter::RankData*)", "all_gather"),
        ("void aiter::cross_device_reduce_2stage<float, 8>(aiter::RankData*)", "all_reduce"),
        ("nvshmemi_barrier_all_kernel(int)", "barrier"),
        ("void dpsk::ep::internode::dispatch<false, 8, true, 8>(int4*, float*)", "all_to_all"),
        ("void deep_ep::intranode::combine<__nv_bfloat16, 4, 768>(__nv_bfloat16*)", "all_to_all"),
        ("void deep_ep::internode_ll::dispatch<true, false, 7168>(void*)", "all_to_all"),
        ("void dpsk::ep::internode::cached_notify<false>(int, int)", "other_communication"),
        ("void dpsk::ep::internode::notify_dispatch<false, 8>(int const*)", "other_communication"),
        ("void deep_ep::intranode::barrier<8>(int**, int)", "barrier"),
    ],
)
def test_a_communication_kernel_is_recognised(kernel: str, expected: str) -> None:
    assert of_kernel(kernel) == expected


@pytest.mark.parametrize(
    "kernel",
    [
        "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*, cub::Sum>>()",
        "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::MeanOps<float>>>()",
        "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
        "void deep_ep::layout::get_dispatch_layout<256, 32, 8>(long const*, int*)",
        "void at::native::_scatter_gather_elementwise_kernel<128, 4, at::native::ReduceAdd>()",
        "void oneflow::cuda::softmax::SoftmaxBlockSMemImpl<BlockAllReduce>()",
        "void c10d::checkForNaN<float>(float*, unsigned long)",
        "void cutlass::device_kernel<flash::FlashAttnBwd<flash::CollectiveMainloopBwd<2>>>()",
        "Memcpy PtoP (Device -> Device)",
        "chunk_cat_cuda_kernel",
        "block_all_reduce_sum_f32_f32_kernel",
        "void aiter::local_device_load_rmsnorm_512<float>(int)",
        "void deep_gemm::sm100_fp8_fp4_mega_moe_impl<8>(void*)",
    ],
)
def test_an_ordinary_kernel_is_no_communication(kernel: str) -> None:
    assert of_kernel(kernel) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("nccl:all_to_all, op_id = 991254", "all_to_all"),
        ("nccl:all_reduce", "all_reduce"),
        ("nccl:_all_gather_base", "all_gather"),
        ("nccl:all_reduce_barrier", "barrier"),
        ("nccl:send 0->1", "send"),
        ("nccl:recv 1<-0", "recv"),
        ("nccl:coalesced", "coalesced"),
        ("gloo:all_gather", "all_gather"),
        ("gloo:sparse_all_reduce", "all_reduce"),
        ("c10d::allreduce_", "all_reduce"),
        ("c10d::_reduce_scatter_base_", "reduce_scatter"),
        ("c10d::alltoall_base_", "all_to_all"),
        ("_c10d_functional::all_gather_into_tensor", "all_gather"),
        ("ncclAllReduce", "all_reduce"),
        ("ncclSend", "send"),
    ],
)
def test_a_range_of_a_library_names_its_collective(name: str, expected: str) -> None:
    assert of_annotation(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "ncclGroupStart",
        "ncclGroupEnd",
        "ncclCommCount",
        "_c10d_functional::wait_tensor",
        "_c10d_functional::_wrap_tensor_autograd",
        "reduce",
        "broadcast weights",
        "aten::gather",
        "DistributedDataParallel.forward",
    ],
)
def test_a_range_without_a_collective_names_none(name: str) -> None:
    assert of_annotation(name) is None


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("symm_mem::fused_all_gather_matmul", FUSED),
        ("symm_mem::fused_scaled_matmul_reduce_scatter", FUSED),
        ("symm_mem::_async_input_mm", FUSED),
        ("symm_mem::multimem_one_shot_all_reduce_out", "all_reduce"),
        ("symm_mem::_low_contention_all_gather", "all_gather"),
        ("symm_mem::all_to_all_vdev", "all_to_all"),
        ("_C_custom_ar::qr_all_reduce", "all_reduce"),
        ("vllm::inplace_all_reduce", "all_reduce"),
        ("c10d::send", "send"),
        ("nccl:all_gather", "all_gather"),
        ("_C_custom_ar::register_buffer", None),
        ("vllm::moe_forward", None),
        ("fsdp::all_gather_copy_in", None),
        ("_c10d_functional::wait_tensor", None),
        ("torch::distributed::reducer::mul_out", None),
        ("aten::mm", None),
    ],
)
def test_an_operator_shows_what_it_launches(operator: str, expected: str | None) -> None:
    assert of_launcher(operator) == expected


@pytest.mark.parametrize(
    ("name", "factor"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("all_to_allv", 1.0),
        ("gather", 7 / 8),
        ("scatter", 7 / 8),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send", 1.0),
        ("recv", 1.0),
        ("barrier", 0.0),
    ],
)
def test_the_bus_factor_over_eight_ranks_is_that_of_nccl_tests(name: str, factor: float) -> None:
    assert bus_factor(name, 8) == pytest.approx(factor, rel=1e-15)


def test_an_all_gather_of_16_mib_in_100_us_has_146_80_gb_per_s_of_bus_bandwidth() -> None:
    algorithm_bandwidth = 16 * 2**20 / 100e-6
    assert algorithm_bandwidth / 1e9 == pytest.approx(167.77, abs=0.005)
    assert algorithm_bandwidth * bus_factor("all_gather", 8) / 1e9 == pytest.approx(146.80, abs=0.005)


def test_a_group_of_one_moves_nothing() -> None:
    assert bus_factor("all_reduce", 1) == 0
    assert bus_factor("broadcast", 1) == 0


def test_a_coalesced_call_has_no_bus_bandwidth() -> None:
    with pytest.raises(NotApplicable):
        bus_factor("coalesced", 8)


def test_an_impossible_group_or_collective_is_refused() -> None:
    with pytest.raises(UsageError, match="0 ranks"):
        bus_factor("all_reduce", 0)
    with pytest.raises(UsageError, match="did you mean all_reduce"):
        bus_factor("all_reduze", 8)


def test_waiting_is_distinguished_from_transfer_only_where_nobody_leaves_early() -> None:
    assert {name for name in names() if collective(name).is_symmetric} == {
        "all_reduce",
        "all_gather",
        "reduce_scatter",
        "all_to_all",
        "barrier",
    }
    assert not collective("all_to_allv").is_symmetric


def test_the_message_of_a_collective_is_the_unsplit_side() -> None:
    assert collective("all_gather").size == "out"
    assert collective("reduce_scatter").size == "in"
    assert collective("all_reduce").size == "in"
    assert collective("barrier").size == "none"
    assert not collective("barrier").transfers


def test_rooted_and_point_to_point_calls_are_marked() -> None:
    assert {name for name in names() if collective(name).is_rooted} == {
        "broadcast",
        "reduce",
        "gather",
        "scatter",
    }
    assert {name for name in names() if collective(name).is_point_to_point} == {"send", "recv", "send_recv"}


def test_every_canonical_name_is_its_own_spelling() -> None:
    assert [canonical(name) for name in names()] == names()
