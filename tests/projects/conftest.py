"""Both projects compute under JAX's usual rules, as those of others do."""

from collections.abc import Iterator

import jax
import pytest


@pytest.fixture(autouse=True, scope="module")
def _usual_promotion() -> Iterator[None]:
    """Allow mixed types: optax raises a float to the power of an integer."""
    with jax.numpy_dtype_promotion("standard"):
        yield
