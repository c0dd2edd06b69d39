"""Functions that JAX traces once for each shape, and not once for each layer that calls them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import jax

Function = TypeVar("Function", bound=Callable[..., object])


def traced_once(*static: str) -> Callable[[Function], Function]:
    """Compile a function by itself: a decorator for what every layer calls.

    Within a larger compiled function, JAX then traces, differentiates and lowers it once for each shape, where a
    Transformer calls it dozens of times. The compiler puts it back in each place, so that nothing else changes: neither
    what is computed, nor how it is fused with its surroundings.

    Args:
        static: names of the arguments that are plain Python values; each value is traced by itself.
    """

    def decorate(function: Function) -> Function:
        # `jax.jit` forgets the signature, which callers are checked against.
        return cast(Function, jax.jit(function, static_argnames=static))

    return decorate
