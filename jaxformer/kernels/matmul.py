"""Linear maps and einsums with operands in the compute dtype and float32 accumulation,
forward and backward, and with int8 weights.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.experimental.layout import Layout, with_layout_constraint

from jaxformer.functional import layers
from jaxformer.functional.layers import Linear, wide_dtype
from jaxformer.functional.shapes import check_shapes
from jaxformer.kernels.int8 import (
    Int8Weights,
    TwoWayTable,
    multiply_int8,
    multiply_int8_rows,
)
from jaxformer.kernels.mesh import check_mesh, match_varying
from jaxformer.typing import Array, Float, Int, Parameters

LINEAR_OUTPUT = "linear"
"""The name of the output of :func:`linear` for rematerialization policies."""


@check_shapes()
def linear(
    x: Float[Array, "..."],
    kernel: Float[Array, "..."] | Int8Weights,
    bias: Float[Array, "..."] | None = None,
    *,
    contract: int = 1,
) -> Float[Array, "..."]:
    """Replace :func:`jaxformer.functional.linear`; the kernel may be int8 weights.

    In half precision there is no forward-mode derivative (``jax.jvp``): compute
    Hessian-vector products in reverse mode.
    """
    check_mesh((x, kernel))
    weights = kernel.values if isinstance(kernel, Int8Weights) else kernel
    layers.check_map(x.shape, weights.shape, bias, contract)
    if isinstance(kernel, Int8Weights):
        output = add_bias(multiply_int8(x, kernel, contract), bias).astype(x.dtype)
    elif is_half(x):
        (output,) = half_affine(x, (kernel,), (bias,), contract)
    else:
        output = add_bias(tensordot(x, kernel, contract), bias)
    return checkpoint_name(output, LINEAR_OUTPUT)


def joint_linear(x: Float[Array, "*B D"], *maps: Parameters) -> Linear:
    """Return a :func:`linear` that computes these maps of this x at once: in half
    precision the gradient of x is then one matmul, where kernels have one shape.

    It recognizes x and the kernels by identity. For others it is :func:`linear`.
    """
    kernels = [each["kernel"] for each in maps]
    check_mesh((x, kernels))
    if not is_half(x) or any(isinstance(each, Int8Weights) for each in kernels):
        return linear
    if len({kernel.shape for kernel in kernels}) > 1:
        return linear
    outputs = half_affine(x, kernels, [each.get("bias") for each in maps], 1)
    computed = dict(zip(map(id, kernels), outputs, strict=True))

    def find(y: Array, kernel: Array, bias: Array | None = None, **how: Any) -> Array:
        if y is not x or id(kernel) not in computed:
            return linear(y, kernel, bias, **how)
        return checkpoint_name(computed[id(kernel)], LINEAR_OUTPUT)

    return find


def embed(
    table: Float[Array, "V D"] | TwoWayTable,
    tokens: Int[Array, "B T"],
    *,
    scale: bool = True,
) -> Float[Array, "B T D"]:
    """Replace :func:`jaxformer.functional.embed`; the table may have two forms."""
    check_mesh((table, tokens))
    if not isinstance(table, TwoWayTable):
        return layers.embed(table, tokens, scale=scale)
    rows = table.look_up(tokens)
    return rows * rows.shape[-1] ** 0.5 if scale else rows


def project_to_vocabulary(
    table: Float[Array, "V D"] | Int8Weights | TwoWayTable,
    x: Float[Array, "*B D"],
    bias: Float[Array, " V"] | None = None,
) -> Float[Array, "*B V"]:
    """Replace :func:`jaxformer.functional.project_to_vocabulary`; the table may be int8
    weights or have two forms.
    """
    rows, form, multiply = x.reshape(-1, x.shape[-1]), table, matmul_transposed
    if isinstance(form, TwoWayTable):
        multiply = matmul_transposed if form.outputs is None else matmul
        form = form.rows if form.outputs is None else form.outputs
    if isinstance(form, Int8Weights):
        logits = multiply_int8_rows(rows, form)
    else:
        logits = multiply(rows, form)
    logits = logits.reshape(*x.shape[:-1], logits.shape[-1])
    return add_bias(logits, bias)


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


def half_affine(
    x: Float[Array, "..."],
    kernels: Sequence[Float[Array, "..."]],
    biases: Sequence[Float[Array, "..."] | None],
    axes: int,
) -> tuple[Float[Array, "..."], ...]:
    """Compute x W + b in the half precision of x, for kernels of one shape.

    There is no forward-mode derivative. A GPU or TPU computes the gradient of x from
    all kernels in one matmul, and those of the kernels in another.
    """
    # Autodiff adds the gradients of x in the order of the inputs. The last map first is
    # the order of separate maps.
    maps = (x,) * len(kernels), tuple(kernels[::-1]), tuple(biases[::-1])
    outputs: tuple[Array, ...] = _half_affine(axes, *match_varying(maps))
    return outputs[::-1]


_Maps: TypeAlias = tuple[tuple[Array, ...], tuple[Array, ...], tuple[Array | None, ...]]
"""The inputs, kernels and biases of several maps."""


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _half_affine(
    axes: int,
    inputs: tuple[Array, ...],
    kernels: tuple[Array, ...],
    biases: tuple[Array | None, ...],
) -> tuple[Array, ...]:
    plain = functools.partial(_affine, axes)
    on_gpu = functools.partial(_affine_on_gpu, axes)
    return tuple(
        jax.lax.platform_dependent(*operands, cpu=plain, tpu=plain, default=on_gpu)
        for operands in zip(inputs, kernels, biases, strict=True)
    )


def _affine(axes: int, x: Array, kernel: Array, bias: Array | None) -> Array:
    return add_bias(tensordot(x, kernel, axes), bias).astype(x.dtype)


def _affine_on_gpu(axes: int, x: Array, kernel: Array, bias: Array | None) -> Array:
    """Compute x W + b in one kernel, which can also apply ReLU.

    cuBLAS has one for a matrix and a bias in the dtype of the result. A float32 result
    takes twice the bytes, and another kernel to round it.
    """
    # Without the barrier the compiler makes one matmul of several of one x, and copies
    # its parts.
    rows, weights = jax.lax.optimization_barrier(
        matrices(x, kernel.astype(x.dtype), axes)
    )
    output = jax.lax.dot_general(rows, weights, (((1,), (0,)), ((), ())))
    output = add_bias(output, None if bias is None else bias.reshape(-1))
    return output.reshape(*x.shape[: x.ndim - axes], *kernel.shape[axes:])


def _half_affine_forward(axes: int, *maps: Any) -> tuple[tuple[Array, ...], _Maps]:
    return _half_affine(axes, *maps), maps


def _half_affine_backward(
    axes: int, maps: _Maps, cotangents: tuple[Array, ...]
) -> _Maps:
    joint = functools.partial(_joint_gradients, axes)

    def on_gpu(maps: _Maps, cotangents: tuple[Array, ...]) -> _Maps:
        # Without the barrier a matmul computes ReLU again, from another array.
        return joint((jax.lax.optimization_barrier(maps[0]), *maps[1:]), cotangents)

    gradients: _Maps = jax.lax.platform_dependent(
        maps,
        cotangents,
        cpu=functools.partial(_separate_gradients, axes),
        tpu=joint,
        default=on_gpu,
    )
    return gradients


_half_affine.defvjp(_half_affine_forward, _half_affine_backward)


def _separate_gradients(axes: int, maps: _Maps, cotangents: tuple[Array, ...]) -> _Maps:
    to_inputs, to_kernels, to_biases = zip(
        *(
            jax.vjp(functools.partial(_affine, axes), *operands)[1](cotangent)
            for *operands, cotangent in zip(*maps, cotangents, strict=True)
        ),
        strict=True,
    )
    return to_inputs, to_kernels, to_biases


def _joint_gradients(axes: int, maps: _Maps, cotangents: tuple[Array, ...]) -> _Maps:
    # The maps have an axis of their own, so that a mesh can shard that of the heads.
    (x, *others), kernels, biases = maps
    lead = x.ndim - axes
    kernel = _stack([kernel.astype(x.dtype) for kernel in kernels], axes)
    cotangent = _stack(cotangents, lead)
    rows, outputs = tuple(range(lead)), tuple(range(lead, cotangent.ndim))
    to_x = jax.lax.dot_general(
        cotangent, kernel, ((outputs, tuple(range(axes, kernel.ndim))), ((), ()))
    )
    to_kernels = jax.lax.dot_general(
        x, cotangent, ((rows, rows), ((), ())), preferred_element_type=jnp.float32
    )
    to_biases = cotangent.astype(jnp.float32).sum(rows)
    return (
        (to_x, *map(jnp.zeros_like, others)),
        tuple(
            new.astype(old.dtype)
            for new, old in zip(
                jnp.unstack(to_kernels, axis=axes), kernels, strict=True
            )
        ),
        tuple(
            None if old is None else new.astype(old.dtype)
            for new, old in zip(to_biases, biases, strict=True)
        ),
    )


def _stack(arrays: Sequence[Array], axis: int) -> Array:
    """Stack arrays as a sum of padded ones: with a transpose before, a GPU computes
    that in one pass and a concatenation in two.
    """
    padding = [(0, 0)] * (arrays[0].ndim + 1)
    padded = []
    for i, x in enumerate(arrays):
        padding[axis] = (i, len(arrays) - 1 - i)
        padded.append(jnp.pad(jnp.expand_dims(x, axis), padding))
    return functools.reduce(jnp.add, padded)
