"""Products of arrays that add up in float32 and multiply in the type of the computation, forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from jaxformer.typing import Array, Float


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
    return multiply(x, y, preferred_element_type=jnp.float32)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _half_product(multiply: Callable[..., Array], x: Array, y: Array) -> Array:
    return multiply(x, y, preferred_element_type=jnp.float32)


def _half_product_forward(multiply: Callable[..., Array], x: Array, y: Array) -> tuple[Array, tuple[Array, Array]]:
    return _half_product(multiply, x, y), (x, y)


def _half_product_backward(
    multiply: Callable[..., Array], operands: tuple[Array, Array], gradient: Array
) -> tuple[Array, Array]:
    _, pull = jax.vjp(multiply, *operands)
    return pull(gradient.astype(operands[0].dtype))


_half_product.defvjp(_half_product_forward, _half_product_backward)


def rows_times_matrix(x: Float[Array, "N K"], matrix: Float[Array, "K M"]) -> Float[Array, "N M"]:
    """Multiply rows with a matrix of weights, taken in the type of the rows, as :func:`product` does.

    The gradient of the weights is x^T times that of the result. A CPU has its quick products for rows of the left
    operand that lie together in memory, in half precision for no others: there, x is turned over before.
    """
    return _half_rows_times_matrix(x, matrix) if _is_half(x) else _rows_times_matrix(x, matrix.astype(x.dtype))


@jax.custom_vjp
def _half_rows_times_matrix(x: Array, matrix: Array) -> Array:
    return _multiply(x, matrix.astype(x.dtype))


def _half_rows_forward(x: Array, matrix: Array) -> tuple[Array, tuple[Array, Array]]:
    return _half_rows_times_matrix(x, matrix), (x, matrix)


def _half_rows_backward(operands: tuple[Array, Array], gradient: Array) -> tuple[Array, Array]:
    x, matrix = operands
    gradient = gradient.astype(x.dtype)
    to_x = jax.lax.dot_general(gradient, matrix.astype(x.dtype), (((1,), (1,)), ((), ())))
    to_matrix = jax.lax.platform_dependent(x, gradient, cpu=_turned_over, default=_columns_times_columns)
    # Not rounded to the half type of the product where the weights themselves are kept in float32.
    return to_x, to_matrix.astype(matrix.dtype)


_half_rows_times_matrix.defvjp(_half_rows_forward, _half_rows_backward)


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


def _multiply(x: Array, y: Array) -> Array:
    return jax.lax.dot_general(x, y, (((1,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def _columns_times_columns(x: Array, y: Array) -> Array:
    """Give x^T y."""
    return jax.lax.dot_general(x, y, (((0,), (0,)), ((), ())), preferred_element_type=jnp.float32)


def _turned_over(x: Array, y: Array) -> Array:
    # Of the result too, since the compiler would turn over what is asked for turned over.
    return with_layout_constraint(_multiply(_turn(x), y), Layout((0, 1)))


def _turn(x: Array) -> Array:
    """Give x^T in an order of its own in memory, where the compiler would otherwise read x by columns."""
    return with_layout_constraint(x.T, Layout((0, 1)))


def _is_half(x: Array) -> bool:
    return jnp.finfo(x.dtype).bits < 32
