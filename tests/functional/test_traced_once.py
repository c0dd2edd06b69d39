"""What every layer calls is traced once for each shape, and computed as if it were written out in each place."""

import inspect

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer import functional as F
from jaxformer.functional.traced_once import traced_once


@pytest.fixture
def counted():
    """Give a function that is traced once, and the list that every trace of it lengthens."""
    traces = []

    @traced_once("power")
    def raised(x, *, power):
        traces.append(power)
        return jnp.sin(x) ** power

    return raised, traces


def test_many_calls_and_their_gradients_are_one_trace(counted):
    """A compiled function may call it as often as it likes, and be differentiated: the body runs in Python once."""
    raised, traces = counted

    @jax.jit
    def deep(x):
        for _ in range(5):
            x = raised(x, power=2)
        return x.sum()

    x = jnp.linspace(0.1, 0.9, 7)
    jax.grad(deep)(x)
    assert traces == [2]
    deep(jnp.stack([x, x]))  # another shape
    assert traces == [2, 2]


def test_each_static_value_has_its_trace(counted):
    """A value named static is a Python value within, and another one computes something else."""
    raised, traces = counted
    x = jnp.array([0.5])
    for power in (1, 3, 1):
        np.testing.assert_allclose(raised(x, power=power), np.sin(x) ** power, rtol=1e-6)
    assert traces == [1, 3]


def test_a_signature_stays():
    """Callers, editors and the reference see the arguments of the function itself."""
    assert list(inspect.signature(F.linear).parameters) == ["x", "kernel", "bias", "contract"]
    assert list(inspect.signature(F.layer_norm).parameters) == ["x", "scale", "bias", "epsilon"]
