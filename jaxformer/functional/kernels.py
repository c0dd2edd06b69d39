"""Faster forms of plain definitions: matmuls, standardization and dropout bits.

The layers call these and read like their equations. Each function computes what its
plain definition does, and says why it is not written like that. Also the axes of the
mesh that they run on.
"""

from __future__ import annotations

import functools
import math
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.experimental.layout import Layout, with_layout_constraint

from jaxformer.typing import Array, Float, Key, PyTree, UInt32

_Tree = TypeVar("_Tree")

ROW_AXES = ("data", "fsdp")
"""Mesh axes over which the rows of a batch are sharded."""

TENSOR_AXIS = "tensor"
"""The mesh axis over which heads, hidden units and the vocabulary are sharded."""


def automatic_axes() -> dict[str, int]:
    """Return the axes of the current mesh that are left to the compiler, and their
    lengths; none under ``shard_map``, ``pmap`` or explicit shardings.
    """
    mesh = jax.sharding.get_abstract_mesh()
    return {name: mesh.shape[name] for name in mesh.auto_axes}


def match_varying(tree: _Tree, *like: PyTree) -> _Tree:
    """Make the arrays of a tree vary over the axes of ``shard_map`` over which one of
    them, or of ``like``, varies. It changes no value, and nothing elsewhere.

    Loops need it of their first carry. So do custom rules of derivatives: JAX sums the
    gradient of an array that does not vary over the devices, and takes that sum from no
    rule.
    """
    arrays = jax.tree.leaves((tree, like))
    axes = frozenset[str]().union(*(jax.typeof(x).mat.varying for x in arrays))

    return jax.tree.map(
        lambda x: jax.lax.pcast(
            x, tuple(sorted(axes - jax.typeof(x).mat.varying)), to="varying"
        ),
        tree,
    )


def wide_dtype(*arrays: Array) -> jnp.dtype:
    """Return the dtype of sums and softmaxes: float32, or float64 where an array is
    float64.
    """
    return jnp.dtype(
        "float64" if any(jnp.result_type(x) == "float64" for x in arrays) else "float32"
    )


def einsum(
    subscripts: str, x: Float[Array, "..."], y: Float[Array, "..."]
) -> Float[Array, "..."]:
    """Compute ``jnp.einsum`` with operands in their own dtype and float32 accumulation,
    forward and backward.

    Autodiff would multiply a float32 cotangent with half-precision operands. A GPU
    computes that in float32, at half the speed or less. The rule for half precision
    rounds the cotangent first.
    """
    if is_half(x):
        return _half_einsum(subscripts, x, y)
    return jnp.einsum(subscripts, x, y, preferred_element_type=wide_dtype(x, y))


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _half_einsum(subscripts: str, x: Array, y: Array) -> Array:
    return jnp.einsum(subscripts, x, y, preferred_element_type=jnp.float32)


