"""Matmuls with operands in the compute dtype, forward and backward, and float32 accumulation (float64 of float64)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from jaxformer.typing import Array, Float


def wide_dtype(*arrays: Array) -> jnp.dtype:
    """Return the dtype of sums and softmaxes: float32, or float64 where an array is float64."""
    return jnp.dtype("float64" if any(jnp.result_type(x) == "float64" for x in arrays) else "float32")


def product(multiply: Callable[..., Array], x: Float[Array, "..."], y: Float[Array, "..."]) -> Float[Array, "..."]:
    """Multiply two arrays of one type and add up in float32; the products of the backward pass are of that type too.

    Left to itself, differentiation would multiply the float32 gradient of the result with operands in half precision,
    for which a GPU turns them into float32: two thirds of the arithmetic of training, at half the speed or less.

    Args:
        multiply: ``jax.lax.dot_general`` with its axes, or ``jnp.einsum`` with its subscripts.
        x: the first operand.
        y: the second.
    """
    if _is_half(x):
        return _half_product(multiply, x, y)
    return multiply(x, y, preferred_element_type=wide_dtype(x, y))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _half_product(multiply: Callable[..., Array], x: Array, y: Array) -> Array:
    return multiply(x, y, preferred_element_type=jnp.float32)


@_half_product.defjvp
def _half_product_tangent(
    multiply: Callable[..., Array], primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    (x, y), (x_change, y_change) = primals, tangents
    # Each result is in half precision, so that its transpose rounds the float32 cotangent before it multiplies.
    change = multiply(x_change, y).astype(jnp.float32) + multiply(x, y_change).astype(jnp.float32)
    return _half_product(multiply, x, y), change


def rows_times_matrix(x: Float[Array, "N K"], matrix: Float[Array, "K M"]) -> Float[Array, "N M"]:
    """Multiply rows with a matrix of weights, taken in the type of the rows, as :func:`product` does.

    The gradient of the weights is x^T times that of the result. A CPU has its quick products for rows of the left
    operand that lie together in memory, in half precision for no others: there, x is turned over before.
    """
    return _half_rows(0, x, matrix) if _is_half(x) else _rows_times_matrix(x, matrix.astype(x.dtype))


def rows_times_rows(x: Float[Array, "N K"], table: Float[Array, "M K"]) -> Float[Array, "N M"]:
    """Multiply rows with the rows of a table, as :func:`rows_times_matrix` does with the table turned over."""
    return _half_rows(1, x, table) if _is_half(x) else _rows_times_matrix(x, table.T.astype(x.dtype))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _half_rows(axis: int, x: Array, weights: Array) -> Array:
    """Sum over an axis of the weights, as they lie: a CPU would multiply in float32 what is turned over and rounded."""
    return _multiply(x, weights.astype(x.dtype), axis)


def _half_rows_forward(axis: int, x: Array, weights: Array) -> tuple[Array, tuple[Array, Array]]:
    return _half_rows(axis, x, weights), (x, weights)


def _half_rows_backward(axis: int, operands: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, weights = operands
    gradient = gradient.astype(x.dtype)
    to_x = _multiply_in_half(gradient, weights.astype(x.dtype), 1 - axis)
    to_matrix = jax.lax.platform_dependent(x, gradient, cpu=_turned_over, default=_columns_times_columns)
    # Not rounded to the half type of the product where the weights themselves are kept in float32.
    return to_x, (to_matrix if axis == 0 else to_matrix.T).astype(weights.dtype)


_half_rows.defvjp(_half_rows_forward, _half_rows_backward)


@jax.custom_jvp
def _rows_times_matrix(x: Array, matrix: Array) -> Array:
    return _multiply(x, matrix)


@_rows_times_matrix.defjvp
def _rows_times_matrix_tangent(primals: tuple[Array, Array], tangents: tuple[Array, Array]) -> tuple[Array, Array]:
    (x, matrix), (x_change, matrix_change) = primals, tangents

    def by_columns(x: Array, change: Array) -> Array:
        # What differentiation turns around: its gradient of the weights is then the product of x, turned over.
        return _columns_times_columns(_turn(x), change)

    change = jax.lax.platform_dependent(x, matrix_change, cpu=by_columns, default=_multiply)
    return _multiply(x, matrix), _multiply(x_change, matrix) + change


def _multiply(x: Array, y: Array, axis: int = 0) -> Array:
    return jax.lax.dot_general(x, y, (((1,), (axis,)), ((), ())), preferred_element_type=wide_dtype(x, y))


def _multiply_in_half(x: Array, y: Array, axis: int) -> Array:
    """Give the product in the half precision of its operands.

    Of such a product of bfloat16 the compiler for the CPU turns the operands into float32, at half the speed and in
    twice the memory; of one whose result is float32 it does not.
    """
    return jax.lax.platform_dependent(
        x,
        y,
        cpu=lambda x, y: _multiply(x, y, axis).astype(x.dtype),
        default=lambda x, y: jax.lax.dot_general(x, y, (((1,), (axis,)), ((), ()))),
    )


def _columns_times_columns(x: Array, y: Array) -> Array:
    """Give x^T y."""
    return jax.lax.dot_general(x, y, (((0,), (0,)), ((), ())), preferred_element_type=wide_dtype(x, y))


def _turned_over(x: Array, y: Array) -> Array:
    # Of the result too, since the compiler would turn over what is asked for turned over.
    return with_layout_constraint(_multiply(_turn(x), y), Layout((0, 1)))


def _turn(x: Array) -> Array:
    """Give x^T in an order of its own in memory, where the compiler would otherwise read x by columns."""
    return with_layout_constraint(x.T, Layout((0, 1)))


def _is_half(x: Array) -> bool:
    return jnp.finfo(x.dtype).bits < 32
