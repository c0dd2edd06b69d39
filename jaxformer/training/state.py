"""What training changes from step to step, as one pytree."""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
import optax

from jaxformer.models.seq2seq import Transformer
from jaxformer.typing import Array, Int, PyTree, UInt32


@flax.struct.dataclass
class TrainState:
    """Parameters, optimizer state, number of updates made, and the key of all dropout.

    Attributes:
        step: updates made.
        params: float32, whatever the type of the computation.
        optimizer: Adam's moments and count.
        key: raw random key; the key of a step is this one folded with ``step``, so that it never changes.
    """

    step: Int[Array, ""]
    params: PyTree
    optimizer: PyTree
    key: UInt32[Array, "..."]


def create_state(model: Transformer, optimizer: optax.GradientTransformation, seed: int) -> TrainState:
    """Make the state of a run that begins, from its seed alone."""
    parameters_key, dropout_key = jax.random.split(jax.random.key(seed))
    tokens = jnp.zeros((1, 1), jnp.int32)
    params = model.init(parameters_key, tokens, tokens)["params"]
    return TrainState(
        step=jnp.zeros((), jnp.int32),
        params=params,
        optimizer=optimizer.init(params),
        key=jax.random.key_data(dropout_key),
    )
