"""Weights as decoding stores them: int8 with a scale and a sum per output, and
embedding tables with their transpose.

They replace the plain array in a parameter tree.
:func:`~jaxformer.functional.layers.linear` accepts int8 weights,
:func:`~jaxformer.functional.layers.embed` tables, and
:func:`~jaxformer.functional.layers.project_to_vocabulary` both. Their first leaf has
the shape of the plain array. They are not differentiable.
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
    """A matrix in int8: each weight is its integer times the scale of its output."""

    values: Int[Array, "..."]
    """int8, from -127 to 127, of the shape of the weights."""
    scales: Float[Array, "..."]
    """float32, one for each output: the axes of the weights that a matmul does not
    contract.
    """
    sums: Float[Array, "..."]
    """float32, of the shape of the scales: the sum of each output's rounded weights,
    for inputs with an offset.
    """


class TwoWayTable(NamedTuple):
    """An embedding table in one form for look-ups and another for matmuls."""

    rows: Float[Array, "V D"]
    outputs: Float[Array, "D V"] | Int8Weights
    """Its transpose, or each of its rows as an int8 output."""


@functools.partial(jax.jit, static_argnums=1)
def quantize(weights: Float[Array, "..."], axes: tuple[int, ...]) -> Int8Weights:
    """Quantize weights to int8, so that the largest of each output is 127 or -127.

    Args:
        weights: of any floating type.
        axes: those that matmuls contract.
    """
    wide = weights.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=axes, keepdims=True)
    scales = jnp.where(largest > 0, largest, 1.0) / _LARGEST
    values = jnp.round(wide / scales).astype(jnp.int8)
    scales = jnp.squeeze(scales, axes)
    return Int8Weights(
        values,
        scales,
        jnp.sum(values, axes, dtype=jnp.int32).astype(jnp.float32) * scales,
    )


def take_rows(
    table: Float[Array, "V D"] | Int8Weights | TwoWayTable, tokens: Int[Array, " L"]
) -> Float[Array, "L D"] | Int8Weights | TwoWayTable:
    """Return the rows of some tokens as a table of the same form."""
    if isinstance(table, Int8Weights):
        return _take_outputs(table, tokens)
    if isinstance(table, TwoWayTable):
        rows, outputs = table.rows[tokens], table.outputs
        return TwoWayTable(
            rows,
            _take_outputs(outputs, tokens)
            if isinstance(outputs, Int8Weights)
            else rows.T,
        )
    return table[tokens]


def _take_outputs(table: Int8Weights, tokens: Int[Array, " L"]) -> Int8Weights:
    return Int8Weights(table.values[tokens], table.scales[tokens], table.sums[tokens])


def multiply_int8(
    x: Float[Array, "..."], weights: Int8Weights, contract: int = 1
) -> Float[Array, "..."]:
    """Contract the last axes of ``x`` with the first of the weights, both in int8, with
    int32 accumulation.

    Each row of ``x`` is quantized to 255 levels between its minimum and its maximum, so
    that the output of a ReLU spends no level on negative numbers. A 0 stays 0. The
    result differs from that of the plain weights only by the two roundings.

    Returns:
        The result in float32.
    """
    lead, inner = x.shape[: x.ndim - contract], x.shape[x.ndim - contract :]
    outer = weights.values.shape[contract:]
    matrix = weights.values.reshape(math.prod(inner), math.prod(outer))
    return _multiply(x.reshape(-1, math.prod(inner)), matrix, 0, weights).reshape(
        *lead, *outer
    )


def multiply_int8_rows(
    x: Float[Array, "N D"], weights: Int8Weights
) -> Float[Array, "N V"]:
    """Multiply by the transpose of a table, see :func:`multiply_int8`."""
    return _multiply(x, weights.values, 1, weights)


def _multiply(
    x: Array, matrix: Array, axis: int, weights: Int8Weights
) -> Float[Array, "N V"]:
    rows = x.astype(jnp.float32)
    least, largest = (
        jnp.min(rows, axis=1, keepdims=True),
        jnp.max(rows, axis=1, keepdims=True),
    )
    differ = largest > least
    steps = jnp.where(differ, largest - least, 1.0) / (2 * _LARGEST)
    # A multiple of the step, so that 0 is exact: most activations are near 0, and one
    # error in all would accumulate.
    middles = jnp.where(differ, jnp.round((least + largest) / 2 / steps) * steps, least)
    values = jnp.clip(jnp.round((rows - middles) / steps), -128, _LARGEST).astype(
        jnp.int8
    )
    total = jax.lax.dot_general(
        values, matrix, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.int32
    )
    scales, sums = weights.scales.reshape(1, -1), weights.sums.reshape(1, -1)
    return total.astype(jnp.float32) * (steps * scales) + middles * sums
