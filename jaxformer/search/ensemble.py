"""Ensembles: several models that predict each token together."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxformer.errors import InputError
from jaxformer.search.rules import Step
from jaxformer.typing import Array, Float, Int, PyTree


def ensemble(steps: Sequence[Step], weights: Float[Array, " M"] | None = None) -> Step:
    """Combine the steps of M models into one, for any search; its cache is the tuple of
    theirs. The step of one model keeps its logits.

    Args:
        steps: of models that share a vocabulary.
        weights: see :func:`mean_log_probabilities`; they may be traced.

    Example:
        >>> first, second = (
        ...     lambda tokens, cache, row=row: (jnp.log(jnp.array([row])), cache)
        ...     for row in ([0.5, 0.5], [0.1, 0.9]))
        >>> step = ensemble([first, second])
        >>> log_probabilities, _ = step(jnp.array([0]), (None, None))
        >>> jnp.exp(log_probabilities).round(3).tolist()
        [[0.30000001192092896, 0.699999988079071]]
    """

    def step(
        tokens: Int[Array, " N"], caches: PyTree
    ) -> tuple[Float[Array, "N V"], PyTree]:
        found = [own(tokens, cache) for own, cache in zip(steps, caches, strict=True)]
        logits, grown = zip(*found, strict=True)
        if len(steps) == 1:
            return logits[0], grown
        return mean_log_probabilities(logits, weights), grown

    return step


def mean_log_probabilities(
    logits: Sequence[Float[Array, "*B V"]], weights: Float[Array, " M"] | None = None
) -> Float[Array, "*B V"]:
    """Compute the logarithm of the mean of the models' probabilities, in float32.

    Probabilities are averaged, as in a mixture, not their logarithms: a token that one
    model allows stays possible.

    Args:
        logits: of each of the M models; minus infinity is allowed.
        weights: of the models, at least 0 and not all 0; they are normalised to 1.
            None: equal weights.

    Returns:
        Log-probabilities; normalising them again changes only rounding.
    """
    own = jnp.stack(
        [jax.nn.log_softmax(each.astype(jnp.float32), axis=-1) for each in logits]
    )
    shares = (
        jnp.ones(len(logits), jnp.float32)
        if weights is None
        else jnp.asarray(weights, jnp.float32)
    )
    shares = (shares / shares.sum()).reshape(-1, *(1,) * (own.ndim - 1))
    return jax.nn.logsumexp(own, axis=0, b=jnp.broadcast_to(shares, own.shape))


def check_weights(weights: Sequence[float], models: int) -> None:
    """Check weights for :func:`mean_log_probabilities`.

    Raises:
        InputError: as many as models are needed, at least 0 and not all 0.
    """
    fits = len(weights) == models and any(weight >= 1e-9 for weight in weights)
    if not fits or not all(0 <= weight <= 1e9 for weight in weights):
        raise InputError(
            f"there are {len(weights)} weights for an ensemble of {models} models: give"
            f" each a number from 0 to 1e9, and one above 1e-9, not {list(weights)}"
        )
