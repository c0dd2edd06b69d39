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
    """Return the number that divides the log-probability of a hypothesis, so that long
    ones can win.

    ========= =================== ===============================================
    name      lp(n)               source
    ========= =================== ===============================================
    `gnmt`    ((5 + n) / 6)^alpha Wu et al. 2016, equation 14; in Vaswani et al.
                                  2017, section 6.1
    `average` n^alpha             with alpha 1 a mean per token (Cho et al. 2014)
    `none`    1                   log-probabilities, whatever alpha
    ========= =================== ===============================================

    Each is above 0 and rises with n for alpha >= 0 and falls for alpha < 0 (or stays):
    the stop rule of beam search relies on that.

    Args:
        length: tokens of the hypothesis, with its end-of-sentence token, without
            begin-of-sentence token and padding. The empty hypothesis counts as one
            token for `average`, so that nothing is divided by 0.
        alpha: strength; 0 compares plain log-probabilities, a negative one favours
            short hypotheses. It may be traced.
        name: of the penalty, static.

    Returns:
        The penalty in float32, above 0, of the shape of ``length``.

    Raises:
        ValueError: there is no such penalty.

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
    """Return what a hypothesis loses for source positions that it has not attended to.

    The sum over source positions of log(min(a, 1)), where a is the attention that the
    position got from all tokens of the hypothesis together: cp of Wu et al. 2016,
    equation 14, without its factor beta.

    Args:
        attention: sums of the weights, at least 0; 1 at padding, which nothing has to
            cover.

    Returns:
        The penalty, never above 0: the stop rule of beam search relies on that. A
        position that got nothing at all counts as the least float32, about -87, so that
        the penalty is finite.

    Example:
        >>> round(float(coverage_penalty(jnp.array([[1.5, 0.5, 1.0]]))[0]), 3)
        -0.693
    """
    seen = jnp.clip(attention.astype(jnp.float32), jnp.finfo(jnp.float32).tiny, 1.0)
    return jnp.sum(jnp.log(seen), axis=-1)


def log_probabilities(
    logits: Float[Array, "N V"], forbidden_ids: Sequence[int] = ()
) -> Float[Array, "N V"]:
    """Turn logits into log-probabilities, in float32 whatever the type of the logits.

    Forbidden tokens get minus infinity after the normalisation, so that the others keep
    the log-probabilities which the model gives them: a hypothesis has the same score
    when it is searched and when it is scored as a given target.

    Args:
        logits: of any floating type; minus infinity is allowed. NaN or infinity in a
            row makes all of it NaN, but for forbidden tokens.
        forbidden_ids: tokens that must not be chosen, static: those of the model that
            are no words. What a caller bans is a matter of
            :mod:`jaxformer.search.constraints`.

    Returns:
        Log-probabilities, none above 0.
    """
    logits = logits.astype(jnp.float32)
    # logsumexp adds the exponential of the largest logit as exactly 1, so rounding
    # cannot lift a value above 0: the stop rule of beam search relies on that.
    total = jax.nn.logsumexp(logits, axis=-1, keepdims=True)
    # One infinite logit makes the whole row NaN, as a NaN does; a row that is minus
    # infinity throughout stays so.
    total = jnp.where(
        total == jnp.inf, jnp.nan, jnp.maximum(total, jnp.finfo(jnp.float32).min)
    )
    normalised = logits - total
    forbidden = np.isin(np.arange(logits.shape[-1]), list(forbidden_ids))
    return jnp.where(jnp.asarray(forbidden)[None, :], -jnp.inf, normalised)
