"""The moving average of parameters, against its definition in float64."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxformer.training.moving_average import update_average


def draw_path(seed, updates):
    """Draw parameters that walk: one row more than there are updates."""
    return (
        np.random.default_rng(seed)
        .normal(size=(updates + 1, 6))
        .cumsum(axis=0)
        .astype(np.float32)
    )


@pytest.mark.parametrize("decay", [0.0, 0.5, 0.9, 0.99, 0.9999])
def test_equals_the_definition_in_float64(decay):
    """Each parameter's weight is what the decays of all later updates leave of it."""
    path = draw_path(0, 60)
    average = {"kernel": jnp.asarray(path[0])}
    update = jax.jit(update_average, static_argnames="decay")
    expected = path[0].astype(np.float64)
    for made, params in enumerate(path[1:]):
        average = update(
            average,
            {"kernel": jnp.asarray(params)},
            decay=decay,
            updates=jnp.int32(made),
        )
        kept = min(decay, (1 + made) / (10 + made))
        expected = kept * expected + (1 - kept) * params
        np.testing.assert_allclose(average["kernel"], expected, rtol=2e-6, atol=2e-6)
    assert average["kernel"].dtype == jnp.float32


def test_long_averages_keep_their_decay():
    """After many updates the share of the newest parameters is 1 - decay to six
    digits, not float32's 1 - 0.9999.
    """
    moved = update_average(
        jnp.zeros(()), jnp.ones(()), decay=0.9999, updates=10_000_000
    )
    assert float(moved) == pytest.approx(1e-4, rel=1e-6)


def test_the_first_parameters_are_soon_forgotten():
    """After ten updates the parameters that the run began with have a share of 1e-5,
    whatever the decay.
    """
    average = jnp.ones(())
    for made in range(10):
        average = update_average(average, jnp.zeros(()), decay=0.9999, updates=made)
    assert float(average) == pytest.approx(1.0825e-5, rel=1e-3)


def test_parameters_that_stay_are_their_own_average():
    """The average of what does not change is it, bit for bit; types are promoted
    nowhere.
    """
    params = {"a": jnp.asarray(draw_path(1, 3)), "b": [jnp.float32(0.1)]}
    with jax.numpy_dtype_promotion("strict"):
        for made in (0, 7, jnp.int32(100_000)):
            jax.tree.map(
                np.testing.assert_array_equal,
                update_average(params, params, 0.999, made),
                params,
            )
