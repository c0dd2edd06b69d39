"""What is read from the text of a compiled program, counted by hand."""

from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from jaxformer.training.program import Program

# A loop of six runs with a fused matmul, a slice of what is stacked and an update in
# place; what the layout S(1) names lies in a TPU's fast memory.
TEXT = Path(__file__).with_name("program.hlo").read_text()

MATMUL = 8 * 16 * 2 + 16 * 4 * 2 + 8 * 4 * 4


@pytest.fixture
def program():
    return Program(TEXT)


def test_kernels_of_a_loop_count_as_often_as_it_runs(program):
    """Three fusions in six runs; parameters, tuples and the ends of copies are none."""
    found = [
        (kernel.instruction.name, kernel.times, kernel.bytes)
        for kernel in program.kernels()
    ]
    assert found == [
        ("product", 6, MATMUL),
        ("one", 6, 8 * 4 * 4 + 4 + 8 * 4 * 4),
        ("put.1", 6, 8 * 4 * 4 + 8 * 4 * 4 + 4),
        ("sums", 1, 8 * 16 * 2 + 400),
        ("fetched", 1, 400),
        ("reduced", 1, 0),
        ("out", 1, 400),
    ]


def test_a_loop_that_a_tpu_counts_in_its_condition():
    """The compiler for TPUs names no number of runs: the index is below a constant."""
    text = TEXT.replace(', backend_config={"known_trip_count":{"n":"6"}}', "")
    assert {kernel.times for kernel in Program(text).kernels()} == {1}
    counted = """%n.1 = s32[] get-tuple-element(%carry.1), index=0
  %last = s32[]{:T(128)} constant(5)
  ROOT %go = pred[] compare(%n.1, %last), direction=LT"""
    text = text.replace("ROOT %go = pred[] constant(true)", counted)
    assert {kernel.times for kernel in Program(text).kernels()} == {1, 5}


def test_arithmetic_and_time(program):
    """A matmul of [8, 16] and [16, 4]; a kernel takes the longer of its two times."""
    product = program.kernels()[0]
    assert product.flops == 2 * 8 * 16 * 4
    assert product.instruction.op_name == "jit(step)/layer/dot_general"
    assert product.seconds(bandwidth=1.0, peak=1e9) == 6 * MATMUL
    assert product.seconds(bandwidth=1e9, peak=1.0) == 6 * 2 * 8 * 16 * 4


def test_what_devices_exchange(program):
    assert program.exchanged() == {"all-reduce": 400}


def test_collectives_of_several_arrays_that_are_only_begun():
    """A gather is as large as its results, a scatter as its operands, whether a kernel
    waits for it or begins it. That it names its operands writes nothing.
    """
    program = Program(
        """
ENTRY %main (a: f32[2], b: f32[3], c: f32[16]) -> f32[16] {
  %a = f32[2]{0} parameter(0)
  %b = f32[3]{0} parameter(1)
  %c = f32[16]{0} parameter(2)
  %g = f32[16]{0} all-gather(%a), dimensions={0}
  %x = ((f32[2]{0}, f32[3]{0}), (f32[16]{0}, f32[24]{0})) all-gather-start(%a, %b)
  %s = f32[2]{0} reduce-scatter(%c), to_apply=%add
  %y = ((f32[16]{0}), f32[2]{0}) reduce-scatter-start(%c), to_apply=%add
  %z = (f32[2]{0}, f32[2]{0}, u32[], u32[]) collective-permute-start(%a)
  %r = f32[16]{0} all-reduce-start(%c), to_apply=%add
  ROOT %t = (f32[2]{0}, f32[16]{0}) all-reduce-start(%a, %c), to_apply=%add
}
"""
    )
    assert program.exchanged() == {
        "all-gather": 4 * (16 + 16 + 24),
        "reduce-scatter": 4 * (16 + 16),
        "collective-permute": 4 * 2,
        "all-reduce": 4 * (16 + 2 + 16),
    }
    moved = [2 + 16, 5 + 40, 16 + 2, 16 + 2, 2 + 2, 16 + 16, 18 + 18]
    assert [kernel.bytes for kernel in program.kernels()] == [4 * n for n in moved]


def test_a_program_of_this_machine_can_be_read():
    """A matmul by XLA for the CPU, which writes what it computes."""
    x = jnp.ones((32, 64))
    text = jax.jit(lambda x: jnp.tanh(x * 2.0) + x).lower(x).compile().as_text()
    (kernel,) = Program(text).kernels()
    assert kernel.bytes == 2 * 32 * 64 * 4
