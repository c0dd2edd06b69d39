"""Layer normalization whose backward pass keeps and reads less."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp

from jaxformer.functional.layers import widen
from jaxformer.functional.shapes import check_shapes
from jaxformer.kernels.matmul import is_half
from jaxformer.kernels.mesh import check_mesh, match_varying
from jaxformer.typing import Array, Float


@check_shapes()
def layer_norm(
    x: Float[Array, "*B D"],
    scale: Float[Array, " D"],
    bias: Float[Array, " D"] | None = None,
    *,
    epsilon: float = 1e-6,
) -> Float[Array, "*B D"]:
    """Replace :func:`jaxformer.functional.layer_norm`; no forward mode in half
    precision.
    """
    check_mesh((x, scale))
    if bias is None:
        bias = jnp.zeros_like(scale)
    if is_half(x):
        return half_norm(_norm, epsilon, *match_varying((x, scale, bias)))
    return _norm(epsilon, x, scale, bias)


def _norm(epsilon: float, x: Array, scale: Array, bias: Array) -> Array:
    normal = standardize(widen(x), epsilon)
    ones = (1,) * (x.ndim - 1)
    scale, bias = (
        parameter.reshape(*ones, -1).astype(normal.dtype) for parameter in (scale, bias)
    )
    return (normal * scale + bias).astype(x.dtype)


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
