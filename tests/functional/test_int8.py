"""Weights in 8 bits and tables in both layouts, against NumPy in whole numbers and
float64.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.functional import layers
from jaxformer.functional.int8 import Table, multiply_int8, multiply_int8_rows, quantize


def draw(seed, *shape):
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def rounded(x, axis):
    """Scale the largest of each output to 127 and round; give the numbers that are
    meant, in float64.
    """
    scales = np.abs(x).max(axis=axis, keepdims=True).astype(np.float64) / 127
    return np.rint(x / scales) * scales


def rounded_rows(x):
    """Round each row to 255 numbers from its least to its largest, 0 among them;
    give what is meant, in float64.
    """
    least, largest = (
        x.astype(np.float64).min(1, keepdims=True),
        x.astype(np.float64).max(1, keepdims=True),
    )
    steps = (largest - least) / 254
    first = np.rint((least + largest) / 2 / steps) - 128
    return np.clip(np.rint(x / steps), first, first + 255) * steps


@pytest.mark.parametrize("axes", [(0,), (1,), (0, 1)])
def test_weights_are_rounded_by_at_most_half_a_step(axes):
    """Each output's largest weight becomes 127 or -127, and no weight is off by more
    than half its scale.
    """
    weights = draw(1, 12, 7, 5) * np.geomspace(1e-3, 1e3, 5, dtype=np.float32)
    found = quantize(jnp.asarray(weights), axes)
    assert found.values.dtype == jnp.int8
    assert found.values.shape == weights.shape
    assert found.scales.shape == tuple(
        n for i, n in enumerate(weights.shape) if i not in axes
    )
    assert (np.abs(np.asarray(found.values, np.int32)).max(axis=axes) == 127).all()
    scales = np.expand_dims(found.scales, axes)
    meant = np.asarray(found.values) * scales.astype(np.float64)
    np.testing.assert_allclose(
        found.sums, meant.sum(axes), rtol=1e-6, atol=1e-6 * np.abs(meant).max()
    )
    assert (
        np.abs(np.asarray(found.values) * scales - weights) <= scales * (0.5 + 1e-5)
    ).all()


@pytest.mark.parametrize("shift", [0.0, 3.0])
def test_products_are_those_of_the_rounded_operands(shift):
    """Whole numbers are added up, so that the product is NumPy's in float64 of what
    both operands were rounded to.
    """
    x, kernel = draw(2, 3, 4, 96) + np.float32(shift), draw(3, 96, 6, 8)
    both = rounded_rows(x.reshape(12, 96)), rounded(kernel.reshape(96, 48), 0)
    expected = (both[0] @ both[1]).reshape(3, 4, 6, 8)
    found = multiply_int8(jnp.asarray(x), quantize(jnp.asarray(kernel), (0,)))
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(
        found,
        expected,
        rtol=2e-6,
        atol=2e-6 * np.abs(both[0]).max() * np.abs(kernel).sum(0).max(),
    )


def test_rows_of_one_sign_take_all_steps():
    """What comes from a ReLU is rounded half as coarsely as by its largest number,
    and its zeros stay zeros.
    """
    x, exact = np.maximum(draw(12, 64, 128), 0), quantize(jnp.eye(128), (0,))
    found = np.asarray(multiply_int8(jnp.asarray(x), exact))
    largest = x.max(axis=1, keepdims=True)
    errors = np.abs(found - x) / largest
    assert 0.4 / 254 < errors.max() <= 0.51 / 254
    assert errors[x == 0].max() < 1e-6


def test_two_axes_are_summed_over():
    """What contracts two axes is the product of the reshaped operands, with one
    scale for each output.
    """
    x, kernel = draw(4, 5, 4, 8), draw(5, 4, 8, 6)
    expected = multiply_int8(
        jnp.asarray(x.reshape(5, 32)),
        quantize(jnp.asarray(kernel.reshape(32, 6)), (0,)),
    )
    found = multiply_int8(
        jnp.asarray(x), quantize(jnp.asarray(kernel), (0, 1)), contract=2
    )
    np.testing.assert_array_equal(found, expected)


def test_a_table_multiplies_as_its_transpose():
    """Rows of a table as outputs give what columns of a kernel give."""
    x, table = jnp.asarray(draw(6, 6, 16)), jnp.asarray(draw(7, 50, 16))
    expected = multiply_int8(x, quantize(table.T, (0,)))
    np.testing.assert_array_equal(
        multiply_int8_rows(x, quantize(table, (1,))), expected
    )


def test_what_is_next_to_zero_is_not_moved():
    """Rows of both signs, nearly all zeros as after an activation, lose nothing that
    adds up over them.
    """
    x = np.zeros((2, 512), np.float32)
    x[0, :2], x[1, :2] = (-1, 3), (-0.17, 5)
    found = multiply_int8(jnp.asarray(x), quantize(jnp.ones((512, 1)), (0,)))
    assert np.abs(found[:, 0] - x.sum(1)).max() <= 1.5 * 6 / 254
    np.testing.assert_allclose(
        multiply_int8(jnp.asarray(x), quantize(jnp.eye(512), (0,)))[:, 2:], 0, atol=1e-6
    )


def test_rows_and_outputs_of_one_number():
    """Rows and outputs of zeros give 0 and not NaN, and a row of one number over and
    over is not rounded at all.
    """
    kernel = jnp.zeros((8, 3)).at[:, 1].set(1.0)
    found = multiply_int8(jnp.zeros((2, 8)).at[1].set(2.3), quantize(kernel, (0,)))
    np.testing.assert_allclose(found, [[0, 0, 0], [0, 18.4, 0]], rtol=1e-6)


def test_what_is_no_number_stays_none():
    """A NaN reaches the outputs of its row, and of no other."""
    x = jnp.ones((2, 8)).at[1, 3].set(jnp.nan)
    found = multiply_int8(x, quantize(jnp.ones((8, 3)), (0,)))
    np.testing.assert_array_equal(np.isnan(found), [[False] * 3, [True] * 3])


def test_layers_take_every_form_of_their_weights():
    """Linear maps, look-ups and logits from 8 bits are near those from float32, from
    both layouts equal.
    """
    x, kernel, bias = (
        jnp.asarray(draw(*shape)) for shape in ((8, 2, 3, 64), (9, 64, 32), (10, 32))
    )
    exact = layers.linear(x, kernel, bias)
    found = layers.linear(x, quantize(kernel, (0,)), bias)
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()

    table, tokens = jnp.asarray(draw(11, 40, 64)), jnp.asarray([[3, 39], [0, 7]])
    small, both = quantize(table, (1,)), Table(table, table.T)
    for form in (both, Table(table, small)):
        np.testing.assert_array_equal(
            layers.embed(form, tokens), layers.embed(table, tokens)
        )
    exact = layers.project_to_vocabulary(table, x, jnp.ones(40))
    np.testing.assert_allclose(
        layers.project_to_vocabulary(both, x, jnp.ones(40)), exact, rtol=1e-5, atol=1e-5
    )
    found = layers.project_to_vocabulary(small, x, jnp.ones(40))
    assert np.abs(found - exact).max() < 0.02 * np.abs(exact).max()
    np.testing.assert_array_equal(
        layers.project_to_vocabulary(Table(table, small), x, jnp.ones(40)), found
    )
    with pytest.raises(layers.InputError, match="token id 40 is not in 0 to 39"):
        layers.embed(both, jnp.asarray([[40]]))


def test_half_precision_goes_in_and_comes_out():
    """A linear map in 8 bits keeps the type of its input."""
    assert (
        layers.linear(
            jnp.ones((2, 8), jnp.bfloat16), quantize(jnp.ones((8, 4)), (0,))
        ).dtype
        == jnp.bfloat16
    )
    assert jax.tree.leaves(quantize(jnp.ones((8, 4)), (0,)))[0].shape == (8, 4)
