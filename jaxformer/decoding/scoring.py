"""Scores of hypotheses: log-probabilities of tokens, and the length penalty."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxformer.typing import Array, Float, Int


def length_penalty(length: Int[Array, "*B"] | int, alpha: Float[Array, ""] | float) -> Float[Array, "*B"]:
    """Give the number that divides the log-probability of a hypothesis, so that long ones can win.

    lp(Y) = ((5 + abs(Y)) / 6)^alpha (Wu et al. 2016, equation 14; used by Vaswani et al. 2017, section 6.1).

    Args:
        length: tokens of the hypothesis, with its end-of-sentence token, without begin-of-sentence token and padding.
        alpha: strength; 0 compares plain log-probabilities, a negative one favours short hypotheses. It may be traced.

    Returns:
        The penalty in float32, above 0, of the shape of ``length``.

    Example:
        >>> float(length_penalty(7, 1.0))
        2.0
    """
    return ((jnp.asarray(length, jnp.float32) + 5.0) / 6.0) ** jnp.asarray(alpha, jnp.float32)


def log_probabilities(logits: Float[Array, "N V"], forbidden_ids: Sequence[int] = ()) -> Float[Array, "N V"]:
    """Turn logits into log-probabilities, in float32 whatever the type of the logits.

    Forbidden tokens get minus infinity after the normalisation, so that the others keep the log-probabilities which the
    model gives them: a hypothesis has the same score when it is searched and when it is scored as a given target.

    Args:
        logits: of any floating type; minus infinity is allowed.
        forbidden_ids: tokens that must not be chosen.

    Returns:
        Log-probabilities, none above 0.
    """
    logits = logits.astype(jnp.float32)
    # logsumexp adds the exponential of the largest logit as exactly 1, so rounding cannot lift a value above 0: the
    # stop rule of beam search relies on that.
    normalised = logits - jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    forbidden = np.isin(np.arange(logits.shape[-1]), list(forbidden_ids))
    return jnp.where(jnp.asarray(forbidden)[None, :], -jnp.inf, normalised)
