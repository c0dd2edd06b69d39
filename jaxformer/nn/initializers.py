"""The initializers of :mod:`jaxformer.functional` by the names that modules use."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxformer.functional.initializers import init_embedding as embedding
from jaxformer.functional.initializers import init_linear as projection
from jaxformer.typing import Array, Key

__all__ = ["bias", "embedding", "ones", "projection"]


@functools.partial(jax.jit, static_argnums=1)
def ones(key: Key, width: int) -> dict[str, Array]:
    """Return a scale of ones [width], by its name, which weight decay excludes."""
    del key
    return {"scale": jnp.ones(width, jnp.float32)}


def bias(key: Key, width: int) -> dict[str, Array]:
    """Return a bias of zeros [width], by its name, which weight decay excludes."""
    del key
    return {"bias": jnp.zeros(width, jnp.float32)}