@_half_einsum.defjvp
def _half_einsum_tangent(
    subscripts: str, primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    (x, y), (x_change, y_change) = primals, tangents
    # Each result is in half precision, so that its transpose rounds the float32
    # cotangent before it multiplies.
    by_x = jnp.einsum(subscripts, x_change, y).astype(jnp.float32)
    return _half_einsum(subscripts, x, y), by_x + jnp.einsum(
        subscripts, x, y_change
    ).astype(jnp.float32)


def tensordot(
    x: Float[Array, "..."], kernel: Float[Array, "..."], axes: int
) -> Float[Array, "..."]:
    """Compute ``jnp.tensordot(x, kernel, axes)`` by :func:`matmul`."""
    output = matmul(*matrices(x, kernel, axes))
    return output.reshape(*x.shape[: x.ndim - axes], *kernel.shape[axes:])


def matrices(
    x: Float[Array, "..."], kernel: Float[Array, "..."], axes: int
) -> tuple[Float[Array, "N K"], Float[Array, "K M"]]:
    """Reshape the operands of :func:`tensordot` to those of :func:`matmul`."""
    inner = math.prod(kernel.shape[:axes])
    return x.reshape(-1, inner), kernel.reshape(inner, -1)


def matmul(x: Float[Array, "N K"], weights: Float[Array, "K M"]) -> Float[Array, "N M"]:
    """Compute x W with W cast to the dtype of x, and float32 accumulation, forward and
    backward.

    The gradient of the weights is x^T times the cotangent. On a CPU a fast matmul needs
    the rows of its left operand contiguous in memory, so x is transposed in memory
    first. In half precision there is no forward-mode derivative.
    """
    return (
        _half_matmul(0, *match_varying((x, weights)))
        if is_half(x)
        else _wide_matmul(x, weights.astype(x.dtype))
    )


def matmul_transposed(
    x: Float[Array, "N K"], table: Float[Array, "M K"]
) -> Float[Array, "N M"]:
    """Compute x E^T as :func:`matmul` does."""
    return (
        _half_matmul(1, *match_varying((x, table)))
        if is_half(x)
        else _wide_matmul(x, table.T.astype(x.dtype))
    )


def matmul_transposed_gradients(
    x: Float[Array, "N K"], table: Float[Array, "M K"], cotangent: Float[Array, "N M"]
) -> tuple[Float[Array, "N K"], Float[Array, "M K"]]:
    """Compute the gradients of :func:`matmul_transposed` from that of its result: that
    of x in the dtype of x, and that of the table in float32 (float64 stays) for every
    dtype of the table.
    """
    if is_half(x):
        return _half_gradients(1, x, table, cotangent)
    return jax.vjp(matmul_transposed, x, table)[1](cotangent)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _half_matmul(axis: int, x: Array, weights: Array) -> Array:
    """Contract an axis of the weights in place: a CPU would multiply a rounded
    transpose in float32.
    """
    return _dot(x, weights.astype(x.dtype), axis)


def _half_matmul_forward(
    axis: int, x: Array, weights: Array
) -> tuple[Array, tuple[Array, Array]]:
    return _half_matmul(axis, x, weights), (x, weights)


def _half_matmul_backward(
    axis: int, operands: tuple[Array, Array], cotangent: Array
) -> tuple[Array, Array]:
    to_x, to_weights = _half_gradients(axis, *operands, cotangent)
    # Weights kept in float32 get a float32 gradient, not one rounded to the dtype of
    # the matmul.
    return to_x, to_weights.astype(operands[1].dtype)


def _half_gradients(
    axis: int, x: Array, weights: Array, cotangent: Array
) -> tuple[Array, Array]:
    cotangent = cotangent.astype(x.dtype)
    to_x = _half_dot(cotangent, weights.astype(x.dtype), 1 - axis)
    to_weights = jax.lax.platform_dependent(
        x, cotangent, cpu=_transposed_dot_on_cpu, default=_transposed_dot
    )
    return to_x, to_weights if axis == 0 else to_weights.T


_half_matmul.defvjp(_half_matmul_forward, _half_matmul_backward)


def is_half(x: Float[Array, "..."]) -> bool:
    """Return whether an array is in half precision."""
    return jnp.finfo(x.dtype).bits < 32


def add_bias(
    x: Float[Array, "..."], bias: Float[Array, "..."] | None
) -> Float[Array, "..."]:
    """Add a bias of the last axes, cast to the dtype of x."""
    if bias is None:
        return x
    return x + bias.reshape((1,) * (x.ndim - bias.ndim) + bias.shape).astype(x.dtype)


@jax.custom_jvp
def _wide_matmul(x: Array, weights: Array) -> Array:
    return _dot(x, weights)


@_wide_matmul.defjvp
def _wide_matmul_tangent(
    primals: tuple[Array, Array], tangents: tuple[Array, Array]
) -> tuple[Array, Array]:
    (x, weights), (x_change, weights_change) = primals, tangents

    def on_cpu(x: Array, change: Array) -> Array:
        # Its transpose, the gradient of the weights, is then a matmul of x transposed
        # in memory.
        return _transposed_dot(_transpose_in_memory(x), change)

    change = jax.lax.platform_dependent(x, weights_change, cpu=on_cpu, default=_dot)
    return _dot(x, weights), _dot(x_change, weights) + change


def _dot(x: Array, y: Array, axis: int = 0) -> Array:
    return jax.lax.dot_general(
        x, y, (((1,), (axis,)), ((), ())), preferred_element_type=wide_dtype(x, y)
    )


def _half_dot(x: Array, y: Array, axis: int) -> Array:
    """Return the matmul in the half precision of its operands.

    For a bfloat16 result the compiler for the CPU casts the operands to float32, at
    half the speed and twice the memory. For a float32 result it does not.
    """
    return jax.lax.platform_dependent(
        x,
        y,
        cpu=lambda x, y: _dot(x, y, axis).astype(x.dtype),
        default=lambda x, y: jax.lax.dot_general(x, y, (((1,), (axis,)), ((), ()))),
    )


def _transposed_dot(x: Array, y: Array) -> Array:
    """Return x^T y."""
    return jax.lax.dot_general(
        x, y, (((0,), (0,)), ((), ())), preferred_element_type=wide_dtype(x, y)
    )


def _transposed_dot_on_cpu(x: Array, y: Array) -> Array:
    # The layout of the result is fixed too: the compiler would otherwise transpose that
    # instead.
    return with_layout_constraint(_dot(_transpose_in_memory(x), y), Layout((0, 1)))


def _transpose_in_memory(x: Array) -> Array:
    """Return x^T as rows contiguous in memory, where the compiler would otherwise
    read x by columns.
    """
    return with_layout_constraint(x.T, Layout((0, 1)))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def standardize(x: Float[Array, "*B D"], epsilon: float) -> Float[Array, "*B D"]:
    """Shift and scale the last axis to mean 0 and variance 1: (x - mean) /
    sqrt(variance + epsilon).

    Its derivative is computed from the result and one number a row, so that the
    backward pass keeps neither x nor x minus its mean.
    """
    return _standardized_and_factor(x, epsilon)[0]


@standardize.defjvp
def _standardize_tangent(
    epsilon: float, primals: tuple[Array], tangents: tuple[Array]
) -> tuple[Array, Array]:
    normal, factor = _standardized_and_factor(*primals, epsilon)
    return normal, standardized_change(normal, factor, *tangents)


def _standardized_and_factor(x: Array, epsilon: float) -> tuple[Array, Array]:
    centred = x - x.mean(axis=-1, keepdims=True)
    factor = jax.lax.rsqrt(jnp.square(centred).mean(axis=-1, keepdims=True) + epsilon)
    return centred * factor, factor


def standardized_change(
    normal: Float[Array, "*B D"],
    factor: Float[Array, "*B 1"],
    change: Float[Array, "*B D"],
) -> Float[Array, "*B D"]:
    """Apply the Jacobian of :func:`standardize`, which is symmetric, from its result
    and factor.
    """
    centred = change - change.mean(axis=-1, keepdims=True)
    return factor * (centred - normal * (normal * centred).mean(axis=-1, keepdims=True))


def log_sum_exp(x: Float[Array, "*B V"]) -> Float[Array, "*B"]:
    """Compute ``jax.nn.logsumexp(x, axis=-1)``, without a derivative.

    That reads x twice, for its maximum and for the sum. A GPU is limited by what it
    reads, and takes both in one pass; other compilers compute the maximum together with
    x, and a CPU is limited by its exponentials.
    """
    twice = functools.partial(jax.nn.logsumexp, axis=-1)
    return jax.lax.platform_dependent(
        x, cuda=_log_sum_exp_in_one_pass, rocm=_log_sum_exp_in_one_pass, default=twice
    )


def _log_sum_exp_in_one_pass(x: Array) -> Array:
    def shift(top: Array) -> Array:
        return jnp.where(jnp.isfinite(top), top, 0.0)

    def add(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
        top = jnp.maximum(a[0], b[0])
        low, high = jnp.exp(a[0] - shift(top)), jnp.exp(b[0] - shift(top))
        return top, a[1] * low + b[1] * high

    start = jnp.array(-jnp.inf, x.dtype), jnp.zeros((), x.dtype)
    top, total = jax.lax.reduce((x, jnp.ones_like(x)), start, add, (x.ndim - 1,))
    return shift(top) + jnp.log(total)


def random_bits(key: Key, shape: tuple[int, ...]) -> UInt32[Array, "..."]:
    """Return random uint32 for dropout: element i is mix(mix(i ^ a) ^ b) with the two
    words a and b of the key.

    ``jax.random.bits`` takes a twelfth of a training step on a CPU, because it
    withstands tests that dropout does not need. A hash of a counter (Salmon et al.
    2011) is enough for bits that are even and independent of their neighbours. It does
    not depend on the sharding of the array, so each device computes its own part. The
    bits repeat in arrays of more than 2^32 elements.

    Args:
        key: a random key, typed or of plain words.
        shape: static.
    """
    words = jax.random.key_data(key).astype(jnp.uint32).reshape(-1)
    counter = jnp.zeros(shape, jnp.uint32)
    for axis in range(len(shape)):
        stride = math.prod(shape[axis + 1 :]) % 2**32
        counter += jax.lax.broadcasted_iota(jnp.uint32, shape, axis) * jnp.uint32(
            stride
        )
    return _mix(_mix(counter ^ words[0]) ^ words[-1])


def _mix(x: UInt32[Array, "..."]) -> UInt32[Array, "..."]:
    """Make each input bit flip every output bit with probability one half (constants
    of Wellons 2018, "lowbias32").
    """
    x = (x ^ (x >> 16)) * jnp.uint32(0x7FEB352D)
    x = (x ^ (x >> 15)) * jnp.uint32(0x846CA68B)
    return x ^ (x >> 16)
