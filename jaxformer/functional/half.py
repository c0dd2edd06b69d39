"""Linear maps and norms in half precision, as GPUs and TPUs compute them and their
gradients in few kernels and bytes.

:func:`jaxformer.functional.linear` and :func:`jaxformer.functional.layer_norm` are the
plain definitions, which a CPU computes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp

from jaxformer.functional.kernels import (
    add_bias,
    match_varying,
    matrices,
    standardized_change,
    tensordot,
)
from jaxformer.typing import Array, Float


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


_Norm: TypeAlias = Callable[[float, Array, Array, Array], Array]
_Rows: TypeAlias = tuple[Array, Array, Array, Array]
"""The input of a norm, the mean and factor of each row, and the scale."""

_Gradients: TypeAlias = tuple[Array, Array, Array]


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def half_norm(
    norm: _Norm,
    epsilon: float,
    x: Float[Array, "*B D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"],
) -> Float[Array, "*B D"]:
    """Compute ``norm(epsilon, x, scale, bias)``, layer normalization in half precision.

    There is no forward-mode derivative. In the backward pass a GPU would compute
    dropout, residual and statistics again, in each of three kernels. Here it reads x
    and two numbers a row.
    """
    return norm(epsilon, x, scale, bias)


def _half_norm_forward(
    norm: _Norm, epsilon: float, x: Array, scale: Array, bias: Array
) -> tuple[Array, tuple[Callable[[Array], _Gradients], _Rows]]:
    output, gradients = jax.vjp(functools.partial(norm, epsilon), x, scale, bias)
    wide = x.astype(jnp.float32)
    mean = wide.mean(axis=-1, keepdims=True)
    variance = jnp.square(wide - mean).mean(axis=-1, keepdims=True)
    factor = jax.lax.rsqrt(variance + epsilon)
    return output, (gradients, (x, mean, factor, scale))


def _half_norm_backward(
    norm: _Norm,
    epsilon: float,
    kept: tuple[Callable[[Array], _Gradients], _Rows],
    cotangent: Array,
) -> _Gradients:
    del norm, epsilon
    derivative, rows = kept
    # The compiler drops the gradients that are not chosen, and what they need.
    plain = derivative(cotangent)
    on_gpu = _norm_gradients(*rows, cotangent)
    gradients: _Gradients = jax.lax.platform_dependent(
        plain,
        tuple(new.astype(old.dtype) for new, old in zip(on_gpu, plain, strict=True)),
        cpu=lambda plain, _: plain,
        tpu=lambda plain, _: plain,
        default=lambda _, on_gpu: on_gpu,
    )
    return gradients


half_norm.defvjp(_half_norm_forward, _half_norm_backward)


def _norm_gradients(
    x: Array, mean: Array, factor: Array, scale: Array, cotangent: Array
) -> _Gradients:
    # The barrier keeps these arrays, and nothing that they are computed from.
    x, mean, factor = jax.lax.optimization_barrier((x, mean, factor))
    normal = (x.astype(jnp.float32) - mean) * factor
    wide = cotangent.astype(jnp.float32)
    rows = tuple(range(x.ndim - 1))
    to_normal = wide * jnp.expand_dims(scale.astype(jnp.float32), rows)
    to_x = standardized_change(normal, factor, to_normal)
    return to_x, (wide * normal).sum(rows), wide.sum(rows)
