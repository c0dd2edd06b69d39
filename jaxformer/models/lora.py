"""Adapters of low rank (LoRA; Hu et al. 2021, section 4.1)."""

from __future__ import annotations

import functools
import math
from typing import Any, cast

import flax.struct
import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxformer.errors import InputError
from jaxformer.kernels.elementwise import dropout
from jaxformer.models.axis_names import DOWN, LAYERS, UP, count_inputs, logical_axes
from jaxformer.typing import Array, Key, Parameters


@flax.struct.dataclass
class Adapted:
    """Parameters with adapters that are not merged.

    Attributes:
        base: the parameters of a model; they are not trained.
        adapters: the part of the tree that is trained; see :func:`draw_adapters`.
        scale: factor on each update, alpha / rank.
    """

    base: Parameters
    adapters: Parameters
    scale: float = flax.struct.field(pytree_node=False)

    def merge(self, dropout_rate: float = 0.0, key: Key | None = None) -> Parameters:
        """Return the parameters with ``kernel + scale * A B`` in place of each adapted
        kernel.

        Args:
            dropout_rate: probability that an adapter does not see an input feature; of
                all tokens at once, unlike the dropout of its input, x A.
            key: None: without dropout.
        """
        kernels, factors = _flatten(self.base), _flatten(self.adapters)
        for number, path in enumerate(path[:-1] for path in factors if DOWN in path):
            down, up = factors[*path, DOWN], factors[*path, UP]
            if key is not None and dropout_rate:
                features = jnp.ones((*down.shape[:-1], 1), down.dtype)
                one = jax.random.fold_in(key, number)
                down = down * dropout(features, dropout_rate, one)
            product = jax.vmap(_product) if LAYERS in path else _product
            kernels[path] = kernels[path] + self.scale * product(down, up)
        return unflatten_dict(kernels)


def merged(params: Parameters | Adapted) -> Parameters:
    """Merge parameters that have adapters; return others as they are."""
    return params.merge() if isinstance(params, Adapted) else params


def draw_adapters(kernels: Parameters, rank: int, key: Key) -> Parameters:
    """Draw adapters: A normal with variance 1 / inputs, and B zero. They begin by
    changing nothing.

    Args:
        kernels: the part of a looped model's tree that is adapted, abstract or not.
        rank: of A B.
        key: split into one for each kernel.

    Returns:
        The tree with a dict in place of each kernel: ``lora_a`` has its input axes and
        then the rank, ``lora_b`` the rank and then its output axes.

    Raises:
        InputError: the rank is more than the inputs or the outputs of a kernel.
    """
    paths, axes = _flatten(kernels), _flatten(logical_axes(kernels))
    keys = jax.random.split(key, len(paths))
    drawn: dict[tuple[str, ...], Array] = {}
    for (path, kernel), one in zip(paths.items(), keys, strict=True):
        count = count_inputs(axes[path])
        inputs, outputs = kernel.shape[:count], kernel.shape[count:]
        most = min(math.prod(inputs), math.prod(outputs))
        if rank > most:
            raise InputError(
                f"training.lora_rank={rank} must be at most {most}, the smaller side of"
                f" {'/'.join(path)}: lower it, or leave that kernel out of"
                " training.lora_kernels"
            )
        down = jax.random.normal(one, (*inputs, rank), kernel.dtype)
        drawn[*path, DOWN] = down / math.prod(inputs) ** 0.5
        drawn[*path, UP] = jnp.zeros((rank, *outputs), kernel.dtype)
    return unflatten_dict(drawn)


# In full precision.
_product = functools.partial(jnp.tensordot, axes=1, precision="highest")


def _flatten(tree: Parameters) -> dict[tuple[str, ...], Any]:
    return cast(dict[tuple[str, ...], Any], flatten_dict(tree))
