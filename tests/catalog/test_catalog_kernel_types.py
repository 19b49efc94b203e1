"""Kernel types: names as profilers record them, one type each."""

from __future__ import annotations

import time

import pytest

from ccl_bench.analysis.device.short_names import short_name
from ccl_bench.catalog.kernel_types import kernel_type, types

NAMES = {
    "fused": [
        "void cutlass::Kernel2<bytedance::flux::FluxGemmKernel<bytedance::flux::GemmMeta<x>>>(int)",
        "void deep_gemm::sm100_fp8_fp4_mega_moe_impl<8>(void*)",
        "kernel_cutlass_gemm_allreduce_sm100",
        "_matmul_reduce_scatter_kernel",
        "a2a_gemm_lsa_kernel",
    ],
    "communication": [
        "ncclDevKernel_AllReduce_Sum_bf16_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
        "void deep_ep::internode::combine<false, 8>(int4*)",
    ],
    "gemm": [
        "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn",
        "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize192x128x32_stage4_warpsize4x2x1_tensor16x8x16_kernel",
        "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_bias_TNN",
        "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_relu_f16_128x128_32x5_tn_align8>(Params)",
        "void cutlass::device_kernel<dpsk::grouped_gemm::cuda::fp8_ptp128c::GemmKernel>(Params)",
        "Cijk_Ailk_Bljk_BBS_BH_MT128x128x64_MI32x32x8x1_SN_1LDSB0",
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, true, false>()",
        "void gemv2T_kernel_val<int, int, __nv_bfloat16, __nv_bfloat16, float, 128, 16, 4>()",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x64x64_execute",
        "cudnn_infer_ampere_scudnn_128x64_relu_xregs_large_nn_v1",
        "fused_moe_kernel",
        "bmm_Bfloat16_E2m1E2m1_Fp32_t128x8x512_s5_et128x8_m128x8x64_cga1x1x1_16dp256b_rM_TN_dynBatch_sm100f",
    ],
    "attention": [
        "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, (int)64>>(T1)",
        "void cutlass::device_kernel<flash::FlashAttnBwdPreprocess<cute::tuple<cute::C<64>>>>()",
        "fmha_cutlassF_bf16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel::Params)",
        "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_128x128x64_4x1x1_kernel0_0",
        "triton_tem_fused_flex_attention_0",
        "void flashinfer::BatchPrefillWithPagedKVCacheKernel<Params>(Params)",
        "void flashinfer::PersistentVariableLengthMergeStatesKernel<8, 16>(float*)",
        "void flashinfer::mla::BatchMLAPagedAttentionKernel<Params>(Params)",
        "_sage_fwd_mask",
        "sage_fwd",
    ],
    "elementwise": [
        "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>>()",
        "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda()>()",
        "void at::native::elementwise_kernel<128, 2, at::native::gpu_kernel_impl_nocast<at::native::Mul>>()",
        "triton_poi_fused_add_mul_silu_3",
        "void flashinfer::activation::act_and_mul_kernel<__nv_bfloat16, &silu>(__nv_bfloat16*)",
        "void flashinfer::BatchQKApplyRotaryPosIdsCosSinCacheKernel<true, 64>(float*)",
        "void flashinfer::quantization::PackBitsKernel<1>(bool*)",
        "void vllm::rotary_embedding_kernel<c10::BFloat16, true>(long const*)",
        "void cuda::per_channel_cast_and_transpose<256, 128, true>(void const*)",
        "void vllm::act_and_mul_kernel<c10::BFloat16, &vllm::silu_kernel>()",
    ],
    "reduction": [
        "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float>>()",
        "void (anonymous namespace)::softmax_warp_forward<float, float, float, 10, true, false>()",
        "triton_red_fused_mean_pow_2",
        "void flashinfer::sampling::TopKTopPSamplingFromProbKernel<1024>(float*)",
        "triton_per_fused_sum_5",
        "void cub::DeviceReduceByKeyKernel<cub::DispatchReduceByKey<long*, long*>>()",
        "void at::native::(anonymous namespace)::max_pool_forward_nchw<float, float>(int)",
    ],
    "normalisation": [
        "void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float, float, false>()",
        "void cuApplyLayerNorm<c10::Half, float, c10::Half>(c10::Half*)",
        "void vllm::rms_norm_kernel<c10::BFloat16>(c10::BFloat16*)",
        "void flashinfer::norm::FusedAddRMSNormKernel<8, __nv_bfloat16>(__nv_bfloat16*)",
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, 512, true, 1, true>(cudnnTensorStruct)",
        "void layer_norm::ln_bwd_kernel<layer_norm::Kernel_traits<__nv_bfloat16>>()",
        "triton_per_fused_native_layer_norm_7",
    ],
    "embedding": [
        "void split_embedding_codegen_forward_unweighted_kernel<float, float, float, false, long>()",
        "void at::native::(anonymous namespace)::indexSelectLargeIndex<c10::Half, long, unsigned int, 2>()",
        "triton_poi_fused_embedding_0",
    ],
    "optimizer": [
        "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<FusedAdamMathFunctor<float>>()",
        "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float, float, int>>()",
    ],
    "moe": [
        "void dpsk::ep::cuda::get_dispatch_layout<256, 32, 8>(long const*, int*)",
        "void vllm::moe::topkGatingSoftmax<4, 64, 4, 16, int>(float const*)",
        "_permute_kernel",
    ],
    "memory": [
        "Memcpy HtoD (Pinned -> Device)",
        "Memset (Device)",
        "[CUDA memcpy Device-to-Device]",
        "void at::native::(anonymous namespace)::CatArrayBatchedCopy<float, unsigned int, 2, 64, 64>(float*)",
        "void cudnn::ops::nchwToNhwcKernel<float, float, float, false, true>()",
        "void at::native::<unnamed>::multi_tensor_apply_kernel<at::native::Copy<long, long>>()",
    ],
    "other": ["void jacobi_kernel<32, 32>(float*, float const*)", "triton__0d1d2d3de", ""],
}


@pytest.mark.parametrize(
    ("expected", "name"), [(kind, name) for kind, rows in NAMES.items() for name in rows]
)
def test_a_kernel_has_the_type_its_name_shows(expected: str, name: str) -> None:
    assert kernel_type(name) == expected


def test_every_type_is_met() -> None:
    assert set(NAMES) == set(types())


@pytest.mark.parametrize("part", ["a_", "std::array<char*, 3>, ", "(", "<", "1", "ncclKernel_", "cutlass"])
def test_the_time_for_a_name_does_not_grow_with_its_length(part: str) -> None:
    def seconds(name: str) -> float:
        began = time.process_time()
        kernel_type(name)
        short_name(name)
        return time.process_time() - began

    name = part * (16_384 // len(part))
    assert seconds(name * 5) < 2 + 3 * seconds(name)


def test_only_the_beginning_of_a_name_is_searched() -> None:
    assert kernel_type("a" * 8_188 + "gemm") == "gemm"
    assert kernel_type("a" * 8_189 + "gemm") == "other"
    assert short_name("a<" + "b" * 8_189 + ">c") == "a<...>"
