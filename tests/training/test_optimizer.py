"""Adam as the paper sets it, against Adam written down in NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from jaxformer.training.config import TrainingConfig
from jaxformer.training.optimizer import make_optimizer
from jaxformer.training.state import create_state

D_MODEL = 64


def numpy_adam(params, gradients, config, d_model):
    """Kingma and Ba 2015, algorithm 1, under equation 3 of the Transformer's paper, in float64."""
    first, second = np.zeros_like(params), np.zeros_like(params)
    for step, gradient in enumerate(gradients, start=1):
        first = config.adam_b1 * first + (1 - config.adam_b1) * gradient
        second = config.adam_b2 * second + (1 - config.adam_b2) * gradient**2
        rate = config.learning_rate * d_model**-0.5 * min(step**-0.5, step * config.warmup_steps**-1.5)
        direction = first / (1 - config.adam_b1**step)
        scale = np.sqrt(second / (1 - config.adam_b2**step)) + config.adam_epsilon
        params = params - rate * direction / scale
    return params


def run_optimizer(config, params, gradients):
    optimizer = make_optimizer(config, D_MODEL)
    params = jnp.asarray(params, jnp.float32)
    state = optimizer.init(params)
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient, jnp.float32), state, params)
        params = optax.apply_updates(params, updates)
    return np.asarray(params), state


@pytest.mark.parametrize(
    "changes", [{}, {"adam_b1": 0.8, "adam_b2": 0.999, "adam_epsilon": 1e-6, "learning_rate": 2.0, "warmup_steps": 2}]
)
def test_equals_adam_in_float64(changes):
    """The constants of the configuration reach the optimizer; by default they are the paper's (statement 55)."""
    config = TrainingConfig(**{"warmup_steps": 3, **changes})
    generator = np.random.default_rng(1)
    # Gradients from far below epsilon to far above it, so that each constant is seen.
    scale = 10.0 ** generator.uniform(-10, 2, (4, 50))
    gradients = generator.normal(size=(4, 50)) * scale
    found, _ = run_optimizer(config, np.zeros(50), gradients)
    np.testing.assert_allclose(found, numpy_adam(np.zeros(50), gradients, config, D_MODEL), rtol=2e-5, atol=1e-9)


def test_the_defaults_are_the_papers():
    """Adam's decay rates, epsilon and the warm-up of section 5.3 (statement 55)."""
    config = TrainingConfig()
    assert (config.adam_b1, config.adam_b2, config.adam_epsilon) == (0.9, 0.98, 1e-9)
    assert (config.warmup_steps, config.learning_rate, config.label_smoothing) == (4_000, 1.0, 0.1)


def test_gradients_are_not_clipped():
    """The first moment holds the whole gradient, however large it is (statement 56)."""
    gradient = np.random.default_rng(2).normal(size=20) * 1e6
    _, state = run_optimizer(TrainingConfig(), np.ones(20), [gradient])
    np.testing.assert_allclose(np.asarray(state[0].mu), 0.1 * gradient, rtol=1e-5)


def test_weights_do_not_decay():
    """A gradient of 0 leaves every parameter as it is (statement 56)."""
    params = np.random.default_rng(3).normal(size=20).astype(np.float32)
    found, _ = run_optimizer(TrainingConfig(warmup_steps=1), params, [np.zeros(20)] * 3)
    np.testing.assert_array_equal(found, params)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_parameters_and_moments_are_float32(make_model, make_training, make_batch, dtype):
    """Whatever the model computes in, what is kept from step to step is float32 (statement 59)."""
    engine, state = make_training(make_model(dtype=dtype), "jit")
    for seed in range(2):
        state, metrics = engine.step(state, make_batch(seed, [4, 7, 2, 9]))
    kinds = {leaf.dtype for leaf in jax.tree.leaves((state.params, state.optimizer[0].mu, state.optimizer[0].nu))}
    assert kinds == {jnp.dtype("float32")}
    assert {value.dtype for value in metrics.values()} == {jnp.dtype("float32")}


def test_the_state_is_made_from_the_seed_alone(make_model):
    """The same seed gives the same bits, another one other parameters and another key of dropout (statement 119)."""
    model = make_model()
    optimizer = make_optimizer(TrainingConfig(), model.config.d_model)
    first, again, other = (create_state(model, optimizer, seed) for seed in (0, 0, 1))
    jax.tree.map(np.testing.assert_array_equal, first, again)
    assert not np.array_equal(first.key, other.key)
    tables = [state.params["embedding"]["table"] for state in (first, other)]
    assert not np.array_equal(*tables)
