"""Forms in which decoding keeps weights: in 8 bits with a scale for each output, and tables in both layouts.

They stand in a parameter tree where the plain array stood, and :func:`~jaxformer.functional.layers.linear`,
:func:`~jaxformer.functional.layers.embed` and :func:`~jaxformer.functional.layers.project_to_vocabulary` take them as
they take that. Their first leaf has the shape of the plain array. None of them is differentiable.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxformer.typing import Array, Float, Int

_LARGEST = 127  # -128 has no opposite


class Int8Weights(NamedTuple):
    """A matrix in 8 bits: the weight of an output is its whole number times the output's scale."""

    values: Int[Array, "..."]
    """int8, from -127 to 127, of the shape of the weights."""
    scales: Float[Array, "..."]
    """float32, one for each output: the axes of the weights that a product does not sum over."""


class Table(NamedTuple):
    """An embedding table that is looked up by its rows and multiplied by its columns."""

    rows: Float[Array, "V D"]
    columns: Float[Array, "D V"]


@functools.partial(jax.jit, static_argnums=1)
def quantize(weights: Float[Array, "..."], axes: tuple[int, ...]) -> Int8Weights:
    """Round weights to 8 bits, the largest of each output to 127 or -127.

    Args:
        weights: of any floating type.
        axes: those that products sum over.
    """
    wide = weights.astype(jnp.float32)
    scales = _scale(wide, axes)
    return Int8Weights(_round(wide, scales), jnp.squeeze(scales, axes))


def take_rows(
    table: Float[Array, "V D"] | Int8Weights | Table, tokens: Int[Array, " L"]
) -> Float[Array, "L D"] | Int8Weights | Table:
    """Give the table of some tokens, in the form of that of all."""
    if isinstance(table, Int8Weights):
        return Int8Weights(table.values[tokens], table.scales[tokens])
    if isinstance(table, Table):
        rows = table.rows[tokens]
        return Table(rows, rows.T)
    return table[tokens]


def multiply_int8(x: Float[Array, "..."], weights: Int8Weights, contract: int = 1) -> Float[Array, "..."]:
    """Multiply the last axes of ``x`` with the first of the weights, both in 8 bits, and add up exactly, in 32.

    ``x`` is rounded as the weights are, with a scale for each of its rows, at each call. What is added up are whole
    numbers: the result differs from that of the plain weights by the two roundings alone.

    Returns:
        The product, float32.
    """
    lead, inner = x.shape[: x.ndim - contract], x.shape[x.ndim - contract :]
    outer = weights.values.shape[contract:]
    rows = x.reshape(-1, math.prod(inner)).astype(jnp.float32)
    scales = _scale(rows, (1,))
    matrix = weights.values.reshape(math.prod(inner), math.prod(outer))
    return _dot(_round(rows, scales), matrix, 0, scales, weights.scales.reshape(1, -1)).reshape(*lead, *outer)


def multiply_int8_rows(x: Float[Array, "*B D"], weights: Int8Weights) -> Float[Array, "*B V"]:
    """Multiply the last axis of ``x`` with each row of a table; see :func:`multiply_int8`."""
    rows = x.reshape(-1, x.shape[-1]).astype(jnp.float32)
    scales = _scale(rows, (1,))
    product = _dot(_round(rows, scales), weights.values, 1, scales, weights.scales.reshape(1, -1))
    return product.reshape(*x.shape[:-1], -1)


def _scale(x: Float[Array, "..."], axes: tuple[int, ...]) -> Float[Array, "..."]:
    largest = jnp.max(jnp.abs(x), axis=axes, keepdims=True)
    return jnp.where(largest > 0, largest, 1.0) / _LARGEST


def _round(x: Float[Array, "..."], scales: Float[Array, "..."]) -> Int[Array, "..."]:
    return jnp.round(x / scales).astype(jnp.int8)


def _dot(x: Array, matrix: Array, axis: int, row_scales: Array, column_scales: Array) -> Float[Array, "N V"]:
    total = jax.lax.dot_general(x, matrix, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.int32)
    return total.astype(jnp.float32) * (row_scales * column_scales)
