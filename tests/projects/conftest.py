"""Both projects compute under JAX's usual rules, as other people's do."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True)
def _usual_promotion() -> Iterator[None]:
    """Allow mixed types: optax raises a float to the power of an integer."""
    with jax.numpy_dtype_promotion("standard"):
        yield
