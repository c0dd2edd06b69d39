"""Forms in which decoding keeps weights: in 8 bits with a scale and a sum for each output, and tables once more for
their products.

They stand in a parameter tree where the plain array stood, and what computes with that takes them:
:func:`~jaxformer.functional.layers.linear` those in 8 bits, :func:`~jaxformer.functional.layers.embed` tables, and
:func:`~jaxformer.functional.layers.project_to_vocabulary` both. Their first leaf has the shape of the plain array. None
of them is differentiable.
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
    sums: Float[Array, "..."]
    """float32, of the shape of the scales: of each output's rounded weights, for rows that are not centred on 0."""


class Table(NamedTuple):
    """An embedding table that is looked up in one form and multiplied in another."""

    rows: Float[Array, "V D"]
    outputs: Float[Array, "D V"] | Int8Weights
    """Its transpose, or each of its rows as an output in 8 bits."""


@functools.partial(jax.jit, static_argnums=1)
def quantize(weights: Float[Array, "..."], axes: tuple[int, ...]) -> Int8Weights:
    """Round weights to 8 bits, the largest of each output to 127 or -127.

    Args:
        weights: of any floating type.
        axes: those that products sum over.
    """
    wide = weights.astype(jnp.float32)
    largest = jnp.max(jnp.abs(wide), axis=axes, keepdims=True)
    scales = jnp.where(largest > 0, largest, 1.0) / _LARGEST
    values = jnp.round(wide / scales).astype(jnp.int8)
    scales = jnp.squeeze(scales, axes)
    return Int8Weights(values, scales, jnp.sum(values, axes, dtype=jnp.int32).astype(jnp.float32) * scales)


def take_rows(
    table: Float[Array, "V D"] | Int8Weights | Table, tokens: Int[Array, " L"]
) -> Float[Array, "L D"] | Int8Weights | Table:
    """Give the table of some tokens, in the form of that of all."""
    if isinstance(table, Int8Weights):
        return _take_outputs(table, tokens)
    if isinstance(table, Table):
        rows, outputs = table.rows[tokens], table.outputs
        return Table(rows, _take_outputs(outputs, tokens) if isinstance(outputs, Int8Weights) else rows.T)
    return table[tokens]


def _take_outputs(table: Int8Weights, tokens: Int[Array, " L"]) -> Int8Weights:
    return Int8Weights(table.values[tokens], table.scales[tokens], table.sums[tokens])


def multiply_int8(x: Float[Array, "..."], weights: Int8Weights, contract: int = 1) -> Float[Array, "..."]:
    """Multiply the last axes of ``x`` with the first of the weights, both in 8 bits, and add up exactly, in 32.

    ``x`` is rounded at each call, each of its rows to 255 numbers from its least to its largest: what comes from a
    ReLU has no negative ones on which half of them would be spent. A 0 stays 0. What is added up are whole numbers; the
    result differs from that of the plain weights by the two roundings alone.

    Returns:
        The product, float32.
    """
    lead, inner = x.shape[: x.ndim - contract], x.shape[x.ndim - contract :]
    outer = weights.values.shape[contract:]
    matrix = weights.values.reshape(math.prod(inner), math.prod(outer))
    return _multiply(x.reshape(-1, math.prod(inner)), matrix, 0, weights).reshape(*lead, *outer)


def multiply_int8_rows(x: Float[Array, "N D"], weights: Int8Weights) -> Float[Array, "N V"]:
    """Multiply rows with each row of a table; see :func:`multiply_int8`."""
    return _multiply(x, weights.values, 1, weights)


def _multiply(x: Array, matrix: Array, axis: int, weights: Int8Weights) -> Float[Array, "N V"]:
    rows = x.astype(jnp.float32)
    least, largest = jnp.min(rows, axis=1, keepdims=True), jnp.max(rows, axis=1, keepdims=True)
    differ = largest > least
    steps = jnp.where(differ, largest - least, 1.0) / (2 * _LARGEST)
    # Whole steps from 0, which so is not rounded: most of what comes from an activation is next to it, and the same
    # error in all of that would add up.
    middles = jnp.where(differ, jnp.round((least + largest) / 2 / steps) * steps, least)
    values = jnp.clip(jnp.round((rows - middles) / steps), -128, _LARGEST).astype(jnp.int8)
    total = jax.lax.dot_general(values, matrix, (((1,), (axis,)), ((), ())), preferred_element_type=jnp.int32)
    scales, sums = weights.scales.reshape(1, -1), weights.sums.reshape(1, -1)
    return total.astype(jnp.float32) * (steps * scales) + middles * sums
