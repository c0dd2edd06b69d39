"""Settings of the tests of models."""

import jax
import pytest


@pytest.fixture(autouse=True)
def _compile_quickly(request):
    """Compile without optimisations: most of the time of these tests is compilation,
    and the values are the same.
    """
    before = jax.config.read("jax_disable_most_optimizations")
    jax.config.update("jax_disable_most_optimizations", "slow" not in request.keywords)
    yield
    jax.config.update("jax_disable_most_optimizations", before)
