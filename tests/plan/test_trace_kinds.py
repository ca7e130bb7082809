"""Names of kernels, operators and collectives say what bounds them."""

import pytest

from joulewise.plan.trace_kinds import Kind, is_work, kind_of, short_name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("nvjet_tst_192x192_64x4_2x1_v_bz_coopA_NTN", Kind.COMPUTE),
        ("ampere_bf16_s16816gemm_bf16_128x256_ldg8_f2f_stages_64x3_tn", Kind.COMPUTE),
        ("void cutlass::Kernel2<cutlass_80_wmma_tensorop_bf16_s161616gemm_bf16_16x16_128x2_tn_align8>()", Kind.COMPUTE),
        ("void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>()", Kind.COMPUTE),
        ("sm80_xmma_fprop_implicit_gemm_bf16bf16_bf16f32_f32_nhwckrsc_nchw", Kind.COMPUTE),
        ("triton_tem_fused_mm_3", Kind.COMPUTE),
        ("aten::addmm", Kind.COMPUTE),
        ("aten::convolution_backward", Kind.COMPUTE),
        ("triton_poi_fused_mm_add_gelu_2", Kind.MEMORY),
        ("void at::native::vectorized_elementwise_kernel<4, at::native::AddFunctor<float>>()", Kind.MEMORY),
        ("void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...>()", Kind.MEMORY),
        ("aten::copy_", Kind.MEMORY),
        ("void gemv2T_kernel_val<int, int, float>()", Kind.MEMORY),
        ("void cublasLt::splitKreduce_kernel<32, 16, int>()", Kind.MEMORY),
        ("void cudnn::fusion::convert_dq_to_16bits<true>()", Kind.MEMORY),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_bprop_wgmma_f16_knob_26_64x64x128", Kind.COMPUTE),
        ("aten::convert_dtype", Kind.MEMORY),
        ("ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)", Kind.COMMUNICATION),
        ("ncclKernel_AllReduce_RING_LL_Sum_bf16(ncclWorkElem)", Kind.COMMUNICATION),
        ("void one_shot_all_reduce_kernel<c10::BFloat16>()", Kind.COMMUNICATION),
        ("gloo:all_reduce", Kind.COMMUNICATION),
    ],
)
def test_a_name_tells_its_kind(name, kind):
    assert kind_of(name) is kind


def test_a_copy_is_of_the_bus_or_of_the_memory():
    assert kind_of("Memcpy DtoH (Device -> Pageable)", "gpu_memcpy") is Kind.COPY
    assert kind_of("Memcpy DtoD (Device -> Device)", "gpu_memcpy") is Kind.MEMORY
    assert kind_of("Memset (Device)", "gpu_memset") is Kind.MEMORY


def test_engines_and_waits_are_no_work():
    assert all(is_work(name) for name in ("aten::mm", "fsdp::chunk_cat", "mylib::fused_op", "gloo:all_gather"))
    not_work = ("PythonSubclass", "AddmmBackward0", "autograd::engine::evaluate_function: X", "c10d::allreduce_")
    assert not any(is_work(name) for name in (*not_work, "_c10d_functional::wait_tensor", "torch::autograd::Grad"))


def test_names_are_shortened_for_people():
    assert short_name("void at::native::(anonymous namespace)::layer_norm<float, Foo<4>>(int, float)") == "layer_norm"
    assert short_name("ncclDevKernel_AllGather_RING_LL(ncclArgs<4ul>)") == "ncclDevKernel_AllGather_RING_LL"
    assert short_name("cudnn_generated_fort_native_sdpa_sm90_flash") == "sdpa_sm90_flash"
    assert short_name("<odd>") == "<odd>"
