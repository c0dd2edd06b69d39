"""Settings of the tests of models."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _compile_quickly():
    """Compile without optimisations: most of the time of these tests is compilation,
    and the values are the same.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", True)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
