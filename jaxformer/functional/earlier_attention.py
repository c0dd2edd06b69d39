"""The attention before "Attention Is All You Need": one head, whose scores are computed
in other ways and are not scaled.

Each function returns scores of T queries and a memory of S positions;
:func:`attend_by_scores` mixes the memory by them. In a recurrent decoder T is 1, and
the query is its state.
"""

from __future__ import annotations

import jax.numpy as jnp

from jaxformer.functional.attention import masked_softmax
from jaxformer.functional.layers import linear, wide_dtype
from jaxformer.functional.shapes import check_shapes
from jaxformer.typing import Array, Bool, Float, Parameters


@check_shapes()
def additive_scores(
    params: Parameters, query: Float[Array, "B T D"], memory: Float[Array, "B S E"]
) -> Float[Array, "B T S"]:
    """Compute v . tanh(W s + U h) for each query s and each position h of the memory
    (Bahdanau et al. 2015, section 3.1 and appendix A.1.2).

    Args:
        params: ``{"state": {"kernel": [D, A]}, "memory": {"kernel": [E, A]}, "energy":
            {"kernel": [A, 1]}}``: W, U and v.
        query: the states.
        memory: what they attend to. U h does not depend on the query: a decoder that
            takes one step at a time computes it once, by :func:`linear`, and calls
            :func:`energies`.

    Returns:
        Scores in float32, or float64 for float64 inputs.
    """
    return energies(
        params["energy"],
        linear(query, **params["state"]),
        linear(memory, **params["memory"]),
    )


def energies(
    energy: Parameters, query: Float[Array, "B T A"], memory: Float[Array, "B S A"]
) -> Float[Array, "B T S"]:
    """Compute v . tanh(q + m) for projected queries and memory. It needs an array [B,
    T, S, A], where a dot product needs [B, T, S].

    Args:
        energy: ``{"kernel": [A, 1]}``, v.
        query: W s.
        memory: U h.
    """
    hidden = jnp.tanh(query[:, :, None, :] + memory[:, None, :, :])
    # Unlike `linear`, not rounded to the dtype of the operands.
    wide, kernel = wide_dtype(hidden), energy["kernel"].astype(hidden.dtype)
    return jnp.tensordot(hidden, kernel, 1, preferred_element_type=wide)[..., 0]


@check_shapes()
def concat_scores(
    params: Parameters, query: Float[Array, "B T D"], memory: Float[Array, "B S E"]
) -> Float[Array, "B T S"]:
    """Compute v . tanh(W [s; h]) (Luong et al. 2015, section 3.1, "concat"): the
    additive score, whose W and U are the rows of this W.

    Args:
        params: ``{"both": {"kernel": [D + E, A]}, "energy": {"kernel": [A, 1]}}``.
        query: the states s.
        memory: what they attend to, h.
    """
    kernel, width = params["both"]["kernel"], query.shape[-1]
    return energies(
        params["energy"], linear(query, kernel[:width]), linear(memory, kernel[width:])
    )


@check_shapes()
def general_scores(
    params: Parameters, query: Float[Array, "B T D"], memory: Float[Array, "B S E"]
) -> Float[Array, "B T S"]:
    """Compute s . W h (Luong et al. 2015, section 3.1, "general").

    Args:
        params: ``{"state": {"kernel": [D, E]}}``.
        query: the states s.
        memory: what they attend to, h.
    """
    return dot_scores(linear(query, **params["state"]), memory)


@check_shapes()
def dot_scores(
    query: Float[Array, "B T D"], memory: Float[Array, "B S D"]
) -> Float[Array, "B T S"]:
    """Compute s . h (Luong et al. 2015, section 3.1, "dot"), without the division by
    the square root of the width of Vaswani et al. 2017.
    """
    return jnp.einsum(
        "BTD,BSD->BTS", query, memory, preferred_element_type=wide_dtype(query)
    )


@check_shapes()
def attend_by_scores(
    scores: Float[Array, "B T S"],
    memory: Float[Array, "B S E"],
    mask: Bool[Array, "#B #T S"] | None = None,
) -> tuple[Float[Array, "B T E"], Float[Array, "B T S"]]:
    """Mix the memory by the softmax of scores: c_t = sum_s a_ts h_s.

    Args:
        scores: of any of the functions above.
        memory: what is mixed.
        mask: True = may attend; axes of size 1 broadcast. One of padding is [B, 1, S].

    Returns:
        The contexts in the dtype of ``memory``, and the weights in float32 (float64 for
        float64 inputs).

    Raises:
        InputError: a mask of numbers, or one that does not fit the scores.
    """
    weights = masked_softmax(scores, mask)
    context = jnp.einsum(
        "BTS,BSE->BTE",
        weights.astype(memory.dtype),
        memory,
        preferred_element_type=weights.dtype,
    )
    return context.astype(memory.dtype), weights
