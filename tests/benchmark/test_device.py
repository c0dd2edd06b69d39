"""``scripts/benchmark/device.py``: kernels of a trace by kind, and its commands."""

import device

KERNELS = """
attention: cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma
matmul: sm90_xmma_gemm_bf16bf16_bf16f32
matmul: nvjet_tst_128x64_64x8_2x1_v_bz_NNT
matmul by Triton: gemm_fusion_dot_12_0
copy: MemcpyD2D
sort, scatter: input_scatter_fusion
transpose: loop_transpose_fusion_3
reduction: input_reduce_fusion_2
other: loop_add_multiply_fusion
"""


def test_a_kernel_has_the_kind_of_its_name():
    for line in KERNELS.split("\n")[1:-1]:
        kind, _, kernel = line.partition(": ")
        assert device.kind(kernel) == kind


def test_every_part_has_scripts_that_are_there():
    for plan in (device.PLAN, device.TINY):
        assert {line[0] for line in plan.split("\n") if line[:1].strip()} == {*"abcde"}
        for word in plan.split():
            path = device.ROOT / word.replace("{here}", "scripts/benchmark")
            assert path.is_file() or not word.startswith("{here}")
