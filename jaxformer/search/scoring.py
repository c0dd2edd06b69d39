"""Scores of hypotheses: log-probabilities of tokens, the length penalty and the
coverage penalty.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.search.config import LENGTH_PENALTIES, LengthPenalty
from jaxformer.typing import Array, Float, Int


def length_penalty(
    length: Int[Array, "*B"] | int,
    alpha: Float[Array, ""] | float,
    name: LengthPenalty = "gnmt",
) -> Float[Array, "*B"]:
    """Compute the length penalty lp(n), which divides the log-probability of a
    hypothesis of n tokens.

    ========= ================= ================================================
    name      lp(n)             source
    ========= ================= ================================================
    `gnmt`    ((5 + n)/6)^alpha Wu et al. 2016, equation 14; Vaswani et al. 2017
    `average` n^alpha           with alpha 1 per token, as Cho et al. 2014
    `none`    1                 log-probabilities as they are
    ========= ================= ================================================

    Each is above 0, and rises with n for alpha >= 0, falls for alpha < 0, or is
    constant. The stop rule of beam search relies on that.

    Args:
        length: tokens of the hypothesis, end of sentence included. The empty
            hypothesis counts as one token for `average`, to avoid a division by 0.
        alpha: strength; 0 compares plain log-probabilities, a negative one favours
            short hypotheses. It may be traced.
        name: of the penalty, static.

    Returns:
        The penalty in float32, above 0, of the shape of ``length``.

    Raises:
        ValueError: an unknown penalty.

    Example:
        >>> float(length_penalty(7, 1.0)), float(length_penalty(7, 1.0, "average"))
        (2.0, 7.0)
    """
    tokens = jnp.asarray(length, jnp.float32)
    if name == "gnmt":
        return ((tokens + 5.0) / 6.0) ** jnp.asarray(alpha, jnp.float32)
    if name == "average":
        return jnp.maximum(tokens, 1.0) ** jnp.asarray(alpha, jnp.float32)
    if name == "none":
        return jnp.ones_like(tokens)
    raise ValueError(
        f"the length penalty must be one of {', '.join(LENGTH_PENALTIES)}, not {name!r}"
    )


def coverage_penalty(attention: Float[Array, "N S"]) -> Float[Array, " N"]:
    """Compute the coverage penalty: the sum over source positions of log(min(a, 1)).

    a is the attention to the position, summed over the tokens of the hypothesis: cp of
    Wu et al. 2016, equation 14, without its factor beta.

    Args:
        attention: sums of the weights, at least 0; 1 at padding.

    Returns:
        The penalty, at most 0, as the stop rule of beam search needs. A position
        without attention counts as the least float32, about -87, so the penalty is
        finite.

    Example:
        >>> round(float(coverage_penalty(jnp.array([[1.5, 0.5, 1.0]]))[0]), 3)
        -0.693
    """
    seen = jnp.clip(attention.astype(jnp.float32), jnp.finfo(jnp.float32).tiny, 1.0)
    return jnp.log(seen).sum(axis=-1)


def log_probabilities(
    logits: Float[Array, "N V"], forbidden_ids: Sequence[int] = ()
) -> Float[Array, "N V"]:
    """Compute log-probabilities from logits, in float32.

    Forbidden tokens are set to minus infinity after the normalisation, so the others
    keep the model's log-probabilities: a hypothesis scores the same in a search and as
    a given target.

    Args:
        logits: of any float type; minus infinity is allowed. NaN or infinity makes its
            row NaN, except for forbidden tokens.
        forbidden_ids: special tokens that are never generated, static. See
            :mod:`jaxformer.search.constraints` for tokens that a caller bans.

    Returns:
        Log-probabilities, at most 0.
    """
    logits = logits.astype(jnp.float32)
    # logsumexp adds the exponential of the largest logit as exactly 1, so no value is
    # rounded to above 0. The stop rule of beam search relies on that.
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    # An infinite logit makes the whole row NaN, as a NaN does; a row of only minus
    # infinity stays so.
    total = jnp.where(
        total == jnp.inf, jnp.nan, jnp.maximum(total, jnp.finfo(jnp.float32).min)
    )
    normalised = logits - total
    forbidden = np.isin(np.arange(logits.shape[-1]), list(forbidden_ids))
    return jnp.where(jnp.asarray(forbidden)[None], -jnp.inf, normalised)


def normalise(log_probabilities: Float[Array, "N V"]) -> Float[Array, "N V"]:
    """Normalise the probabilities of each row to 1, unless all are 0."""
    total = jax.nn.logsumexp(log_probabilities, axis=-1, keepdims=True)
    # Rounding must not lift a value above 0: its bits are its rank.
    return jnp.minimum(log_probabilities - jnp.where(total > -jnp.inf, total, 0.0), 0.0)
